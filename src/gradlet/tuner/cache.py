"""Measured cycles on disk: what was measured once is never measured again.

A key has everything that the cycles depend on: the source of the kernels and of the runtime, the
tiling, the device and the simulator. Results are kept as they come, so that interrupted work goes
on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from gradlet.kernels import source
from gradlet.kernels.catalogue import Kernel
from gradlet.planner.tiling import Tiling
from gradlet.runtime import FOLDER, TILE_RUNNER, headers, port_file
from gradlet.sim.build import library
from gradlet.support.values import Values, key_of
from gradlet.targets.target import Target
from gradlet.tuner.measure import NO_FIT, Job
from gradlet.tuner.program import PREFIX


class Cache(Values):
    """Of cycles, by keys of jobs."""

    def known(self, limits: Mapping[str, int]) -> dict[str, int]:
        """By key, what `TileRunner.cycles` gives with these limits, as far as that is known."""
        found = self.recall(limits)
        return {key: v for key, v in found.items() if v >= NO_FIT or -v >= limits[key]}


def job_key(job: Job, target: Target) -> str:
    return key_of(
        "cycles",
        *(_source(kernel) for function in job.functions.values() for kernel in function.kernels),
        *(operands for function in job.functions.values() for _, operands in function.launches),
        _runtime(target.port),
        sorted(dict(target.machine).items()),
        (target.cores, target.stack, target.code, target.flags),
        _nameless(job.tiling),
        (job.repeat, job.in_l1, job.bytes, job.scratch, *job.farthest),
    )


def _nameless(tiling: Tiling) -> Tiling:
    """Layers of one shape cost the same, whatever they are called."""
    views = tuple(
        replace(w, tensor="", buffer="l1" if w.buffer else "") if w else None for w in tiling.views
    )
    return replace(tiling, views=views)


@cache
def _source(kernel: Kernel) -> str:
    return key_of(source.render(kernel, PREFIX))


@cache
def _runtime(port: str) -> str:
    own = (*headers(port), TILE_RUNNER)
    files = [FOLDER / "gl.h", FOLDER / "gl_tiles.h", *(port_file(port, name) for name in own)]
    text = "".join(path.read_text() for path in files)
    return key_of(text, library().name)
