"""Which candidates of a call are measured, and which of them is taken.

The cost model of the planner ranks all. Its own schedule is measured first, then the best of every
kind and the best of the rest, then, in some rounds, neighbours of the quickest: by turns of
some and of the very best, so that no direction is forgotten that the model thinks little of. An
exhaustive search measures all. A candidate that turns out to be slower than the best known before,
and by more than a little, is not measured to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nsmallest
from itertools import islice
from statistics import median

from gradlet.ir.graph import Graph
from gradlet.planner.model import Call
from gradlet.planner.planner import ScheduleOverride, Tiler, TilingRequest
from gradlet.planner.tile.schedule import Schedule
from gradlet.planner.tile.search import (
    Candidate,
    Problem,
    along_one_axis,
    explored,
    grid,
    neighbours,
)
from gradlet.planner.tiling import TileView, Tiling
from gradlet.tuner.measure import UNLIMITED, Job
from gradlet.tuner.program import Function, functions_of

SLOW = 1.2
"""A candidate is given up when it has taken so many times the cycles of the best before."""
LEADERS = 3
"""The neighbours of so many of the quickest are tried."""
PORTION = 32
"""An exhaustive search measures so many of the best estimated first, for a good limit."""
DOUBTED = 2.0
"""So many times its estimate is expected of what is like nothing that was measured."""
TRIES = 8
"""So many candidates are looked at for one that a kernel can do."""


@dataclass(frozen=True)
class Kind:
    """Kernels that share a problem: seen_by is the one whose scratch and cost it has, or ""."""

    seen_by: str
    variants: tuple[str, ...]
    doubted: bool = False


@dataclass(frozen=True)
class Settings:
    """keep: how many of the candidates of a call estimated best are measured (K_T). rounds:
    how often the neighbours of the best are tried after that, `around` of them at a time. tiles: an
    exhaustive search looks at all tilings of at most so many tiles, or four times those of the
    planner's schedule."""

    keep: int = 12
    rounds: int = 5
    around: int = 4
    exhaustive: bool = False
    tiles: int = 64


