"""Measured cycles on disk: what was measured once is never measured again.

A key has everything that the cycles depend on: the source of the kernels and of the runtime, the
tiling and the device. Results are kept as they come, so that interrupted work goes on.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from gradlet import kernels
from gradlet.compiler import cache_folder
from gradlet.kernels import Kernel
from gradlet.plan.tiling import Tiling
from gradlet.target import Target
from gradlet.trial import RUNTIME
from gradlet.tune.measure import Job

NO_FIT = -1


class Cache:
    """One table in one file; several processes may use it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "tune.sqlite"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(self.path, timeout=60)
        self._base.execute("CREATE TABLE IF NOT EXISTS cycles (key TEXT PRIMARY KEY, value INT)")
        self._base.commit()

    def known(self, keys: Iterable[str]) -> dict[str, int | None]:
        found: dict[str, int | None] = {}
        for key in keys:
            row = self._base.execute("SELECT value FROM cycles WHERE key = ?", (key,)).fetchone()
            if row is not None:
                found[key] = None if row[0] == NO_FIT else int(row[0])
        return found

    def add(self, measured: Mapping[str, int | None]) -> None:
        rows = [(key, NO_FIT if value is None else value) for key, value in measured.items()]
        self._base.executemany("INSERT OR REPLACE INTO cycles VALUES (?, ?)", rows)
        self._base.commit()

    def close(self) -> None:
        self._base.close()


def key_of(job: Job, target: Target) -> str:
    value = {
        "sources": [_source(function.kernel) for function in job.functions.all],
        "functions": [function.operands for function in job.functions.all],
        "runtime": _runtime(target.port),
        "machine": sorted(dict(target.machine).items()),
        "target": [target.cores, target.stack, target.code, target.flags],
        "tiling": asdict(_nameless(job.tiling)),
        "operands": [job.repeat, job.near, job.bytes, job.scratch],
    }
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _nameless(tiling: Tiling) -> Tiling:
    """Layers of one shape cost the same, whatever they are called."""
    windows = tuple(
        replace(w, tensor="", near="near" if w.near else "") if w else None for w in tiling.windows
    )
    return replace(tiling, windows=windows)


@cache
def _source(kernel: Kernel) -> str:
    return hashlib.sha256(kernels.render(kernel).encode()).hexdigest()


@cache
def _runtime(port: str) -> str:
    names = ("gl.h", "gl_tiles.h", f"gl_port_{port}.h", f"{port}/tiles_trial.c")
    text = "".join((RUNTIME / name).read_text() for name in names)
    return hashlib.sha256(text.encode()).hexdigest()
