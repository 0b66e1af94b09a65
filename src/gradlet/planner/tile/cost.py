"""The cost model: cycles of a call in tiles of a size, by the constants of the target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from gradlet.planner.tile.balance import Shares, shares
from gradlet.planner.tiling import lines_of

if TYPE_CHECKING:
    from gradlet.planner.tile.search import Operand, Problem

WORD = 4


class CostModel:
    """The larger of computing and copying, what nothing hides of the copying, and what every tile
    takes besides.

    counts: of tiles along each axis. operands: those of the problem, and the sum of a gradient that
    only tiles of it have. busiest: cycles of the core that has the most to do in a tile, if the
    kernel knows them.
    """

    def __init__(
        self,
        problem: Problem,
        tile: Sequence[int],
        counts: Sequence[int],
        operands: Sequence[Operand],
        busiest: float,
    ) -> None:
        self.problem, self.tile, self.counts = problem, tuple(tile), counts
        self.busiest = busiest
        self.constants, self.tiles = problem.constants, prod(counts)
        copied = [o for o in operands if o.windowed and (o.load or o.store)]
        self.copies = [_Copy(operand, problem, self.tile) for operand in copied]

    def cycles(self, loops: Sequence[int]) -> float:
        """With the axes that are split in this order, outermost first."""
        compute, transfer, visible = self.compute, self.transfer(loops), self.visible
        if self.problem.double_buffered and self.tiles > 1:
            hidden = max(compute, transfer)
        else:
            hidden = compute + transfer
        if not self.problem.double_buffered:
            visible = transfer
        constants = self.constants
        return hidden + constants.visible * visible + self.tiles * self.besides + constants.call

    @cached_property
    def compute(self) -> float:
        problem, shared = self.problem, self._shares
        work = self.tiles * self.busiest or problem.work * shared.uneven
        sums = prod(n for n, axis in zip(self.counts, problem.axes, strict=True) if axis.reduction)
        again = (sums - 1) * prod(problem.operands[0].shape)
        return work + again * self.constants.add / problem.cores

    def transfer(self, loops: Sequence[int]) -> float:
        """Of all boxes; one that no loop further inside moves stays where it is."""
        total = 0.0
        for copy in self.copies:
            places = copy.operand.moves(loops)
            times = prod(self.counts[number] for number in loops[: places[-1] + 1]) if places else 1
            total += times * copy.cycles * (copy.operand.load + copy.operand.store)
        return total

    @cached_property
    def visible(self) -> float:
        """Of the first boxes in, and the last ones out."""
        return sum(copy.cycles * (copy.operand.load + copy.operand.store) for copy in self.copies)

    @cached_property
    def besides(self) -> float:
        """Of a tile."""
        constants, planes = self.constants, max((c.planes for c in self.copies), default=1)
        run = constants.run * self._shares.runs
        return constants.tile + run + constants.command * (planes - 1)

    @cached_property
    def _shares(self) -> Shares:
        return shares(self.problem, self.tile)


class _Copy:
    """Of a box: its cycles, and the planes of lines that it is made of."""

    def __init__(self, operand: Operand, problem: Problem, tile: Sequence[int]) -> None:
        ranges = tuple((0, wide) for wide, _ in operand.ranges_box(tile, problem.axes))
        elements = prod(wide for _, wide in ranges)
        found, constants = lines_of(operand.shape, ranges, WORD), problem.constants
        lines, self.planes = (found.lines * found.planes, found.planes) if found else (elements, 1)
        byte, line = (
            (constants.farthest_byte, constants.farthest_line)
            if operand.farthest
            else (constants.far_byte, constants.far_line)
        )
        self.operand, self.cycles = operand, elements * WORD * byte + line * lines
