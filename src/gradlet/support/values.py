"""Values that are kept from run to run, as rows of one file in the cache folder; whole files are
kept by cache.py. A row has a hash by which it is known to be as it was written."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradlet.support.cache import cache_folder

TABLE = "kept"


def key_of(*given: object) -> str:
    """Of all that a value depends on."""
    return hashlib.sha256(repr(given).encode()).hexdigest()


class Values:
    """One table in one file; several processes may use it. A file that is damaged is made anew, and
    where none can be used the values last as long as the object."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "values.sqlite"
        self._base = self._opened()

    def recall(self, keys: Iterable[str]) -> dict[str, Any]:
        """By key, as far as they are there and sound."""
        asked, found = f"SELECT value, record FROM {TABLE} WHERE key = ?", {}
        for key in keys:
            try:
                row = self._base.execute(asked, (key,)).fetchone()
            except sqlite3.Error:
                self._base = self._renewed()
                continue
            if row is not None and isinstance(row[0], str) and row[1] == key_of(key, row[0]):
                found[key] = json.loads(row[0])
        return found

    def add(self, values: Mapping[str, Any]) -> None:
        texts = {key: json.dumps(value) for key, value in values.items()}
        rows = [(key, text, key_of(key, text)) for key, text in texts.items()]
        for _ in range(2):
            try:
                self._base.executemany(f"INSERT OR REPLACE INTO {TABLE} VALUES (?, ?, ?)", rows)
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
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)  # nothing of ours
        try:
            for end in ("", "-journal", "-wal", "-shm"):
                self.path.with_name(f"{self.path.name}{end}").unlink(missing_ok=True)
            return _connected(str(self.path))
        except (sqlite3.Error, OSError):
            return _connected(":memory:")


def recalled(key: str) -> Any:
    """A value that was kept under this key; None if there is none."""
    return all_recalled([key]).get(key)


def all_recalled(keys: Iterable[str]) -> dict[str, Any]:
    """Those of several keys that are there."""
    values = Values()
    try:
        return values.recall(keys)
    finally:
        values.close()


def kept(key: str, value: Any) -> None:
    """Keep a value; that nothing can be kept costs time only."""
    all_kept({key: value})


def all_kept(found: Mapping[str, Any]) -> None:
    values = Values()
    try:
        values.add(found)
    finally:
        values.close()


def _connected(name: str) -> sqlite3.Connection:
    base = sqlite3.connect(name, timeout=60)
    try:
        base.execute("PRAGMA synchronous = OFF")  # it is a cache: a loss costs time only
        columns = "key TEXT PRIMARY KEY, value TEXT, record TEXT"
        base.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns})")
        base.commit()
    except sqlite3.Error:
        base.close()
        raise
    return base
