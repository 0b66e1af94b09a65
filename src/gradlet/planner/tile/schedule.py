"""How a call may run, and what there is to know before that is decided."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from gradlet.kernels.catalogue import Kernel
from gradlet.planner.fuse.rule import FusionGroup
from gradlet.planner.model import Call
from gradlet.planner.tile.search import Problem
from gradlet.planner.tiling import Tiling


@dataclass(frozen=True)
class Schedule:
    """How a call is to run; no tiling means on the operands where they lie."""

    kernel: Kernel
    tiling: Tiling | None
    scratch: int  # bytes
    cost: float = 0.0  # cycles that the model thinks it takes

    @property
    def needed(self) -> int:
        """Bytes of the nearest memory."""
        return self.scratch + (self.tiling.l1_bytes if self.tiling else 0)


@dataclass(frozen=True)
class TilingRequest:
    """A call, the storages that reside in L1, and the bytes that its regions may take."""

    group: FusionGroup
    call: Call
    in_l1: Collection[str]
    room: int
    problems: dict[tuple[bool, str], Problem] = field(
        default_factory=dict, init=False, compare=False
    )
    """What there is to choose, double-buffered or not, once it was asked for; see Tiler.problem."""


@dataclass(frozen=True)
class ScheduleOverride:
    """A way to run a call that is asked for: how far axes are split, outermost first, whether views
    are double-buffered, the kernel."""

    split: tuple[tuple[str, int], ...]
    double_buffered: bool
    variant: str

    @staticmethod
    def of(schedule: Schedule) -> ScheduleOverride:
        tiling = schedule.tiling
        split = tuple((axis.name, axis.tile) for axis in tiling.axes) if tiling else ()
        return ScheduleOverride(
            split, tiling.double_buffered if tiling else True, schedule.kernel.variant
        )
