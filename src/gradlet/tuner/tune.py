"""Measured schedules for every call of a plan: tile sizes, order of loops, buffer mode, kernel.

Keeps the type: a plan comes in, a plan that is quicker goes out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from gradlet.kernels.lab.program import require_runner
from gradlet.planner.model import Call, Plan
from gradlet.planner.planner import Options, ScheduleOverride, Tiler, plan, tiling_requests
from gradlet.runtime import TILE_RUNNER
from gradlet.targets.target import Target
from gradlet.tuner.cache import Cache, job_key
from gradlet.tuner.pool import Pool
from gradlet.tuner.program import Function, build
from gradlet.tuner.search import Search, Settings

__all__ = ["Node", "ScheduleOverride", "Settings", "Tuned", "plan_with", "tune"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Node:
    """What was found for a call: cycles by itself, of the planner's schedule and of the best."""

    name: str
    before: int | None
    after: int | None
    override: ScheduleOverride | None
    candidates: int


@dataclass(frozen=True)
class Tuned:
    """evaluations: simulated; cache_hits: known before. model_error: of the planner's cost model,
    the median deviation from what was measured, after scaling by the median ratio. measured: the
    cycles of all candidates of each node that fit."""

    given: Plan
    options: Options
    nodes: tuple[Node, ...]
    evaluations: int
    cache_hits: int
    seconds: float
    model_error: float | None
    measured: tuple[Mapping[ScheduleOverride, int], ...] = ()

    @property
    def overrides(self) -> dict[str, ScheduleOverride]:
        return {node.name: node.override for node in self.nodes if node.override is not None}

    @cached_property
    def plan(self) -> Plan:
        """With the quickest way that was found for each call."""
        return plan_with(self.given, self.overrides, self.options)


def tune(
    given: Plan,
    settings: Settings | None = None,
    *,
    pool: Pool | None = None,
    cache: Cache | None = None,
    progress: Progress = lambda done, total, text: None,
    options: Options | None = None,
    only: Callable[[Call], bool] = lambda call: True,
) -> Tuned:
    """The quickest way to run each call, or some of them."""
    begin = time.perf_counter()
    settings, options = settings or Settings(), options or Options()
    require_runner(given.target, TILE_RUNNER)
    by_call = _searches(given, settings, options, only)
    searches = list({id(search): search for search in by_call.values()}.values())
    measuring = Measuring(searches, given.target, pool or Pool(), cache or Cache(), progress)
    while True:
        wanted = [(search, override) for search in searches for override in search.wanted()]
        if not wanted:
            break
        measuring.measure(wanted)
    nodes = tuple(_node(name, search) for name, search in by_call.items())
    known = tuple({w: c for w, c in s.cycles.items() if c is not None} for s in by_call.values())
    found = (nodes, measuring.evaluations, measuring.hits)
    seconds = time.perf_counter() - begin
    return Tuned(given, options, *found, seconds, model_error(searches), known)


def plan_with(
    given: Plan, overrides: Mapping[str, ScheduleOverride], options: Options | None = None
) -> Plan:
    """The same network with these overrides."""
    wished = replace(options or Options(), overrides=overrides)
    return plan(given.graph, given.target, prefix=given.prefix, options=wished)


def _searches(
    given: Plan, settings: Settings, options: Options, only: Callable[[Call], bool]
) -> dict[str, Search]:
    """By call; those that are alike have the same."""
    found = tiling_requests(given.graph, given.target, options)
    if found is None:
        storage_of = {name: b.name for b in given.buffers for name in b.tensors}
        tiler = Tiler(given.graph, given.target, storage_of, (), {}, buffers=options.buffers)
        chosen = filter(only, given.calls)
        return {call.name: Search(call, tiler, None, settings, given.graph) for call in chosen}
    tiler, by_name = found
    shared: dict[object, Search] = {}
    searches = {}
    for name, request in by_name.items():
        if only(request.call):
            search = Search(request.call, tiler, request, settings, given.graph)
            searches[name] = shared.setdefault(tiler.cache_key(request), search)
    return searches


def _node(name: str, search: Search) -> Node:
    best = search.best()
    own = next(iter(search.jobs), None)
    return Node(
        name,
        search.cycles.get(own) if own else None,
        search.cycles.get(best) if best else None,
        best,
        len(search.cycles),
    )


class Measuring:
    """Looks results up, simulates what is not known, and remembers."""

    def __init__(
        self,
        searches: Sequence[Search],
        target: Target,
        pool: Pool,
        cache: Cache,
        progress: Progress,
    ) -> None:
        self.searches, self.target = searches, target
        self.pool, self.cache, self.progress = pool, cache, progress
        self.functions: set[Function] = set()
        self.compiled: set[Function] = set()
        self.elf = b""
        self.evaluations = self.hits = 0
        self.done = self.total = 0

    def measure(self, wanted: list[tuple[Search, ScheduleOverride]]) -> None:
        """Of calls that are alike each candidate is measured once."""
        places: dict[str, list[tuple[Search, ScheduleOverride]]] = {}
        for search, override in wanted:
            job = search.jobs[override]
            places.setdefault(job_key(job, self.target), []).append((search, override))
            self.functions |= set(job.functions.values())
        limits = {key: max(s.limit for s, _ in found) for key, found in places.items()}
        known = self.cache.known(limits)
        self.hits += len(known)
        for key, value in known.items():
            _note(places[key], value, limits[key])
        missing = {key: found for key, found in places.items() if key not in known}
        if missing:
            later = sum({id(s): s.left for s, _ in wanted}.values())
            self._simulate(missing, limits, later * len(missing) // len(wanted))

    def _simulate(
        self,
        missing: dict[str, list[tuple[Search, ScheduleOverride]]],
        limits: Mapping[str, int],
        later: int,
    ) -> None:
        """later: how many will probably be missing in the rounds to come."""
        keys = list(missing)
        jobs = [search.jobs[override] for search, override in (missing[key][0] for key in keys)]
        self._provide()
        self.total = self.done + len(jobs) + later
        self.progress(self.done, self.total, "")
        run = self.pool.run(self.elf, self.target, jobs, [limits[key] for key in keys])
        for number, cycles in run:
            self.cache.add({keys[number]: cycles})
            _note(missing[keys[number]], cycles, limits[keys[number]])
            self.evaluations += 1
            self.done += 1
            self.progress(self.done, self.total, missing[keys[number]][0][0].call.name)

    def _provide(self) -> None:
        """A program with all functions that may be needed, whether their cycles are known or not:
        these depend a little on where code lies, and interrupted work goes on as it began."""
        if not self.compiled:
            self.functions |= {f for search in self.searches for f in search.functions()}
        if self.compiled != self.functions:
            self.compiled = set(self.functions)
            self.progress(self.done, max(self.total, 1), "compiling kernels")
            self.elf = build(sorted(self.functions, key=lambda f: f.name), self.target)


def _note(places: Iterable[tuple[Search, ScheduleOverride]], cycles: int, limit: int) -> None:
    """What is slower than the limit may be known from another search, which was not so strict."""
    for search, override in places:
        search.cycles[override] = cycles if 0 < cycles <= limit else None


def model_error(searches: Iterable[Search]) -> float | None:
    ratios = [
        cycles / search.estimated[override]
        for search in searches
        for override, cycles in search.cycles.items()
        if cycles and search.estimated.get(override)
    ]
    if not ratios:
        return None
    scale = median(ratios)
    return median(abs(ratio / scale - 1) for ratio in ratios)
