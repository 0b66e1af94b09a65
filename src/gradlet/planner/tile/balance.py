"""How evenly the cores share a tile.

They share units of the result: lines, as many at a time as the register block has along
their axis, and parts of lines where it is wider than one element. The lines of the last axis but
that of the elements are neighbours in this order. Dimensions that are no axis are not shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradlet.planner.tile.search import Problem


@dataclass(frozen=True)
class Shares:
    """uneven: how much longer the core with the most work takes than if all had the same.
    runs: how many stretches of neighbouring lines a core has."""

    uneven: float
    runs: int


def shares(problem: Problem, tile: Sequence[int]) -> Shares:
    axes, blocks, cores = problem.axes, problem.register_block, problem.cores
    last = len(problem.operands[0].shape) - 1
    dims = {number: span.dim for number, span in problem.operands[0].spans}
    steps = [-(-size // block) for size, block in zip(tile, blocks, strict=True)]
    lines = [n for n, dim in dims.items() if dim != last or not last]
    parts = [n for n in dims if n not in lines and blocks[n] > 1]
    units = prod(steps[n] for n in (*lines, *parts))
    each = -(-units // cores)
    uneven, runs = each * cores / units, 1
    if lines:
        innermost = max(lines, key=lambda n: dims[n])
        done, size = problem.done[innermost], tile[innermost]
        runs = -(-each // steps[innermost])
        if blocks[innermost] == 1 and done[-1] < len(done) - 1:
            uneven = _longest(done, size, units, cores) / (done[-1] * units / size)
    for axis, block, size in zip(axes, blocks, tile, strict=True):
        uneven *= _padded(size, block) / _padded(axis.size, block)
    return Shares(uneven, runs)


def work_before(problem: Problem, number: int) -> tuple[float, ...]:
    """The work of all lines of an axis before each, and of all: 1 for a line, less where its taps
    meet padding and nothing of their operand. Steps of several lines are taken for equal."""
    lines = [1.0] * problem.axes[number].size
    single = all(span.extent == 1 for own, span in problem.operands[0].spans if own == number)
    for operand in problem.operands if single else ():
        for own, span in operand.spans:
            if own == number and span.extent > 1:
                met = (span.inside(at, operand.shape[span.dim]) for at in range(len(lines)))
                lines = [min(old, new / span.extent) for old, new in zip(lines, met, strict=True)]
    return tuple(accumulate(lines, initial=0.0))


def _padded(size: int, block: int) -> float:
    """What is paid for a step, on the average."""
    return -(-size // block) * block / size


def _longest(done: Sequence[float], size: int, units: int, cores: int) -> float:
    """What all cores would do in the time of those with the most work, tile by tile along the lines
    of an axis. All tiles but the first and the last are alike."""
    count = -(-(len(done) - 1) // size)
    each = -(-units // cores)
    bounds = [min(core * each, units) for core in range(cores + 1)]

    def longest(first: int) -> float:
        own = done[first : first + size + 1]
        if len(own) - 1 < size:  # the last may be shorter
            return (own[-1] - own[0]) * units / (len(own) - 1) / cores
        sums = [at // size * (own[-1] - own[0]) + own[at % size] - own[0] for at in bounds]
        return max(end - start for start, end in pairwise(sums))

    total = longest(0)
    if count > 1:
        total += longest((count - 1) * size)
    if count > 2:
        total += longest(size) * (count - 2)
    return cores * total
