"""Addresses: greedy best fit over a few orders, then a short search by swaps.

The bound is the largest sum of bytes alive at one time; a placement that reaches it is optimal.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SWAPS = 400


@dataclass(frozen=True)
class Request:
    """A buffer without an address yet: alive during calls first..last."""

    name: str
    bytes: int
    first: int
    last: int


def lower_bound(requests: Sequence[Request]) -> int:
    changes: dict[int, int] = {}
    for request in requests:
        changes[request.first] = changes.get(request.first, 0) + request.bytes
        changes[request.last + 1] = changes.get(request.last + 1, 0) - request.bytes
    live = peak = 0
    for time in sorted(changes):
        live += changes[time]
        peak = max(peak, live)
    return peak


def place(requests: Sequence[Request], align: int) -> dict[str, int]:
    """Offset of every request; requests that are alive together never overlap."""
    bound = lower_bound(requests)
    orders = [
        sorted(requests, key=lambda r: (-r.bytes, r.first, r.name)),
        sorted(requests, key=lambda r: (r.first - r.last, -r.bytes, r.name)),
        sorted(requests, key=lambda r: (-r.bytes * (r.last - r.first + 1), r.name)),
        sorted(requests, key=lambda r: (r.first, -r.bytes, r.name)),
        sorted(requests, key=lambda r: (-r.last, -r.bytes, r.name)),
    ]
    best_order = min(orders, key=lambda order: _height(order, _fit(order, align)))
    best = _fit(best_order, align)
    chance = random.Random(0)
    order = list(best_order)
    for _ in range(SWAPS):
        if _height(order, best) <= bound + align or len(order) < 2:
            break
        i, j = chance.sample(range(len(order)), 2)
        order[i], order[j] = order[j], order[i]
        trial = _fit(order, align)
        if _height(order, trial) <= _height(order, best):
            best = trial
        else:
            order[i], order[j] = order[j], order[i]
    return best


def height(requests: Sequence[Request], align: int) -> int:
    """Bytes that a placement takes."""
    return _height(requests, place(requests, align))


def _height(requests: Sequence[Request], offsets: dict[str, int]) -> int:
    return max((offsets[r.name] + r.bytes for r in requests), default=0)


def _fit(order: Sequence[Request], align: int) -> dict[str, int]:
    """Put each request into the tightest gap among those already placed that it meets in time."""
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, Request]] = []  # by offset
    for request in order:
        gap_start, best, best_slack = 0, -1, -1
        for offset, end, other in placed:
            if other.last < request.first or request.last < other.first:
                continue
            slack = offset - gap_start - request.bytes
            if slack >= 0 and (best < 0 or slack < best_slack):
                best, best_slack = gap_start, slack
            gap_start = max(gap_start, -(-end // align) * align)
        offset = best if best >= 0 else gap_start
        offsets[request.name] = offset
        placed.append((offset, offset + request.bytes, request))
        placed.sort(key=lambda item: (item[0], item[1]))
    return offsets
