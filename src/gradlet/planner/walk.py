"""The order in which a plan enters its kernels, and where the operands of each tile are then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradlet.kernels.catalogue import Kernel
from gradlet.planner.model import Call
from gradlet.planner.tiling import Box, Tiling, Window


@dataclass(frozen=True)
class View:
    """A window while a tile is computed: its box, and the slot that holds it."""

    window: Window
    box: Box
    slot: int


@dataclass(frozen=True)
class Entry:
    """A kernel is entered by all cores. views: by position, empty for a call without tiles."""

    kernel: Kernel
    views: tuple[View | None, ...] = ()
    first: bool = True  # of the entries into a tile
    finishes: bool = False
    beside: bool = False  # with no barrier before it


def entries(call: Call) -> Iterator[Entry]:
    """All entries of one call."""
    tiling = call.tiling
    if tiling is None:
        for _ in range(call.repeat):
            yield Entry(call.kernel)
        if call.rider:
            yield Entry(call.rider.kernel, beside=True)
        if call.behind:
            yield Entry(call.behind.kernel)
        return
    for views, index in _tiles(tiling):
        kernel, riding = call.kernel, tiling.riding
        if riding and riding.rests(index):
            riding = None
        rider = riding.kernel if riding else None
        if tiling.added(index):
            kernel, rider = tiling.more or kernel, (riding.more if riding else None) or rider
        for step in range(call.repeat):
            yield Entry(kernel, views, step == 0)
        if rider:
            yield Entry(rider, views, False, beside=True)
        if tiling.finish and tiling.finished(index):
            yield Entry(tiling.finish, views, False, True)
            if riding and riding.finish:
                yield Entry(riding.finish, views, False, True, beside=True)


def _tiles(tiling: Tiling) -> Iterator[tuple[tuple[View | None, ...], tuple[int, ...]]]:
    """A window goes on to its next slot whenever its box is another."""
    views: list[View | None] = [None] * len(tiling.windows)
    for index in tiling.indices():
        ranges = tiling.ranges(index)
        for position, window in enumerate(tiling.windows):
            if window is None:
                continue
            box, old = window.box(ranges), views[position]
            if old is None:
                views[position] = View(window, box, 0)
            elif box != old.box:
                views[position] = View(window, box, (old.slot + 1) % max(1, window.slots))
        yield tuple(views), index
