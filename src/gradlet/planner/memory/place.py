"""Addresses: greedy best fit over a few orders, then a short search: whatever is in the way of the
highest buffer has its turn sooner.

The bound is the largest sum of bytes alive at one time; a placement that reaches it is optimal.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter

import numpy as np

from gradlet.ir.graph import Array

MOVES = 800
MOVE_WORK = 60_000
"""Requests that are put somewhere by all moves together, so that large networks take no longer."""
IN_THE_WAY = 0.7
"""How often it is a buffer beside the highest that is moved, not that one."""
FEW = 300
"""Requests up to which a loop is quicker than numpy."""
NEARLY = 1.02
"""Of the lower bound, where a limit is given and nothing is gained below it."""


@dataclass(frozen=True)
class Request:
    """A buffer without an address yet: alive during calls first..last."""

    name: str
    bytes: int
    first: int
    last: int


def lower_bound(requests: Sequence[Request]) -> int:
    return max(_alive(requests).values(), default=0)


def _alive(requests: Sequence[Request]) -> dict[int, int]:
    """Bytes that are alive from each time on at which that changes."""
    changes: dict[int, int] = {}
    for request in requests:
        changes[request.first] = changes.get(request.first, 0) + request.bytes
        changes[request.last + 1] = changes.get(request.last + 1, 0) - request.bytes
    times = sorted(changes)
    return dict(zip(times, accumulate(changes[time] for time in times), strict=True))


def _crowds(requests: Sequence[Request]) -> dict[str, int]:
    """The most that is alive together with each request."""
    alive = _alive(requests)
    times = list(alive)
    found = {}
    for request in requests:
        begin, end = bisect_left(times, request.first), bisect_left(times, request.last + 1)
        found[request.name] = max(alive[time] for time in times[begin:end])
    return found


def place(requests: Sequence[Request], align: int, limit: int = 0) -> dict[str, int]:
    """Offset of every request; requests that are alive together never overlap. The search ends
    below the limit, if that is nearly the least."""
    return dict(_placed(tuple(requests), align, limit))


@lru_cache(maxsize=8)
def _placed(requests: tuple[Request, ...], align: int, limit: int) -> dict[str, int]:
    """Asked for the same twice: whether all fits, and where it is then."""
    bound = lower_bound(requests)
    enough = max(bound + align, min(limit, int(bound * NEARLY)))
    crowd = _crowds(requests)
    orders = [
        sorted(requests, key=lambda r: (-r.bytes, r.first, r.name)),
        sorted(requests, key=lambda r: (r.first - r.last, -r.bytes, r.name)),
        sorted(requests, key=lambda r: (-r.bytes * (r.last - r.first + 1), r.name)),
        sorted(requests, key=lambda r: (r.first, -r.bytes, r.name)),
        sorted(requests, key=lambda r: (-r.last, -r.bytes, r.name)),
        sorted(requests, key=lambda r: (-crowd[r.name], r.first - r.last, -r.bytes, r.name)),
    ]
    order = list(orders[0])
    best = _fit(order, align)
    for other in orders[1:]:
        trial = _fit(other, align, best.height - 1)
        if trial.offsets:
            best, order = trial, list(other)
    chance = random.Random(0)
    for _ in range(min(MOVES, MOVE_WORK // max(1, len(order)))):
        if best.height <= enough or len(order) < 2:
            break
        changed, same = _moved(order, best, chance)
        trial = _fit(changed, align, best.height, best, same)
        if trial.offsets:
            best, order = trial, changed
    return best.offsets


def _moved(order: Sequence[Request], fit: _Fit, chance: random.Random) -> tuple[list[Request], int]:
    """The highest buffer, or one that lives at the same time, has its turn sooner; and how many
    are before it."""
    highest = next(n for n, r in enumerate(order) if fit.offsets[r.name] + r.bytes == fit.height)
    if chance.random() < IN_THE_WAY:
        top = order[highest]
        met = [n for n, r in enumerate(order) if r.last >= top.first and r.first <= top.last]
        highest = chance.choice(met)
    changed = list(order)
    sooner = chance.randrange(highest + 1)
    changed.insert(sooner, changed.pop(highest))
    return changed, sooner


def height(requests: Sequence[Request], align: int, limit: int = 0) -> int:
    """Bytes that a placement takes."""
    offsets = place(requests, align, limit)
    return max((offsets[r.name] + r.bytes for r in requests), default=0)


@dataclass(frozen=True)
class _Fit:
    offsets: dict[str, int]
    height: int


def _fit(
    order: Sequence[Request],
    align: int,
    most: int = 1 << 62,
    like: _Fit | None = None,
    same: int = 0,
) -> _Fit:
    """Put each request into the tightest gap among those already placed that it meets in time.
    Without offsets, if that takes more than the most that is wanted. The first so many are the
    same as in another fit, and so are their places."""
    before = order[:same] if like else []
    offsets = {request.name: like.offsets[request.name] for request in before} if like else {}
    top = max((offsets[r.name] + r.bytes for r in before), default=0)
    placed: _Few | _Many = _Few() if len(order) <= FEW else _Many(len(order))
    placed.fill([(offsets[r.name], _aligned(offsets[r.name] + r.bytes, align), r) for r in before])
    for request in order[len(before) :]:
        offset = placed.offset(request)
        offsets[request.name] = offset
        end = offset + request.bytes
        top = max(top, end)
        if top > most:
            return _Fit({}, top)
        placed.put(offset, _aligned(end, align), request)
    return _Fit(offsets, top)


def _aligned(end: int, align: int) -> int:
    return -(-end // align) * align


Placed = tuple[int, int, Request]
"""Offset, aligned end."""


class _Few:
    """What is placed already, by offset; looked through one by one."""

    def __init__(self) -> None:
        self.items: list[tuple[int, int, int, int]] = []  # offset, aligned end, first, last
        self.offsets: list[int] = []

    def fill(self, placed: Sequence[Placed]) -> None:
        """The first ones, in their order."""
        for item in placed:
            self.put(*item)

    def offset(self, request: Request) -> int:
        least, found, above = -1, -1, 0
        size, begin, finish = request.bytes, request.first, request.last
        for start, end, first, last in self.items:
            if last >= begin and first <= finish:
                slack = start - above - size
                if slack >= 0 and (slack < least or found < 0):
                    least, found = slack, above
                if end > above:
                    above = end
        return found if found >= 0 else above

    def put(self, offset: int, end: int, request: Request) -> None:
        where = bisect_right(self.offsets, offset)
        self.offsets.insert(where, offset)
        self.items.insert(where, (offset, end, request.first, request.last))


class _Many:
    """The same for so many; all are looked at together."""

    def __init__(self, most: int) -> None:
        self.count = 0
        self.placed: Array = np.zeros((4, most), np.int64)  # offset, aligned end, first, last

    def fill(self, placed: Sequence[Placed]) -> None:
        self.count = len(placed)
        if placed:
            rows = sorted(((at, end, r.first, r.last) for at, end, r in placed), key=itemgetter(0))
            self.placed[:, : self.count] = np.array(rows).T

    def offset(self, request: Request) -> int:
        starts, ends, firsts, lasts = self.placed[:, : self.count]
        meets = (lasts >= request.first) & (firsts <= request.last)
        above = np.maximum.accumulate(ends[meets])
        gaps = starts[meets]
        gaps[1:] -= above[:-1]
        slack = gaps - request.bytes
        tightest = _least(slack)
        if tightest >= 0:
            return int(above[tightest - 1]) if tightest else 0
        return int(above[-1]) if len(above) else 0

    def put(self, offset: int, end: int, request: Request) -> None:
        where = int(np.searchsorted(self.placed[0, : self.count], offset, side="right"))
        self.placed[:, where + 1 : self.count + 1] = self.placed[:, where : self.count]
        self.placed[:, where] = offset, end, request.first, request.last
        self.count += 1


def _least(slack: Array) -> int:
    """Where the smallest slack is that is not negative, or -1."""
    if not len(slack):
        return -1
    found = int(np.where(slack < 0, np.iinfo(np.int64).max, slack).argmin())
    return found if slack[found] >= 0 else -1
