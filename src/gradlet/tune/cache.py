"""Measured cycles on disk: what was measured once is never measured again.

A key has everything that the cycles depend on: the source of the kernels and of the runtime, the
tiling, the device and the simulator. Results are kept as they come, so that interrupted work goes
on.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from gradlet import kernels
from gradlet.compiler import cache_folder
from gradlet.kernels import Kernel
from gradlet.plan.tiling import Tiling
from gradlet.sim.build import library
from gradlet.target import Target
from gradlet.trial import RUNTIME
from gradlet.tune.measure import NO_FIT, Job
from gradlet.tune.program import PREFIX


class Cache:
    """One table in one file; several processes may use it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "tune.sqlite"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(self.path, timeout=60)
        self._base.execute("PRAGMA synchronous = OFF")  # it is a cache: a loss costs time only
        self._base.execute("CREATE TABLE IF NOT EXISTS cycles (key TEXT PRIMARY KEY, value INT)")
        self._base.commit()

    def known(self, limits: Mapping[str, int]) -> dict[str, int]:
        """By key, what `TileTrial.cycles` gives with these limits, as far as that is known."""
        found: dict[str, int] = {}
        for key, limit in limits.items():
            row = self._base.execute("SELECT value FROM cycles WHERE key = ?", (key,)).fetchone()
            if row is not None and (row[0] >= NO_FIT or -row[0] >= limit):
                found[key] = row[0]
        return found

    def add(self, measured: Mapping[str, int]) -> None:
        rows = list(measured.items())
        self._base.executemany("INSERT OR REPLACE INTO cycles VALUES (?, ?)", rows)
        self._base.commit()

    def close(self) -> None:
        self._base.close()


def key_of(job: Job, target: Target) -> str:
    value = (
        *(_source(kernel) for function in job.functions.all for kernel in function.kernels),
        *(function.operands for function in job.functions.all),
        _runtime(target.port),
        sorted(dict(target.machine).items()),
        (target.cores, target.stack, target.code, target.flags),
        _nameless(job.tiling),
        (job.repeat, job.near, job.bytes, job.scratch, *job.farthest),
    )
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _nameless(tiling: Tiling) -> Tiling:
    """Layers of one shape cost the same, whatever they are called."""
    windows = tuple(
        replace(w, tensor="", near="near" if w.near else "") if w else None for w in tiling.windows
    )
    return replace(tiling, windows=windows)


@cache
def _source(kernel: Kernel) -> str:
    return hashlib.sha256(kernels.render(kernel, PREFIX).encode()).hexdigest()


@cache
def _runtime(port: str) -> str:
    names = ("gl.h", "gl_tiles.h", f"gl_port_{port}.h", f"gl_dma_{port}.h", f"{port}/tiles_trial.c")
    text = "".join((RUNTIME / name).read_text() for name in names)
    return hashlib.sha256(f"{text}{library().name}".encode()).hexdigest()
