"""Which candidates of a call are measured, and which of them is taken.

The judgement of the planner ranks all; the best few are measured, then their neighbours around the
best measured one, as long as that gets better. An exhaustive search measures all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from gradlet.graph import Graph
from gradlet.plan import Context, Tiler, Wish
from gradlet.plan.model import Call
from gradlet.plan.tile import Candidate, Problem, along_one_axis, explored, grid, neighbours
from gradlet.plan.tiler import Choice
from gradlet.plan.tiling import Tiling, Window
from gradlet.tune.measure import Job
from gradlet.tune.program import functions_of


@dataclass(frozen=True)
class Settings:
    """keep: how many of the best judged candidates of a call are measured (K_T). rounds: how often
    the neighbours of the best are tried after that, `around` of them at a time. grid: combinations
    of tile sizes that an exhaustive search looks at, per call and buffer mode."""

    keep: int = 12
    rounds: int = 4
    around: int = 4
    exhaustive: bool = False
    grid: int = 1500


@dataclass
class Search:
    """The candidates of one call, and what is known of them."""

    call: Call
    tiler: Tiler
    context: Context | None
    settings: Settings
    graph: Graph
    judged: dict[Wish, float] = field(default_factory=dict)
    jobs: dict[Wish, Job] = field(default_factory=dict)
    cycles: dict[Wish, int | None] = field(default_factory=dict)
    tiles: dict[Wish, tuple[int, ...]] = field(default_factory=dict)
    rounds: int = 0

    def wanted(self) -> list[Wish]:
        """What is to be measured next; nothing when the search is over."""
        if self.context is None:
            return self._in_place() if not self.jobs else []
        if not self.jobs:
            return self._first()
        if self.settings.exhaustive or self.rounds >= self.settings.rounds:
            return []
        self.rounds += 1
        return self._around(self.best())

    def best(self) -> Wish | None:
        """The quickest of those that were measured."""
        fit = {wish: cycles for wish, cycles in self.cycles.items() if cycles is not None}
        return min(fit, key=lambda wish: (fit[wish], str(wish)), default=None)

    def _first(self) -> list[Wish]:
        """The planner's own choice, then the best of each kind (axes that are split, ahead or
        not), then the best of the rest."""
        assert self.context is not None
        found: list[tuple[float, Wish]] = []
        for ahead in (True, False):
            problem, room = self.tiler.problem(self.context, ahead), self.context.room
            if self.settings.exhaustive:
                candidates = grid(problem, room, self.settings.grid)
            else:
                candidates = [*explored(problem, room), *along_one_axis(problem, room)]
            found += self._wishes(problem, candidates, ahead)
        found.sort(key=lambda item: (item[0], str(item[1])))
        own = self.tiler.choose(self.context)
        ranked = [wish for _, wish in found]
        if not self.settings.exhaustive:
            ranked = [*_best_of_each_kind(ranked)[: self.settings.keep // 2], *ranked]
        if own.tiling:
            ranked.insert(0, Wish.of(own))
        able = (wish for wish in dict.fromkeys(ranked) if self._job(wish))
        most = len(ranked) if self.settings.exhaustive else self.settings.keep
        return list(islice(able, most))

    def _wishes(
        self, problem: Problem, candidates: Iterable[Candidate], ahead: bool
    ) -> list[tuple[float, Wish]]:
        """With every kernel; those further down the catalogue are thought to be quicker."""
        variants = self.tiler.variants_of(self.call)
        if not self.settings.exhaustive:
            variants = variants[-2:]
        found = []
        for candidate in candidates:
            split = tuple((problem.axes[n].name, candidate.tile[n]) for n in candidate.order)
            for rank, variant in enumerate(reversed(variants)):
                wish = Wish(split, ahead, variant)
                self.judged[wish] = candidate.cost
                self.tiles[wish] = candidate.tile
                found.append((candidate.cost * (1 + rank), wish))
        return found

    def _around(self, best: Wish | None) -> list[Wish]:
        if best is None or best not in self.tiles or self.context is None:
            return []
        problem = self.tiler.problem(self.context, best.ahead)
        steps = neighbours(problem, self.tiles[best], self.context.room)
        found = [wish for _, wish in self._wishes(problem, steps, best.ahead)]
        new = (w for w in found if w not in self.jobs and w.variant == best.variant)
        return list(islice((wish for wish in new if self._job(wish)), self.settings.around))

    def _in_place(self) -> list[Wish]:
        """All operands near: only the kernel is to be chosen."""
        wishes = [Wish((), True, variant) for variant in self.tiler.variants_of(self.call)]
        return [wish for wish in wishes if self._job(wish)]

    def _job(self, wish: Wish) -> Job | None:
        if wish in self.jobs:
            return self.jobs[wish]
        choice = self._choice(wish)
        if choice is None or choice.tiling is None:
            return None
        tiling = choice.tiling
        near = tuple(
            w is not None and (self.context is None or self._is_near(w)) for w in tiling.windows
        )
        sizes = tuple(
            self.graph.tensors[w.tensor].bytes if w and w.tensor else 0 for w in tiling.windows
        )
        functions = functions_of(choice.kernel, tiling, len(self.call.outputs))
        self.jobs[wish] = Job(
            choice.kernel, tiling, self.call.repeat, functions, near, sizes, choice.scratch
        )
        return self.jobs[wish]

    def _is_near(self, window: Window) -> bool:
        assert self.context is not None
        return self.tiler.storage_of.get(window.tensor, "") in self.context.near

    def _choice(self, wish: Wish) -> Choice | None:
        if self.context is not None:
            return self.tiler.realised(self.context, wish)
        kernel = replace(self.call.kernel, variant=wish.variant)
        windows = tuple(
            Window(name, self.graph.tensors[name].shape, ()) if name else None
            for name in (*self.call.outputs, *self.call.inputs)
        )
        tiling = Tiling((), windows, (self.call.sizes,), True)
        if follow := self.call.behind:
            tiling = replace(
                tiling,
                finish=follow.kernel,
                finish_sizes=(follow.sizes,),
                finish_operands=follow.operands,
            )
        return Choice(kernel, tiling, self.tiler.scratch(kernel, self.call.sizes))


def _best_of_each_kind(ranked: Iterable[Wish]) -> list[Wish]:
    """In their order, with the quickest kernel of each."""
    best: dict[object, Wish] = {}
    for wish in ranked:
        best.setdefault((wish.ahead, frozenset(name for name, _ in wish.split)), wish)
    return list(best.values())
