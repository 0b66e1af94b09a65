"""The search for a tiling of one call: which axes are split, how far, in which order.

Every candidate is estimated by a rough count of cycles: the larger of computing and copying, what
cannot be hidden (the first regions in, the last ones out), and the overhead of every tile. The
search climbs from the whole node; a node costs the same whatever the size of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations, product
from math import prod

from gradlet.ir.graph import Shape
from gradlet.ops.base import Axis, Span
from gradlet.planner.tile.balance import work_before
from gradlet.planner.tile.cost import CostModel
from gradlet.planner.tiling import Range, dense, lines_of, stage_size
from gradlet.targets.cost import Cost

MOST_AXES = 4
MOST_TILES = 1000  # along an axis: their offsets are in the table, where offsets have 16 bits
STEPS = 24
CLIMBS = 60


@dataclass(frozen=True)
class Operand:
    """A tensor that a call touches: through a view, if it is in backing memory, or in place."""

    tensor: str
    shape: Shape
    item: int  # bytes of an element
    spans: tuple[tuple[int, Span], ...]  # number of the axis in Problem.axes
    load: bool
    store: bool
    buffered: bool
    once: bool = False
    storage: str = ""
    farthest: bool = False  # it lies in the memory behind that of the program
    fetched: bool = False  # by the kernel itself, from where it lies
    anywhere: bool = False  # and that from regions of any form: it knows the extents of the whole
    beside: bool = False  # made beside the call's own result, by the first tiles of some axes alone
    released: bool = False  # only the first step of a kernel reads it

    def extents(self, tile: Sequence[int], axes: Sequence[Axis]) -> Iterator[tuple[int, int]]:
        """The extent of each dimension in a full tile, and of the whole."""
        extents = list(self.shape)
        for number, span in self.spans:
            if tile[number] < axes[number].size:
                wide = (tile[number] - 1) * span.step + span.extent
                extents[span.dim] = min(extents[span.dim], wide)
        return zip(extents, self.shape, strict=True)

    def moves(self, split: Sequence[int]) -> list[int]:
        """Positions in the order of loops whose steps change the region."""
        own = {number for number, _ in self.spans}
        return [place for place, number in enumerate(split) if number in own]


@dataclass(frozen=True)
class Problem:
    axes: tuple[Axis, ...]
    register_block: tuple[int, ...]  # steps along each axis that fast kernels take at a time
    operands: tuple[Operand, ...]
    macs: int
    cores: int
    constants: Cost
    double_buffered: bool
    kernel: Callable[[Sequence[int], Cost], tuple[int, float]] = lambda tile, constants: (0, 0.0)
    """Bytes of scratch, and cycles of the busiest core on tiles of these sizes; 0: as the
    multiply-adds of the node say."""
    tileable: tuple[bool, ...] = ()
    gradient: Operand | None = None  # where tiles of a fused gradient add up, if they are split
    estimated: dict[tuple[int, ...], Candidate] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @cached_property
    def ladders(self) -> tuple[tuple[int, ...], ...]:
        """Tile sizes worth trying along each axis, from the whole axis down."""
        return tuple(
            ladder(axis.size) if free else (axis.size,)
            for axis, free in zip(self.axes, self.tileable, strict=True)
        )

    @cached_property
    def done(self) -> tuple[tuple[float, ...], ...]:
        """Along each axis, the work of the lines before; see balance.py."""
        return tuple(work_before(self, number) for number in range(len(self.axes)))

    @cached_property
    def words(self) -> int:
        return sum(prod(operand.shape) for operand in self.operands)


@dataclass(frozen=True)
class Candidate:
    """Tile sizes of all axes, and the split axes in the order of their loops."""

    tile: tuple[int, ...]
    order: tuple[int, ...] = ()
    bytes: int = 0
    wrong: int = 0  # operands that cannot be seen so
    cost: float = 0.0

    def rank(self, room: int) -> tuple[float, ...]:
        return (self.wrong, max(0, self.bytes - room), self.cost)


def ladder(size: int) -> tuple[int, ...]:
    """Even divisions: the whole, halves, thirds, ... and single steps."""
    found: list[int] = []
    parts = 1
    while parts < size and len(found) < STEPS - 1:
        found.append(-(-size // parts))
        parts = max(parts + 1, parts * 5 // 4)
    return tuple(dict.fromkeys([*found, 1]))


def explored(problem: Problem, room: int) -> list[Candidate]:
    """What the search has seen and fits, the best first."""
    known: dict[tuple[int, ...], Candidate] = {}
    for start in _starts(problem):
        _climb(problem, start, room, known)
    return _fitting(known.values(), room)


def grid(problem: Problem, room: int, most: int) -> list[Candidate]:
    """All combinations of sizes of the ladders that make at most so many tiles and fit; the best
    first."""
    sizes = [axis.size for axis in problem.axes]

    def tiles(tile: tuple[int, ...]) -> int:
        return prod(-(-size // part) for size, part in zip(sizes, tile, strict=True))

    few = (tile for tile in product(*problem.ladders) if tiles(tile) <= most)
    return _fitting((estimate(problem, tile) for tile in few), room)


def along_one_axis(problem: Problem, room: int) -> list[Candidate]:
    """Only one axis is split; the best first."""
    whole = [steps[0] for steps in problem.ladders]
    tiles = [
        (*whole[:number], size, *whole[number + 1 :])
        for number, steps in enumerate(problem.ladders)
        for size in steps
    ]
    return _fitting((estimate(problem, tile) for tile in dict.fromkeys(tiles)), room)


def neighbours(problem: Problem, tile: tuple[int, ...], room: int) -> list[Candidate]:
    """Twice or half the tile along an axis, twice along one for less along another, and steps up or
    down the ladders; the best first."""
    ladders = problem.ladders
    rungs = tuple(steps.index(size) for steps, size in zip(ladders, tile, strict=True))
    around = {
        tuple(s[r] for s, r in zip(ladders, at, strict=True)) for at in _neighbours(problem, rungs)
    }
    for number, (steps, size) in enumerate(zip(ladders, tile, strict=True)):
        for wide in (2 * size, -(-size // 2)):
            nearest = min(steps, key=lambda step: abs(step - wide))
            around.add((*tile[:number], nearest, *tile[number + 1 :]))
    around |= set(_traded(problem, tile, room))
    return _fitting((estimate(problem, sizes) for sizes in sorted(around)), room)


def _traded(problem: Problem, tile: tuple[int, ...], room: int) -> Iterator[tuple[int, ...]]:
    """Twice the tile along one axis, and as much less along another as it takes to fit."""
    for wide, narrow in permutations(range(len(tile)), 2):
        sizes = list(tile)
        sizes[wide] = min(problem.ladders[wide], key=lambda step: abs(step - 2 * tile[wide]))
        for step in problem.ladders[narrow]:
            sizes[narrow] = step
            if step < tile[narrow] and estimate(problem, tuple(sizes)).bytes <= room:
                yield tuple(sizes)
                break


def _fitting(candidates: Iterable[Candidate], room: int) -> list[Candidate]:
    fit = [c for c in candidates if not c.wrong and c.bytes <= room]
    return sorted(fit, key=lambda c: (c.cost, c.tile))


def _starts(problem: Problem) -> list[tuple[int, ...]]:
    """The whole, the smallest tiles, and the smallest along each axis alone."""
    whole = tuple(0 for _ in problem.axes)
    least = tuple(
        len(steps) - 1 if not axis.reduction else 0
        for steps, axis in zip(problem.ladders, problem.axes, strict=True)
    )
    alone = [(*whole[:n], rung, *whole[n + 1 :]) for n, rung in enumerate(least)]
    return list(dict.fromkeys([whole, least, *alone]))


def _climb(
    problem: Problem,
    rungs: tuple[int, ...],
    room: int,
    known: dict[tuple[int, ...], Candidate],
) -> None:
    """Move up and down the ladders, one axis or two at a time, as long as it gets better."""

    def estimated(at: tuple[int, ...]) -> Candidate:
        if at not in known:
            sizes = tuple(steps[r] for steps, r in zip(problem.ladders, at, strict=True))
            known[at] = estimate(problem, sizes)
        return known[at]

    for _ in range(CLIMBS):
        better = min(
            _neighbours(problem, rungs), key=lambda at: estimated(at).rank(room), default=None
        )
        if better is None or estimated(better).rank(room) >= estimated(rungs).rank(room):
            break
        rungs = better
    estimated(rungs)


def _neighbours(problem: Problem, rungs: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    def moved(*moves: tuple[int, int]) -> tuple[int, ...] | None:
        at = list(rungs)
        for axis, by in moves:
            at[axis] += by
            if not 0 <= at[axis] < len(problem.ladders[axis]):
                return None
        return tuple(at)

    axes = [n for n, steps in enumerate(problem.ladders) if len(steps) > 1]
    single = [moved((axis, by)) for axis in axes for by in (1, -1, 3, -3)]
    double = [moved((a, 1), (b, -1)) for a in axes for b in axes if a != b]
    yield from (at for at in (*single, *double) if at is not None)


def estimate(problem: Problem, tile: tuple[int, ...]) -> Candidate:
    """What these tile sizes take and cost, in the best order of loops; each is estimated once."""
    if tile not in problem.estimated:
        problem.estimated[tile] = _estimated(problem, tile)
    return problem.estimated[tile]


def _estimated(problem: Problem, tile: tuple[int, ...]) -> Candidate:
    counts = [-(-axis.size // t) for axis, t in zip(problem.axes, tile, strict=True)]
    free = [n for n, axis in enumerate(problem.axes) if counts[n] > 1 and not axis.reduction]
    summed = [n for n, axis in enumerate(problem.axes) if counts[n] > 1 and axis.reduction]
    model = cost_model(problem, tile)
    wrong = sum(_cannot(problem, operand, tile, counts) for operand in model.operands)
    wrong += _clashes(problem, [*free, *summed]) + max(0, len(free) + len(summed) - MOST_AXES)
    wrong += sum(count > MOST_TILES for count in counts)
    used = model.scratch
    for operand in filter(lambda operand: operand.buffered, model.operands):
        extent = prod(e for e, _ in operand.extents(tile, problem.axes))
        moves = any(counts[n] > 1 for n, _ in operand.spans)
        used += stages(operand, moves, problem.double_buffered) * stage_size(extent, operand.item)
    best: Candidate | None = None
    beside = used * problem.constants.room + model.ends * problem.constants.visible
    for order in permutations(free) if len(free) <= 3 else [tuple(free)]:
        loops = (*order, *summed)
        cost = model.cycles(loops) + beside
        if best is None or cost < best.cost:
            best = Candidate(tile, loops, used, wrong, cost)
    assert best is not None
    return best


def cost_model(problem: Problem, tile: tuple[int, ...], constants: Cost | None = None) -> CostModel:
    """Of tiles of these sizes."""
    counts = [-(-axis.size // t) for axis, t in zip(problem.axes, tile, strict=True)]
    operands, constants = list(problem.operands), constants or problem.constants
    summed = any(n > 1 and a.reduction for n, a in zip(counts, problem.axes, strict=True))
    if summed and problem.gradient is not None:
        operands.append(problem.gradient)
    return CostModel(problem, tile, counts, operands, constants, *problem.kernel(tile, constants))


def stages(operand: Operand, moves: bool, double_buffered: bool) -> int:
    """Copies of a region that are in use at a time: fetched, computed with, written back."""
    if not moves or not double_buffered or operand.released:
        return 1
    return 3 if operand.load and operand.store else 2


def _cannot(problem: Problem, operand: Operand, tile: Sequence[int], counts: Sequence[int]) -> int:
    """1 if regions of this operand can neither be copied nor be used where they lie."""
    if (
        operand.store
        and (operand.buffered or not operand.beside)
        and any(
            counts[n] > 1 and not axis.reduction and all(n != own for own, _ in operand.spans)
            for n, axis in enumerate(problem.axes)
        )
    ):
        return 1  # every tile would write all of it
    if operand.fetched and operand.anywhere:
        return 0
    region: tuple[Range, ...] = tuple((0, e) for e, _ in operand.extents(tile, problem.axes))
    if operand.buffered:
        return int(lines_of(operand.shape, region, operand.item) is None)
    return int(not dense(operand.shape, region))


def _clashes(problem: Problem, split: Sequence[int]) -> int:
    """Operands that share bytes with a result, but not region by region."""

    def seen(operand: Operand) -> list[tuple[int, int, int, int, int]]:
        return sorted((n, s.dim, s.step, s.start, s.extent) for n, s in operand.spans if n in split)

    outputs = [operand for operand in problem.operands if operand.store]
    return sum(
        seen(output) != seen(other)
        for output in outputs
        for other in problem.operands
        if other.storage == output.storage and other is not output and other.load
    )
