"""Which candidates of a call are measured, and which of them is taken.

The judgement of the planner ranks all. The planner's own choice is measured first, then the best of
every kind and the best of the rest, then, in some rounds, neighbours of the quickest: by turns of
some and of the very best, so that no direction is forgotten that the judgement thinks little of. An
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
from gradlet.planner.planner import Context, Tiler, Wish
from gradlet.planner.tile.choice import Choice
from gradlet.planner.tile.search import (
    Candidate,
    Problem,
    along_one_axis,
    explored,
    grid,
    neighbours,
)
from gradlet.planner.tiling import Tiling, Window
from gradlet.tuner.measure import UNLIMITED, Job
from gradlet.tuner.program import Function, functions_of

SLOW = 1.2
"""A candidate is given up when it has taken so many times the cycles of the best before."""
LEADERS = 3
"""The neighbours of so many of the quickest are tried."""
PORTION = 32
"""An exhaustive search measures so many of the best judged first, for a good limit."""
DOUBTED = 2.0
"""So many times its judgement is expected of what is like nothing that was measured."""
TRIES = 8
"""So many candidates are looked at for one that a kernel can do."""


@dataclass(frozen=True)
class Settings:
    """keep: how many of the best judged candidates of a call are measured (K_T). rounds: how often
    the neighbours of the best are tried after that, `around` of them at a time. tiles: an
    exhaustive search looks at all tilings of at most so many tiles, or four times those of the
    planner's choice."""

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
    context: Context | None
    settings: Settings
    graph: Graph
    judged: dict[Wish, float] = field(default_factory=dict)
    jobs: dict[Wish, Job] = field(default_factory=dict)
    cycles: dict[Wish, int | None] = field(default_factory=dict)
    tiles: dict[Wish, tuple[int, ...]] = field(default_factory=dict)
    rounds: Iterator[list[Wish]] | None = None
    most: int = 0

    def wanted(self) -> list[Wish]:
        """What is to be measured next; nothing when the search is over."""
        if self.rounds is None:
            self.rounds = filter(None, self._rounds())
        return next(self.rounds, [])

    def functions(self) -> set[Function]:
        """All that its candidates may call: they differ by kernel, and by whether tiles add up."""
        found: set[Function] = set()
        if self.context is None:
            return found  # the first round has all
        axes = self.tiler.problem(self.context, False).axes
        sums = {axis.name for axis in axes if axis.reduction}
        left: dict[object, int] = {}
        for wish in self._first:
            kind = wish.variant, any(name in sums for name, _ in wish.split)
            left.setdefault(kind, TRIES)
            if left[kind] > 0:
                made = self._functions(self._choice(wish))
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

    def best(self) -> Wish | None:
        """The quickest of those that were measured."""
        return next(iter(self._quickest(1)), None)

    def _quickest(self, count: int) -> list[Wish]:
        fit = {wish: cycles for wish, cycles in self.cycles.items() if cycles is not None}
        return nsmallest(count, fit, key=lambda wish: (fit[wish], str(wish)))

    def _rounds(self) -> Iterator[list[Wish]]:
        if self.context is None:
            yield self._in_place()
            return
        own = self.tiler.choose(self.context)
        if self.settings.exhaustive:
            ranked = self._all(own.tiling.count if own.tiling else 1)
            self.most = len(ranked)
            for most in (1, PORTION, len(ranked)):
                yield self._able([*self._as_wish(own), *ranked], most)
            return
        keep, around = self.settings.keep, self.settings.around
        self.most = keep + self.settings.rounds * around
        yield self._able(self._as_wish(own), 1)
        yield self._able(self._first, keep - len(self.jobs))
        for number in range(self.settings.rounds):
            leaders = self._quickest(1 if number % 2 else LEADERS)
            yield self._able(self._around(leaders), around)

    def _as_wish(self, choice: Choice) -> list[Wish]:
        return [Wish.of(choice)] if choice.tiling else []

    def _able(self, wishes: Iterable[Wish], most: int) -> list[Wish]:
        """The first of them that are new and can be done."""
        new = (wish for wish in wishes if wish not in self.jobs)
        return list(islice((wish for wish in new if self._job(wish)), most))

    def _all(self, tiles: int) -> list[Wish]:
        """All of the space, the best judged first."""
        assert self.context is not None
        most, found = max(self.settings.tiles, 4 * tiles), []
        for problem, fetcher in self._problems():
            found += self._wishes(problem, grid(problem, self.context.room, most), fetcher)
        return _ranked(found)

    @cached_property
    def _first(self) -> list[Wish]:
        """The best of each kind, then the best of the rest."""
        assert self.context is not None
        found: list[tuple[float, Wish]] = []
        for problem, fetcher in self._problems():
            room = self.context.room
            candidates = [*explored(problem, room), *along_one_axis(problem, room)]
            found += self._wishes(problem, candidates, fetcher)
        ranked = _ranked(found)
        return [*_best_of_each_kind(ranked), *ranked]

    def _problems(self) -> Iterator[tuple[Problem, str]]:
        """What there is to choose, in each buffer mode: with all kernels that see far operands
        through windows, and with each that fetches some of them itself."""
        assert self.context is not None
        for fetcher in ("", *self.tiler.fetchers(self.context)):
            for ahead in self.tiler.modes:
                yield self.tiler.problem(self.context, ahead, fetcher), fetcher

    def _wishes(
        self, problem: Problem, candidates: Iterable[Candidate], fetcher: str
    ) -> list[tuple[float, Wish]]:
        """With every kernel; those further down the catalogue are thought to be quicker, and those
        that fetch operands themselves slower."""
        variants = [fetcher] if fetcher else self.tiler.variants_of(self.call)
        if not self.settings.exhaustive:
            variants = variants[-2:]
        found = []
        for candidate in candidates:
            split = tuple((problem.axes[n].name, candidate.tile[n]) for n in candidate.order)
            for rank, variant in enumerate(reversed(variants)):
                wish = Wish(split, problem.ahead, variant)
                self.judged[wish] = candidate.cost
                self.tiles[wish] = candidate.tile
                found.append((candidate.cost * (1 + rank + bool(fetcher)), wish))
        return found

    def _around(self, leaders: Iterable[Wish]) -> list[Wish]:
        """Their neighbours, in each buffer mode; what is expected to be quickest first."""
        assert self.context is not None
        found: list[Wish] = []
        tiles = dict.fromkeys(self.tiles[wish] for wish in leaders if wish in self.tiles)
        for problem, fetcher in self._problems():
            for tile in tiles:
                steps = neighbours(problem, tile, self.context.room)
                found += [wish for _, wish in self._wishes(problem, steps, fetcher)]
        expected = self._expected(found)
        return sorted(expected, key=lambda wish: (expected[wish], str(wish)))

    def _expected(self, wishes: Iterable[Wish]) -> dict[Wish, float]:
        """The judgement, set right by what was measured of those that are most alike."""
        ratios: dict[object, list[float]] = {}
        for wish, cycles in self.cycles.items():
            if cycles and wish in self.judged:
                for kind in _likeness(wish):
                    ratios.setdefault(kind, []).append(cycles / self.judged[wish])
        off = {kind: median(found) for kind, found in ratios.items()}
        unknown = DOUBTED * median(off.values()) if off else 1.0
        return {
            wish: self.judged[wish] * next(filter(None, map(off.get, _likeness(wish))), unknown)
            for wish in wishes
        }

    def _in_place(self) -> list[Wish]:
        """All operands near: only the kernel is to be chosen."""
        wishes = [Wish((), True, variant) for variant in self.tiler.variants_of(self.call)]
        return self._able(wishes, len(wishes))

    def _job(self, wish: Wish) -> Job | None:
        choice = self._choice(wish)
        functions = self._functions(choice)
        if choice is None or choice.tiling is None or functions is None:
            return None
        tiling = choice.tiling
        near = tuple(
            w is not None and (self.context is None or self._is_near(w)) for w in tiling.windows
        )
        sizes = tuple(
            self.graph.tensors[w.tensor].bytes if w and w.tensor else 0 for w in tiling.windows
        )
        farthest = tuple(n for n, w in enumerate(tiling.windows) if w and self._is_farthest(w))
        self.jobs[wish] = Job(
            choice.kernel,
            tiling,
            self.call.repeat,
            functions,
            near,
            sizes,
            choice.scratch,
            farthest,
        )
        return self.jobs[wish]

    def _functions(self, choice: Choice | None) -> dict[str, Function] | None:
        if choice is None or choice.tiling is None:
            return None
        return functions_of(choice.tiling)

    def _is_near(self, window: Window) -> bool:
        assert self.context is not None
        return self.tiler.storage_of.get(window.tensor, "") in self.context.near

    def _is_farthest(self, window: Window) -> bool:
        return self.tiler.storage_of.get(window.tensor, "") in self.tiler.problems.farthest

    def _choice(self, wish: Wish) -> Choice | None:
        if self.context is not None:
            return self.tiler.realised(self.context, wish)
        call = self.call.by(replace(self.call.kernel, variant=wish.variant))
        windows = tuple(
            Window(name, self.graph.tensors[name].shape, ()) if name else None
            for name in call.operands
        )
        tiling = Tiling((), windows, True, call.whole)
        return Choice(call.kernel, tiling, self.tiler.problems.scratch(call.kernel, call.sizes))


def _ranked(judged: Iterable[tuple[float, Wish]]) -> list[Wish]:
    """Each once, the best judged first."""
    order = sorted(judged, key=lambda item: (item[0], str(item[1])))
    return list(dict.fromkeys(wish for _, wish in order))


def _best_of_each_kind(ranked: Iterable[Wish]) -> list[Wish]:
    """In their order, those that are the first to split these axes, or to run in that way."""
    found, seen = [], set[object]()
    for wish in ranked:
        kinds = {frozenset(name for name, _ in wish.split), (wish.variant, wish.ahead)}
        if kinds - seen:
            seen |= kinds
            found.append(wish)
    return found


def _likeness(wish: Wish) -> tuple[object, object]:
    """The kinds that it is of, the narrower first: kernel, buffers and the axes that are split."""
    way = (wish.variant, wish.ahead)
    return (*way, frozenset(name for name, _ in wish.split)), way
