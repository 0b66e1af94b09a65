"""What a candidate costs that is compiled and simulated by itself; caches with nothing in them."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gradlet.planner.planner import Options, Plan, tiling_requests
from gradlet.sim.build import library
from gradlet.support.cache import keep
from gradlet.tuner.measure import UNLIMITED, Job, measure
from gradlet.tuner.program import build
from gradlet.tuner.search import Search
from gradlet.tuner.tune import Settings

TIMES = 3
CACHES = ("GRADLET_CACHE",)


def own_choices(given: Plan, names: list[str]) -> list[Job]:
    """What the planner has chosen for these calls."""
    found = tiling_requests(given.graph, given.target, Options())
    assert found is not None
    tiler, by_name = found
    searches = [
        Search(by_name[name].call, tiler, by_name[name], Settings(), given.graph) for name in names
    ]
    return [search.jobs[search.wanted()[0]] for search in searches]


@dataclass(frozen=True)
class Seconds:
    """On the clock, and of processors: those depend less on what else the machine does."""

    clock: float
    processors: float

    @staticmethod
    def now() -> Seconds:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return Seconds(time.perf_counter(), sum(u.ru_utime + u.ru_stime for u in used))

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.clock - other.clock, self.processors - other.processors)


def alone(given: Plan, jobs: Sequence[Job]) -> Seconds:
    """To compile and simulate a program for one candidate: the median over these, a few times."""
    times = []
    for job in TIMES * list(jobs):
        with nothing_compiled():
            begin = Seconds.now()
            elf = build(list(job.functions.values()), given.target)
            measure(elf, given.target, [job], [UNLIMITED])
            times.append(Seconds.now() - begin)
    return Seconds(median(t.clock for t in times), median(t.processors for t in times))


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """With an empty cache; but the simulator is there. The compiler's own is always empty."""
    before = {name: os.environ.get(name) for name in CACHES}
    built = library()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {name: f"{folder}/{name}" for name in CACHES}
        keep(Path(shutil.copy(built, folder)), built.name)
        try:
            yield
        finally:
            for name, value in before.items():
                del os.environ[name]
                if value is not None:
                    os.environ[name] = value
