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
class Choice:
    """How a call is to run; no tiling means on the operands where they lie."""

    kernel: Kernel
    tiling: Tiling | None
    scratch: int  # bytes

    @property
    def needed(self) -> int:
        """Bytes of the nearest memory."""
        return self.scratch + (self.tiling.near_bytes if self.tiling else 0)


@dataclass(frozen=True)
class Context:
    """A call, the storages that lie near, and the bytes that its boxes may take."""

    group: FusionGroup
    call: Call
    near: Collection[str]
    room: int
    problems: dict[tuple[bool, str], Problem] = field(
        default_factory=dict, init=False, compare=False
    )
    """What there is to choose, ahead or not, once it was asked for; see Tiler.problem."""


@dataclass(frozen=True)
class Wish:
    """A way to run a call: how far axes are split, outermost first, ahead or not, the kernel."""

    split: tuple[tuple[str, int], ...]
    ahead: bool
    variant: str

    @staticmethod
    def of(choice: Choice) -> Wish:
        tiling = choice.tiling
        split = tuple((axis.name, axis.tile) for axis in tiling.axes) if tiling else ()
        return Wish(split, tiling.ahead if tiling else True, choice.kernel.variant)
