"""The cost model: cycles of a call in tiles of a size, by the constants of the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from gradlet.planner.tile.balance import Shares, shares
from gradlet.planner.tiling import lines_of
from gradlet.targets.cost import Cost

if TYPE_CHECKING:
    from gradlet.planner.tile.search import Operand, Problem


@dataclass(frozen=True)
class Cycles:
    """Computing and copying at the same time, and what is beside both."""

    computing: float
    copying: float
    beside: float

    @property
    def total(self) -> float:
        return max(self.computing, self.copying) + self.beside


@dataclass(frozen=True)
class CostModel:
    """counts: of tiles along each axis. operands: those of the problem, and the sum of a gradient
    that only tiles of it have. scratch: bytes. busiest: cycles of the core that has the most to do
    in a tile, if the kernel knows them."""

    problem: Problem
    tile: tuple[int, ...]
    counts: Sequence[int]
    operands: Sequence[Operand]
    constants: Cost
    scratch: int
    busiest: float

    def cycles(self, loops: Sequence[int]) -> float:
        """With the axes that are split in this order, outermost first."""
        return self.parts(loops).total

    def parts(self, loops: Sequence[int]) -> Cycles:
        """The first regions come in before anything is computed, the last ones go out after."""
        constants, copying = self.constants, self._copying(loops)
        beside = prod(self.counts) * self._each_tile + constants.call + self.ends
        if self.problem.double_buffered:
            return Cycles(self._computing, copying, beside)
        return Cycles(0.0, 0.0, self._computing + copying + beside)

    @cached_property
    def ends(self) -> float:
        """Of the first regions in and the last ones out."""
        return sum(copy.both for copy in self._copies)

    @cached_property
    def _computing(self) -> float:
        problem, constants, cores = self.problem, self.constants, self.problem.cores
        tiles = prod(self.counts)
        work = tiles * self.busiest
        if not work:
            each = constants.word_of_macs if problem.macs else constants.word
            work = problem.macs * constants.mac + problem.words * each
            work *= self._shares.uneven / cores
            if problem.macs:
                work += tiles * (constants.mac_start + constants.run * self._shares.runs)
        sums = prod(n for n, axis in zip(self.counts, problem.axes, strict=True) if axis.reduction)
        again = (sums - 1) * prod(problem.operands[0].shape)
        return work + again * constants.add / cores

    def _copying(self, loops: Sequence[int]) -> float:
        """Of all regions but the first in and the last out; one that no loop further inside moves
        stays where it is. The two directions go on side by side, but to the farthest memory there
        is one way for both."""
        inward = outward = farthest = 0.0
        farthest_in = farthest_out = 0
        for copy in self._copies:
            operand, places = copy.operand, copy.operand.moves(loops)
            again = prod(self.counts[n] for n in loops[: places[-1] + 1]) - 1 if places else 0
            inward += again * copy.cycles * operand.load
            outward += again * copy.cycles * operand.store
            farthest += again * copy.both * operand.farthest
            farthest_in += again * copy.bytes * (operand.farthest and operand.load)
            farthest_out += again * copy.bytes * (operand.farthest and operand.store)
        less, more = sorted((inward, outward))
        farthest += self.constants.farthest_turn * min(farthest_in, farthest_out)
        return max(more + self.constants.both * less, farthest)

    @property
    def _each_tile(self) -> float:
        """Of a tile besides computing."""
        planes = max((copy.planes for copy in self._copies), default=1)
        return self.constants.tile + self.constants.command * (planes - 1)

    @cached_property
    def _copies(self) -> list[_Copy]:
        copied = [o for o in self.operands if o.buffered and (o.load or o.store)]
        return [self._copy(operand) for operand in copied]

    @cached_property
    def _shares(self) -> Shares:
        return shares(self.problem, self.tile)

    def _copy(self, operand: Operand) -> _Copy:
        ranges = tuple((0, wide) for wide, _ in operand.extents(self.tile, self.problem.axes))
        elements, constants = prod(wide for _, wide in ranges), self.constants
        found = lines_of(operand.shape, ranges, operand.item)
        lines, planes = (found.lines * found.planes, found.planes) if found else (elements, 1)
        byte, line = (
            (constants.farthest_byte, constants.farthest_line)
            if operand.farthest
            else (constants.backing_byte, constants.backing_line)
        )
        size = elements * operand.item
        return _Copy(operand, size, size * byte + line * lines, planes)


@dataclass(frozen=True)
class _Copy:
    """Of a region: cycles one way, and the planes of lines that it is made of."""

    operand: Operand
    bytes: int
    cycles: float
    planes: int

    @property
    def both(self) -> float:
        """Cycles of what is done with it: in, out or both."""
        return self.cycles * (self.operand.load + self.operand.store)
