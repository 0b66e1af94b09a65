"""The order in which a plan enters its kernels, and where the operands of each tile are then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from gradlet.kernels.catalogue import Kernel
from gradlet.planner.launch import Launch
from gradlet.planner.model import Call
from gradlet.planner.tiling import Region, TileView, Tiling


@dataclass(frozen=True)
class Placement:
    """A view while a tile is computed: its region, and the stage that holds it."""

    view: TileView
    region: Region
    stage: int


@dataclass(frozen=True)
class Entry:
    """A launch is entered by all cores. placements: by position, empty for a call without tiles."""

    launch: Launch
    placements: tuple[Placement | None, ...] = ()
    first: bool = True  # of the entries into a tile

    @property
    def kernel(self) -> Kernel:
        return self.launch.kernel


def entries(call: Call) -> Iterator[Entry]:
    """All entries of one call."""
    tiling = call.tiling
    if tiling is None:
        for launch, _ in _steps(call.whole):
            yield Entry(launch)
        return
    for placements, index in _tiles(tiling):
        running = [launch for launch in tiling.launches if tiling.runs(launch, index)]
        for launch, number in _steps(running):
            yield Entry(launch, placements, number == 0)


def _steps(launches: Sequence[Launch]) -> Iterator[tuple[Launch, int]]:
    """Each as often as it runs, and how many came before; what is fused beside one goes with its
    first step."""
    number = 0
    for place, launch in enumerate(launches):
        behind = launches[place + 1 :]
        for step in range(launch.repeat if launch.barrier or not place else 0):
            own = [launch]
            if step == 0:
                own += takewhile(lambda other: not other.barrier, behind)
            for entered in own:
                yield entered, number
                number += 1


def _tiles(tiling: Tiling) -> Iterator[tuple[tuple[Placement | None, ...], tuple[int, ...]]]:
    """A view goes on to its next stage whenever its region is another."""
    placements: list[Placement | None] = [None] * len(tiling.views)
    for index in tiling.indices():
        ranges = tiling.ranges(index)
        for position, view in enumerate(tiling.views):
            if view is None:
                continue
            region, old = view.region(ranges), placements[position]
            if old is None:
                placements[position] = Placement(view, region, 0)
            elif region != old.region:
                placements[position] = Placement(
                    view, region, (old.stage + 1) % max(1, view.stages)
                )
        yield tuple(placements), index