@dataclass
class Search:
    """The candidates of one call, and what is known of them; cycles are None for what does not fit
    or is far too slow."""

    call: Call
    tiler: Tiler
    request: TilingRequest | None
    settings: Settings
    graph: Graph
    estimated: dict[ScheduleOverride, float] = field(default_factory=dict)
    jobs: dict[ScheduleOverride, Job] = field(default_factory=dict)
    cycles: dict[ScheduleOverride, int | None] = field(default_factory=dict)
    tiles: dict[ScheduleOverride, tuple[int, ...]] = field(default_factory=dict)
    rounds: Iterator[list[ScheduleOverride]] | None = None
    most: int = 0

    def wanted(self) -> list[ScheduleOverride]:
        """What is to be measured next; nothing when the search is over."""
        if self.rounds is None:
            self.rounds = filter(None, self._rounds())
        return next(self.rounds, [])

    def functions(self) -> set[Function]:
        """All that its candidates may call: they differ by kernel, and by whether tiles add up."""
        found: set[Function] = set()
        if self.request is None:
            return found  # the first round has all
        axes = self.tiler.problem(self.request, False).axes
        sums = {axis.name for axis in axes if axis.reduction}
        left: dict[object, int] = {}
        for override in self._first:
            kind = override.variant, any(name in sums for name, _ in override.split)
            left.setdefault(kind, TRIES)
            if left[kind] > 0:
                made = self._functions(self._schedule(override))
                left[kind] = 0 if made else left[kind] - 1
                found |= set(made.values() if made else ())
        return found

    @property
    def limit(self) -> int:
        """Cycles after which a candidate is given up."""
        best = self.best()
        return int(SLOW * (self.cycles[best] or 0)) if best else UNLIMITED

    @property
    def left(self) -> int:
        """Candidates that may be measured after those of this round."""
        return max(0, self.most - len(self.jobs))

    def best(self) -> ScheduleOverride | None:
        """The quickest of those that were measured."""
        return next(iter(self._quickest(1)), None)

    def _quickest(self, count: int) -> list[ScheduleOverride]:
        fit = {override: cycles for override, cycles in self.cycles.items() if cycles is not None}
        return nsmallest(count, fit, key=lambda override: (fit[override], str(override)))

    def _rounds(self) -> Iterator[list[ScheduleOverride]]:
        if self.request is None:
            yield self._in_place()
            return
        own = self.tiler.choose(self.request)
        if self.settings.exhaustive:
            ranked = self._all(own.tiling.count if own.tiling else 1)
            self.most = len(ranked)
            for most in (1, PORTION, len(ranked)):
                yield self._able([*self._as_override(own), *ranked], most)
            return
        keep, around = self.settings.keep, self.settings.around
        self.most = keep + self.settings.rounds * around
        yield self._able(self._as_override(own), 1)
        yield self._able(self._first, keep - len(self.jobs))
        for number in range(self.settings.rounds):
            leaders = self._quickest(1 if number % 2 else LEADERS)
            yield self._able(self._around(leaders), around)

    def _as_override(self, schedule: Schedule) -> list[ScheduleOverride]:
        return [ScheduleOverride.of(schedule)] if schedule.tiling else []

    def _able(self, overrides: Iterable[ScheduleOverride], most: int) -> list[ScheduleOverride]:
        """The first of them that are new and can be done."""
        new = (override for override in overrides if override not in self.jobs)
        return list(islice((override for override in new if self.job(override)), most))

    def _all(self, tiles: int) -> list[ScheduleOverride]:
        """All of the space, the best estimated first."""
        assert self.request is not None
        most, found = max(self.settings.tiles, 4 * tiles), []
        for problem, kind in self._problems():
            found += self._overrides(problem, grid(problem, self.request.room, most), kind)
        return _ranked(found)

    @cached_property
    def _first(self) -> list[ScheduleOverride]:
        """The best of each kind, then the best of the rest."""
        assert self.request is not None
        found: list[tuple[float, ScheduleOverride]] = []
        for problem, kind in self._problems():
            room = self.request.room
            candidates = [*explored(problem, room), *along_one_axis(problem, room)]
            found += self._overrides(problem, candidates, kind)
        ranked = _ranked(found)
        return [*_best_of_each_kind(ranked), *ranked]

    def _problems(self) -> Iterator[tuple[Problem, Kind]]:
        """What there is to choose, in each buffer mode: with all kernels that see operands in
        backing memory through views, with each of these whose scratch and cost are of its own kind,
        and with each that fetches some operands itself."""
        assert self.request is not None
        variants, own = self.tiler.variants_of(self.call), self.tiler.inexact(self.call)
        plain = [variant for variant in variants if variant not in own]
        kinds = [
            Kind(
                plain[-1] if own else "", tuple(plain if self.settings.exhaustive else plain[-2:])
            ),
            *(Kind(variant, (variant,)) for variant in own),
            *(Kind(f, (f,), doubted=True) for f in self.tiler.fetchers(self.request)),
        ]
        for kind in kinds:
            for double_buffered in self.tiler.modes:
                yield self.tiler.problem(self.request, double_buffered, kind.seen_by), kind

    def _overrides(
        self, problem: Problem, candidates: Iterable[Candidate], kind: Kind
    ) -> list[tuple[float, ScheduleOverride]]:
        """With every kernel; those further down the catalogue are thought to be quicker, and those
        that fetch operands themselves slower."""
        found = []
        for candidate in candidates:
            split = tuple((problem.axes[n].name, candidate.tile[n]) for n in candidate.order)
            for rank, variant in enumerate(reversed(kind.variants)):
                override = ScheduleOverride(split, problem.double_buffered, variant)
                self.estimated[override] = candidate.cost
                self.tiles[override] = candidate.tile
                found.append((candidate.cost * (1 + rank + kind.doubted), override))
        return found

    def _around(self, leaders: Iterable[ScheduleOverride]) -> list[ScheduleOverride]:
        """Their neighbours, in each buffer mode; what is expected to be quickest first."""
        assert self.request is not None
        found: list[ScheduleOverride] = []
        tiles = dict.fromkeys(
            self.tiles[override] for override in leaders if override in self.tiles
        )
        for problem, kind in self._problems():
            for tile in tiles:
                steps = neighbours(problem, tile, self.request.room)
                found += [override for _, override in self._overrides(problem, steps, kind)]
        expected = self._expected(found)
        return sorted(expected, key=lambda override: (expected[override], str(override)))

    def _expected(self, overrides: Iterable[ScheduleOverride]) -> dict[ScheduleOverride, float]:
        """The estimate, set right by what was measured of those that are most alike."""
        ratios: dict[object, list[float]] = {}
        for override, cycles in self.cycles.items():
            if cycles and override in self.estimated:
                for kind in _classes_of(override):
                    ratios.setdefault(kind, []).append(cycles / self.estimated[override])
        off = {kind: median(found) for kind, found in ratios.items()}
        unknown = DOUBTED * median(off.values()) if off else 1.0
        return {
            override: self.estimated[override]
            * next(filter(None, map(off.get, _classes_of(override))), unknown)
            for override in overrides
        }

    def _in_place(self) -> list[ScheduleOverride]:
        """All operands in L1: only the kernel is to be chosen."""
        overrides = [
            ScheduleOverride((), True, variant) for variant in self.tiler.variants_of(self.call)
        ]
        return self._able(overrides, len(overrides))

    def job(self, override: ScheduleOverride) -> Job | None:
        schedule = self._schedule(override)
        functions = self._functions(schedule)
        if schedule is None or schedule.tiling is None or functions is None:
            return None
        tiling = schedule.tiling
        in_l1 = tuple(
            w is not None and (self.request is None or self._is_in_l1(w)) for w in tiling.views
        )
        sizes = tuple(
            self.graph.tensors[w.tensor].bytes if w and w.tensor else 0 for w in tiling.views
        )
        farthest = tuple(n for n, w in enumerate(tiling.views) if w and self._is_farthest(w))
        self.jobs[override] = Job(
            schedule.kernel,
            tiling,
            self.call.repeat,
            functions,
            in_l1,
            sizes,
            schedule.scratch,
            farthest,
        )
        return self.jobs[override]

    def _functions(self, schedule: Schedule | None) -> dict[str, Function] | None:
        if schedule is None or schedule.tiling is None:
            return None
        return functions_of(schedule.tiling)

    def _is_in_l1(self, view: TileView) -> bool:
        assert self.request is not None
        return self.tiler.storage_of.get(view.tensor, "") in self.request.in_l1

    def _is_farthest(self, view: TileView) -> bool:
        return self.tiler.storage_of.get(view.tensor, "") in self.tiler.problems.farthest

    def _schedule(self, override: ScheduleOverride) -> Schedule | None:
        if self.request is not None:
            return self.tiler.realised(self.request, override)
        call = self.call.by(replace(self.call.kernel, variant=override.variant))
        views = tuple(
            TileView(tensor.name, tensor.shape, tensor.element.bytes, ()) if tensor else None
            for tensor in (self.graph.tensors.get(name) for name in call.operands)
        )
        tiling = Tiling((), views, True, call.whole)
        return Schedule(call.kernel, tiling, self.tiler.problems.scratch(call.kernel, call.sizes))


def _ranked(estimated: Iterable[tuple[float, ScheduleOverride]]) -> list[ScheduleOverride]:
    """Each once, the best estimated first."""
    order = sorted(estimated, key=lambda item: (item[0], str(item[1])))
    return list(dict.fromkeys(override for _, override in order))


def _best_of_each_kind(ranked: Iterable[ScheduleOverride]) -> list[ScheduleOverride]:
    """In their order, those that are the first to split these axes, or to run in that way."""
    found, seen = [], set[object]()
    for override in ranked:
        kinds = {
            frozenset(name for name, _ in override.split),
            (override.variant, override.double_buffered),
        }
        if kinds - seen:
            seen |= kinds
            found.append(override)
    return found


def _classes_of(override: ScheduleOverride) -> tuple[object, object]:
    """The kinds that it is of, the narrower first: kernel, buffers and the axes that are split."""
    way = (override.variant, override.double_buffered)
    return (*way, frozenset(name for name, _ in override.split)), way
