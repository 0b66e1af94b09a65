"""Measured cycles on disk: what was measured once is never measured again.

A key has everything that the cycles depend on: the source of the kernels and of the runtime, the
tiling, the device and the simulator. Results are kept as they come, so that interrupted work goes
on.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.planner.tiling import Tiling
from gradlet.runtime import FOLDER, TILES_TRIAL, headers, port_file
from gradlet.sim.build import library
from gradlet.support.cache import cache_folder
from gradlet.targets.target import Target
from gradlet.tuner.measure import NO_FIT, Job
from gradlet.tuner.program import PREFIX


class Cache:
    """One table in one file; several processes may use it. A file that is damaged is made anew, and
    where none can be used the results last as long as the process."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "tune.sqlite"
        self._base = self._opened()

    def known(self, limits: Mapping[str, int]) -> dict[str, int]:
        """By key, what `TileTrial.cycles` gives with these limits, as far as that is known."""
        found: dict[str, int] = {}
        for key, limit in limits.items():
            value = self._value(key)
            if value is not None and (value >= NO_FIT or -value >= limit):
                found[key] = value
        return found

    def _value(self, key: str) -> int | None:
        asked = "SELECT value, record FROM measured WHERE key = ?"
        try:
            row = self._base.execute(asked, (key,)).fetchone()
        except sqlite3.Error:
            self._base = self._renewed()
            return None
        sound = row is not None and isinstance(row[0], int) and row[1] == _record(key, row[0])
        return row[0] if sound else None

    def add(self, measured: Mapping[str, int]) -> None:
        rows = [(key, value, _record(key, value)) for key, value in measured.items()]
        for _ in range(2):
            try:
                self._base.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?)", rows)
                self._base.commit()
                return
            except sqlite3.Error:
                self._base = self._renewed()

    def close(self) -> None:
        self._base.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return _connected(str(self.path))
        except (sqlite3.Error, OSError):
            return self._renewed()

    def _renewed(self) -> sqlite3.Connection:
        """An empty file in place of a damaged one; whoever still has that open is not disturbed."""
        with suppress(AttributeError, sqlite3.Error):
            self._base.close()
        try:
            for end in ("", "-journal", "-wal", "-shm"):
                self.path.with_name(f"{self.path.name}{end}").unlink(missing_ok=True)
            return _connected(str(self.path))
        except (sqlite3.Error, OSError):
            return _connected(":memory:")


def _connected(name: str) -> sqlite3.Connection:
    base = sqlite3.connect(name, timeout=60)
    try:
        base.execute("PRAGMA synchronous = OFF")  # it is a cache: a loss costs time only
        columns = "key TEXT PRIMARY KEY, value INT, record TEXT"
        base.execute(f"CREATE TABLE IF NOT EXISTS measured ({columns})")
        base.commit()
    except sqlite3.Error:
        base.close()
        raise
    return base


def _record(key: str, value: int) -> str:
    """By which a row is known to be as it was written."""
    return hashlib.sha256(f"{key} {value}".encode()).hexdigest()[:16]


def key_of(job: Job, target: Target) -> str:
    value = (
        *(_source(kernel) for function in job.functions.values() for kernel in function.kernels),
        *(operands for function in job.functions.values() for _, operands in function.launches),
        _runtime(target.port),
        sorted(dict(target.machine).items()),
        (target.cores, target.stack, target.code, target.flags),
        _nameless(job.tiling),
        (job.repeat, job.near, job.bytes, job.scratch, *job.farthest),
    )
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _nameless(tiling: Tiling) -> Tiling:
    """Layers of one shape cost the same, whatever they are called."""
    views = tuple(
        replace(w, tensor="", buffer="l1" if w.buffer else "") if w else None for w in tiling.views
    )
    return replace(tiling, views=views)


@cache
def _source(kernel: Kernel) -> str:
    return hashlib.sha256(catalogue.render(kernel, PREFIX).encode()).hexdigest()


@cache
def _runtime(port: str) -> str:
    own = (*headers(port), TILES_TRIAL)
    files = [FOLDER / "gl.h", FOLDER / "gl_tiles.h", *(port_file(port, name) for name in own)]
    text = "".join(path.read_text() for path in files)
    return hashlib.sha256(f"{text}{library().name}".encode()).hexdigest()
