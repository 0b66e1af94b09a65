"""The order in which a plan enters its kernels, and where the operands of each tile are then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradlet.kernels.catalogue import Kernel
from gradlet.planner.launch import Launch
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
    """A launch is entered by all cores. views: by position, empty for a call without tiles."""

    launch: Launch
    views: tuple[View | None, ...] = ()
    first: bool = True  # of the entries into a tile

    @property
    def kernel(self) -> Kernel:
        return self.launch.kernel


def entries(call: Call) -> Iterator[Entry]:
    """All entries of one call."""
    tiling = call.tiling
    if tiling is None:
        for launch in call.whole:
            yield from (Entry(launch) for _ in range(launch.repeat))
        return
    for views, index in _tiles(tiling):
        first = True
        for launch in tiling.launches:
            if tiling.runs(launch, index):
                for _ in range(launch.repeat):
                    yield Entry(launch, views, first)
                    first = False


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
