"""Tilings of the calls of one network: the search, and the kernels and sizes of what it finds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from gradlet.ir.graph import Graph, Node, Site
from gradlet.kernels.catalogue import Kernel, candidates
from gradlet.kernels.traits import is_exact
from gradlet.ops import OPS
from gradlet.ops.base import Axis
from gradlet.planner.choice import rivals, worthwhile
from gradlet.planner.fuse.rule import FusionGroup
from gradlet.planner.model import Call
from gradlet.planner.tile.classes import (
    Part,
    all_classes,
    copyable,
    part_of,
    signature,
    tile_axis,
    view_on,
)
from gradlet.planner.tile.launches import Sizes, TileLaunches
from gradlet.planner.tile.request import Problems, cut
from gradlet.planner.tile.schedule import Schedule, ScheduleOverride, TilingRequest
from gradlet.planner.tile.search import Candidate, Operand, Problem, estimate, explored
from gradlet.planner.tile.streaming import backing_sizes, fetching, quicker, releasing
from gradlet.planner.tiling import TileAxis, TileView, Tiling
from gradlet.targets.target import Target

MOST_CLASSES = 16
DEARER = 2  # as much may be paid for tiles that the faster kernel takes


class Tiler:
    """Chooses how calls run: by an override, where there is one and it fits, else by the cost
    model."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        storage_of: Mapping[str, str],
        farthest: Collection[str],
        variants: Mapping[str, str],
        *,
        buffers: str,
        overrides: Mapping[str, ScheduleOverride] | None = None,
    ) -> None:
        self.graph, self.target, self.variants = graph, target, variants
        self.storage_of = storage_of
        self.problems = Problems(graph, target, storage_of, farthest)
        self.launches = TileLaunches(graph, target, variants, self.problems)
        self.modes = (False,) if buffers == "single" else (True, False)
        self.overrides = overrides or {}
        self._tile_axes: dict[object, TileAxis | None] = {}
        self._tile_parts: dict[object, list[Part] | None] = {}
        self._known: dict[object, list[tuple[int, Schedule]]] = {}  # with the room there was

    def choose(self, request: TilingRequest) -> Schedule:
        """The cheapest way to run a call with `room` bytes for its regions; storages in L1 are used
        where they lie. Operands that do not fit even in pieces are left where they are."""
        group, call, in_l1, room = request.group, request.call, request.in_l1, request.room
        if call.name in self.overrides:
            wished = self.realised(request, self.overrides[call.name])
            if wished is not None:
                return wished
        operands = list(self.problems.operands_of(group, call, in_l1))
        key = self._cache_key(group, call, operands)
        for given, known in self._known.setdefault(key, []):
            if known.needed <= room <= given:  # the best with more room is the best with less
                return _renamed(known, self._names(group, call))
        found = self._chosen(group, call, operands, room)
        self._known[key].append((room, found))
        return found

    def cache_key(self, request: TilingRequest) -> object:
        """What is the same for calls that have the same candidates."""
        operands = self.problems.operands_of(request.group, request.call, request.in_l1)
        alike = self._cache_key(request.group, request.call, list(operands))
        return alike, request.room, request.call.repeat, self.overrides.get(request.call.name)

    def _cache_key(
        self, group: FusionGroup, call: Call, operands: Sequence[Operand | None]
    ) -> object:
        """What is the same for calls that run in the same way."""
        first: dict[str, int] = {}
        seen = tuple(
            (operand.buffered, operand.farthest, first.setdefault(operand.storage, len(first)))
            if operand
            else None
            for operand in operands
        )
        nodes = tuple(signature(self.graph.site(node)) for node in group.nodes)
        launches = tuple((launch.kernel, launch.operands) for launch in call.whole)
        return nodes, launches, seen

    def _names(self, group: FusionGroup, call: Call) -> tuple[str, ...]:
        """Of the views that a tiling of the call has, in their order."""
        sums = (node.outputs[0] for node in (group.nodes[0], *group.beside[:1]))
        return (*call.outputs, *call.inputs, *sums)

    def _chosen(
        self, group: FusionGroup, call: Call, operands: Sequence[Operand | None], room: int
    ) -> Schedule:
        site = self.problems.site_of(group)
        buffered = sorted(
            (n for n, operand in enumerate(operands) if operand and operand.buffered),
            key=lambda n: -prod(operands[n].shape),  # type: ignore[union-attr]
        )
        tries: list[tuple[Call, Sequence[Operand | None]]] = [
            (call, operands),
            *fetching(site, call, operands, self.target.isa),
        ]
        wanted = self.variants.get(call.kernel.family)
        tries.sort(key=lambda item: (item[0].kernel.variant != wanted, not quicker(item[0], call)))
        for left in range(1, len(buffered)):
            seen = [
                replace(operand, buffered=False) if operand and n in buffered[:left] else operand
                for n, operand in enumerate(operands)
            ]
            tries.append((call, seen))
        others = rivals(self._candidates(call))
        for own, given in tries:
            for double_buffered in self.modes:
                kernels = others if others and own is call else [None]
                found = [
                    self._tiled(group, own, site, given, room, double_buffered, kernel)
                    for kernel in kernels
                ]
                if able := [schedule for schedule in found if schedule is not None]:
                    return min(able, key=lambda schedule: schedule.cost)
        return Schedule(call.kernel, None, 0)

    def _candidates(self, call: Call) -> list[Kernel]:
        """For the whole node, plainest first; some may not take the sizes of a tile."""
        kernel = call.kernel
        sizes, isa = call.sizes, self.target.isa
        found = candidates(kernel.family, kernel.mode, kernel.epilogue, sizes, isa, kernel.dtype)
        return worthwhile(found, sizes, call.macs, self.target)

    def fetchers(self, request: TilingRequest) -> list[str]:
        """Variants that fetch an operand of this call themselves."""
        operands = self.problems.operands_of(request.group, request.call, request.in_l1)
        site = self.problems.site_of(request.group)
        found = fetching(site, request.call, operands, self.target.isa)
        return [call.kernel.variant for call, _ in found]

    def _seen(self, request: TilingRequest, variant: str) -> tuple[Call, Sequence[Operand | None]]:
        """The call and its operands as a variant sees them."""
        operands = self.problems.operands_of(request.group, request.call, request.in_l1)
        site = self.problems.site_of(request.group)
        for call, seen in fetching(site, request.call, operands, self.target.isa):
            if call.kernel.variant == variant:
                return call, seen
        call = request.call
        if variant in self.variants_of(call):
            call = call.by(replace(call.kernel, variant=variant))
        return call, releasing(call, operands)

    def realised(self, request: TilingRequest, override: ScheduleOverride) -> Schedule | None:
        """An override as a schedule, if it can be done as it asks."""
        problem = self.problem(request, override.double_buffered, override.variant)
        numbers = {axis.name: number for number, axis in enumerate(problem.axes)}
        if any(name not in numbers for name, _ in override.split):
            return None
        tile = [axis.size for axis in problem.axes]
        for name, size in override.split:
            tile[numbers[name]] = size
        found = estimate(problem, tuple(tile))
        found = replace(found, order=tuple(numbers[name] for name, _ in override.split))
        if found.wrong:
            return None
        site = self.problems.site_of(request.group)
        call, operands = self._seen(request, override.variant)
        made = self._made(request.group, call, site, operands, problem, found, override.variant)
        if isinstance(made, str) or made.kernel.variant != override.variant:
            return None
        needed = made.scratch + (made.tiling.l1_bytes if made.tiling else 0)
        return made if needed <= request.room else None

    def problem(self, request: TilingRequest, double_buffered: bool, variant: str = "") -> Problem:
        """What there is to choose for a call with all operands from backing memory in views,
        but for those that the variant fetches itself."""
        key = double_buffered, variant
        if key not in request.problems:
            site = self.problems.site_of(request.group)
            call, operands = self._seen(request, variant)
            found = self.problems.problem_of(
                request.group, call, site, operands, set(), double_buffered
            )
            request.problems[key] = found
        return request.problems[key]

    def variants_of(self, call: Call) -> list[str]:
        """Those of kernels for the whole node, plainest first."""
        return list(dict.fromkeys(kernel.variant for kernel in self._candidates(call)))

    def inexact(self, call: Call) -> list[str]:
        """Those of them that round more than plain sums do."""
        return [kernel.variant for kernel in self._candidates(call) if not is_exact(kernel)]

    def _tiled(
        self,
        group: FusionGroup,
        call: Call,
        site: Site,
        operands: Sequence[Operand | None],
        room: int,
        double_buffered: bool,
        kernel: Kernel | None = None,
    ) -> Schedule | None:
        """With this kernel, if one is given, else with the best for the tiles."""
        refused: set[str] = set()
        variant = kernel.variant if kernel else ""
        call = call.by(kernel) if kernel else call
        operands = releasing(call, operands)
        while True:
            problem = self.problems.problem_of(
                group, call, site, operands, refused, double_buffered
            )
            found = explored(problem, room)
            if not found:
                return None
            made = self._made(group, call, site, operands, problem, found[0], variant)
            if isinstance(made, str):
                refused.add(made)
                continue
            if made.kernel.variant != call.kernel.variant:
                given = (group, call, site, operands, problem)
                made = self._as_the_whole(given, found, room) or made
            if made.needed <= room:
                return made
            room -= made.needed - room
            if room <= 0:
                return None

    def _as_the_whole(
        self,
        given: tuple[FusionGroup, Call, Site, Sequence[Operand | None], Problem],
        found: Sequence[Candidate],
        room: int,
    ) -> Schedule | None:
        """The best tiling that does not cost much more than the first, and has tiles of such sizes
        that the kernel of the whole takes them; others are much slower."""
        for candidate in found[1:]:
            if candidate.cost > DEARER * found[0].cost:
                return None
            made = self._made(*given, candidate)
            if isinstance(made, str) or made.needed > room:
                continue
            if made.kernel.variant == given[1].kernel.variant:
                return made
        return None

    def _made(
        self,
        group: FusionGroup,
        call: Call,
        site: Site,
        operands: Sequence[Operand | None],
        problem: Problem,
        found: Candidate,
        variant: str = "",
    ) -> Schedule | str:
        """The tiling in full, or the name of an axis that cannot be split after all."""
        tiles = self._split(site, problem, found)
        if isinstance(tiles, str):
            return tiles
        parts = self._parts(site, tuple(tiles))
        if parts is None:
            return tiles[-1].name
        known = backing_sizes(site, call.kernel)
        sizes: Sizes = tuple({**part.sizes, **known} for part in parts)
        sizes = sizes if cut(group) else (call.sizes,)
        summed = any(axis.reduction for axis in tiles)
        kernel, more = self.launches.kernels(call, sizes, summed, variant)
        if kernel is None:
            return next(axis.name for axis in tiles if axis.reduction or axis is tiles[-1])
        places = {number: place for place, number in enumerate(found.order)}
        sums = []
        if summed and problem.gradient:
            sums = [problem.gradient]
            sums += [_partial_sum(operands[call.own_outputs], n) for n in group.beside[:1]]
        views = tuple(
            view_on(operand, places, tiles, problem.double_buffered) if operand else None
            for operand in (*operands, *sums)
        )
        if not _copyable(views, tiles, anywhere=bool(known)):
            return tiles[-1].name
        tiling = Tiling(tuple(tiles), views, problem.double_buffered)
        launches = call.by(kernel).whole
        if cut(group):
            launches = self.launches.of(group, call, tiling, (kernel, more), parts, sizes)
        scratch = max(self.problems.scratch(kernel, item) for item in sizes)
        return Schedule(kernel, replace(tiling, launches=launches), scratch, found.cost)

    def _split(self, site: Site, problem: Problem, found: Candidate) -> list[TileAxis] | str:
        """The axes that are split, outermost first, or the name of one that cannot be."""
        tiles = []
        for number in found.order:
            axis = problem.axes[number]
            made = self._tile_axis(site, axis, found.tile[number])
            if made is None:
                return axis.name
            tiles.append(made)
        if prod(axis.class_count for axis in tiles) > MOST_CLASSES:
            return max(tiles, key=lambda axis: axis.class_count).name
        return tiles

    def _tile_axis(self, site: Site, axis: Axis, tile: int) -> TileAxis | None:
        key = signature(site), axis.name, tile
        if key not in self._tile_axes:
            self._tile_axes[key] = tile_axis(OPS[site.node.op], site, axis, tile)
        return self._tile_axes[key]

    def _parts(self, site: Site, tiles: tuple[TileAxis, ...]) -> list[Part] | None:
        """Of every class of tiles; None if no node computes some of them."""
        key = signature(site), tiles
        if key not in self._tile_parts:
            parts = [
                part_of(OPS[site.node.op], site, tiles, tile_class)
                for tile_class in all_classes(tiles)
            ]
            made = [part for part in parts if part is not None]
            self._tile_parts[key] = made if len(made) == len(parts) else None
        return self._tile_parts[key]


def _copyable(
    views: Sequence[TileView | None], tiles: Sequence[TileAxis], *, anywhere: bool
) -> bool:
    """Whether all that these see can be copied, or be used where it lies. anywhere: what the kernel
    fetches itself may have any form."""
    return all(copyable(w, tiles, anywhere=w.fetched and anywhere) for w in views if w)


def _partial_sum(result: Operand | None, node: Node) -> Operand:
    """Where a sum over tiles that is made beside adds up, before it goes to this result."""
    assert result is not None
    local = replace(result, tensor=node.outputs[0], load=False, store=False)
    return replace(local, buffered=True, storage="")


def _renamed(schedule: Schedule, names: Sequence[str]) -> Schedule:
    if schedule.tiling is None:
        return schedule
    views = tuple(
        replace(view, tensor=name, buffer=name if view.buffer else "") if view else None
        for view, name in zip(schedule.tiling.views, names, strict=False)
    )
    return replace(schedule, tiling=replace(schedule.tiling, views=views))
