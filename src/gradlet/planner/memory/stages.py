"""When stages of views are in use, and which regions of the next call are prefetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from gradlet.ir.graph import Array
from gradlet.planner.memory.place import Request
from gradlet.planner.model import Plan
from gradlet.planner.parts import followers
from gradlet.planner.tile.schedule import Schedule
from gradlet.planner.tiling import Region, TileView, Tiling


class Ledger:
    """Bytes of the nearest memory in use. Every call counts twice: up to its last tile, and that;
    during the latter stages that no region comes into any more are free for the next call."""

    def __init__(self, calls: int, align: int) -> None:
        self.used: Array = np.zeros(2 * calls + 2, np.int64)
        self.align = align

    def occupy(self, pieces: Iterable[Request], sign: int = 1) -> None:
        for piece in pieces:
            self.add(sign * piece.bytes, piece.first, piece.last)

    def add(self, size: int, first: int, last: int) -> None:
        rounded = -(-abs(size) // self.align) * self.align
        self.used[first : last + 1] += rounded if size > 0 else -rounded

    def free(self, room: int, first: int, last: int) -> int:
        return int(room - self.used[first : last + 1].max(initial=0))


def stages_in_use(
    tiling: Tiling | None, index: int, tensors: set[str] | None = None
) -> list[Request]:
    """What the views of a call take and when; of some tensors, or of all."""
    if tiling is None:
        return []
    return [
        piece
        for view in tiling.views
        if view and view.buffer and (tensors is None or view.tensor in tensors)
        for piece in _stages_of(view, tiling, index)
    ]


def _stages_of(view: TileView, tiling: Tiling, index: int) -> list[Request]:
    """Slots that are only filled are done with when the last region is in another."""
    last = _last_stage(view, tiling)
    return [
        Request(
            name,
            view.stage_bytes,
            2 * index - (view.prefetched and stage == 0),
            2 * index + (view.store or last in (stage, None)),
        )
        for stage, name in enumerate(view.stage_buffers)
    ]


def _last_stage(view: TileView, tiling: Tiling) -> int | None:
    """The stage that the last tile uses, if every move of the view is to another region."""
    if not view.axes or not view.load:
        return None
    for number in view.axes:
        axis = tiling.axes[number]
        at = [[0] * len(tiling.axes) for _ in range(axis.count)]
        for place, index in enumerate(at):
            index[number] = place
        regions = [view.region(tiling.ranges(index)) for index in at]
        if any(one == other for one, other in pairwise([*regions, regions[0]])):
            return None
    moves = prod(axis.count for axis in tiling.axes[: view.axes[-1] + 1]) - 1
    return moves % view.stages


def prefetch(
    plan: Plan,
    schedules: list[Schedule],
    storage_of: Mapping[str, str],
    ledger: Ledger,
    room: int,
) -> None:
    """First regions come in during the last tile of the call before, if they fit, unless it is that
    tile which makes them, or the one before, which is written back meanwhile."""
    for before, index in followers(plan.graph, plan.calls).items():
        tiling, earlier = schedules[index].tiling, schedules[before].tiling
        if tiling is None or earlier is None or not tiling.double_buffered:
            continue
        made = {storage_of[name] for name in plan.calls[before].outputs if name}
        late = _late_regions(earlier)
        views = list(tiling.views)
        for position, view in enumerate(views):
            if view is None or not (view.buffer and view.load):
                continue
            size, then = view.stage_bytes, 2 * before + 1
            if storage_of[view.tensor] in made and not _made_before(view, tiling, late):
                continue
            if ledger.free(room, then, then) < size:
                continue
            ledger.add(size, then, then)
            views[position] = replace(view, prefetched=True)
        schedules[index] = replace(schedules[index], tiling=replace(tiling, views=tuple(views)))


def _late_regions(tiling: Tiling) -> list[tuple[TileView, Region]]:
    """What the last two tiles of a call write, by way of views."""
    counts = [axis.count for axis in tiling.axes]
    last = tiling.count - 1
    tiles = (
        [np.unravel_index(n, counts) for n in range(max(0, last - 1), last + 1)] if counts else [()]
    )
    return [
        (view, view.region(tiling.ranges([int(place) for place in tile])))
        for view in tiling.views
        if view and view.store and view.buffer
        for tile in tiles
    ]


def _made_before(view: TileView, tiling: Tiling, late: Sequence[tuple[TileView, Region]]) -> bool:
    """Whether the first region of a view is none of these regions of the same tensor."""
    own = [(other, region) for other, region in late if other.tensor == view.tensor]
    first = view.region(tiling.ranges([0] * len(tiling.axes)))
    return bool(own) and all(
        other.shape == view.shape and not _meet(first, region) for other, region in own
    )


def _meet(one: Region, other: Region) -> bool:
    return all(
        low < end and begin < high for (low, high), (begin, end) in zip(one, other, strict=True)
    )
