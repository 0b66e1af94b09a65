"""The folder of a project: whether it is ours, and what in it is the user's.

A folder is ours if its manifest says so and agrees with its own hash; a file is ours if its hash is
the one that the manifest records. Everything else belongs to the user, and is never overwritten or
deleted unless he forces it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from gradlet.errors import GradletError

MANIFEST = "manifest.json"
MAKER = "gradlet"
FORMAT = 1
SHOWN = 8
NOT_A_FILE = "not a file"
THROUGH_A_LINK = "through a link"
UNNOTICED = {".git", ".gitignore", ".gitattributes", ".DS_Store"}
"""A folder that has only these in it is as good as empty."""


def sealed(value: Mapping[str, Any]) -> bytes:
    """A manifest as text, with what it is known by."""
    marked = {"made_by": MAKER, "format": FORMAT, **value}
    return (json.dumps({**marked, "seal": _seal(marked)}, indent=1) + "\n").encode()


def _seal(value: Mapping[str, Any]) -> str:
    rest = {key: item for key, item in value.items() if key != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Contents:
    """What a folder has of an earlier project: `recorded` hashes by name, and those of today (None:
    the file is gone). `fault` says why it is no project of ours, or why it cannot be trusted."""

    ours: bool
    fault: str = ""
    recorded: Mapping[str, str] = field(default_factory=dict)
    actual: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def edited(self) -> list[str]:
        """Files that are no longer as they were written, without those that are gone."""
        found = [n for n, was in self.recorded.items() if self.actual[n] not in (was, None)]
        return [*([MANIFEST] if self.ours and self.fault else []), *found]


def contents(folder: Path) -> Contents:
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return Contents(False, f"there is no {MANIFEST}")
    except OSError as error:
        return Contents(False, f"its {MANIFEST} cannot be read: {error.strerror}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Contents(False, f"its {MANIFEST} is not readable")
    if not isinstance(value, dict) or value.get("made_by") != MAKER:
        older = isinstance(value, dict) and {"gradlet", "prefix", "kernels"} <= value.keys()
        whose = "of an older version, which had no hash" if older else "not one of Gradlet's"
        return Contents(False, f"its {MANIFEST} is {whose}")
    fault = "" if value.get("seal") == _seal(value) else f"{MANIFEST} was edited after the build"
    if not fault and value.get("format") != FORMAT:
        fault = f"{MANIFEST} has the format {value.get('format')}, of another version of Gradlet"
    listed = value.get("files")
    recorded = {
        name: was
        for name, was in (listed.items() if isinstance(listed, dict) else ())
        if isinstance(was, str) and _inside(name)
    }
    return Contents(True, fault, recorded, {name: digest(folder, name) for name in recorded})


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and str(path) == name


def digest(folder: Path, name: str) -> str | None:
    """The SHA-256 of a file, None if there is none. What is no plain file, or is reached by a link
    that somebody put there, has none of our hashes."""
    path = folder
    parts = PurePosixPath(name).parts
    for index, part in enumerate(parts):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        if index < len(parts) - 1 and not stat.S_ISDIR(mode):
            return THROUGH_A_LINK if stat.S_ISLNK(mode) else NOT_A_FILE
    if stat.S_ISLNK(mode):
        return f"link to {os.readlink(path)}"
    if not stat.S_ISREG(mode):
        return NOT_A_FILE
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changes(folder: Path, globs: Iterable[str] = ()) -> tuple[str, ...]:
    """How a project differs from what was built. `globs`: files that would be built with it."""
    found = contents(folder)
    lines = [f"{name} (edited)" for name in found.edited]
    lines += [f"{name} (deleted)" for name in found.recorded if found.actual[name] is None]
    lines += [f"{name} (added)" for name in _matching(folder, globs) if name not in found.recorded]
    return tuple(sorted(lines))


def _matching(folder: Path, globs: Iterable[str]) -> Iterator[str]:
    for pattern in globs:
        yield from (path.relative_to(folder).as_posix() for path in folder.glob(pattern))


def replaceable(folder: Path, names: Iterable[str] = (), *, force: bool = False) -> dict[str, str]:
    """The files that a project with these names may replace or delete, with their hashes of today;
    raises if that would cost the user something."""
    if not folder.exists():
        return {}
    if not folder.is_dir():
        raise GradletError(f"'{folder}' is a file; name a folder for the project")
    there = contents(folder)
    if not there.ours and not set(os.listdir(folder)) <= UNNOTICED:
        raise GradletError(
            f"'{folder}' has files in it and is not a Gradlet project ({there.fault}); nothing "
            "was written. Name an empty or new folder"
        )
    found = _found(folder, names)
    known = {n for n, was in there.actual.items() if was == there.recorded[n]}
    known |= {MANIFEST} if there.ours and not there.fault else set()
    foreign = [name for name, was in found.items() if was and name not in known]
    lost = sorted({*there.edited, *foreign})
    if lost and not force:
        raise GradletError(
            f"'{folder}' has files that differ from what was built there: {listing(lost)}. "
            "Nothing was written, so that no work is lost. Name another folder, or give --force "
            "to overwrite them"
        )
    trusted = not there.fault  # else a forced build replaces edited files, but deletes none
    listed = {n: was for n, was in there.actual.items() if trusted or n in known}
    old = {**listed, **found}
    return {n: was for n, was in old.items() if was and was not in (NOT_A_FILE, THROUGH_A_LINK)}


def _found(folder: Path, names: Iterable[str]) -> dict[str, str | None]:
    """The hashes of what stands where files of a project belong; raises where it is no file."""
    found = {name: digest(folder, name) for name in (*names, MANIFEST)}
    obstacles = [n for n, was in found.items() if was in (NOT_A_FILE, THROUGH_A_LINK)]
    if obstacles:
        raise GradletError(
            f"in '{folder}' there is something else where files of the project belong: "
            f"{listing(obstacles)}; nothing was written. Move it away, or name another folder"
        )
    return found


def listing(names: Iterable[str]) -> str:
    """Some names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more
