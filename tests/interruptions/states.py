"""What a killed process leaves: the files of some folders, kept so that they can be laid out again.

SIGKILL changes no file. So the files as they are just before a system call are what a kill at that
call leaves, and one run that is stopped at each of its calls gives all of these states.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SETTLED = 0.1
"""Seconds after which a file's times tell whether it has changed since."""
SCRATCH = re.compile(r"(.*/scratch)/[^/]+(/.*)?")


@dataclass(frozen=True)
class Entry:
    """A folder, a link with its target, or a file with the hash of its content."""

    kind: str
    mode: int
    content: str = ""
    same_as: str = ""  # another name of the same file

    @property
    def seen(self) -> tuple[str, int, str]:
        return self.kind, self.mode, self.content


@dataclass(frozen=True)
class State:
    entries: Mapping[str, Entry]

    def under(self, folder: str) -> dict[str, tuple[str, int, str]]:
        """Files and links in a folder, as whoever reads them sees them."""
        start = f"{folder}/"
        found = {name: entry for name, entry in self.entries.items() if name.startswith(start)}
        files = {name: entry for name, entry in found.items() if entry.kind != "folder"}
        return {name[len(start) :]: entry.seen for name, entry in files.items()}

    @cached_property
    def key(self) -> str:
        """What the next run may depend on. A scratch folder is removed with all that is in it and
        without a look at it, so that only the kinds of what it holds count."""
        plain, scratch = [], set()
        for name, entry in self.entries.items():
            if match := SCRATCH.fullmatch(name):
                depth = (match[2] or "").count("/")
                scratch.add((match[1], depth, entry.kind, entry.mode))
            else:
                plain.append((name, entry))
        return hashlib.sha256(repr((sorted(plain, key=str), sorted(scratch))).encode()).hexdigest()


class Keeper:
    """Looks at folders of `base`, keeps contents once each in `store`, and lays states out."""

    def __init__(self, base: Path, folders: tuple[str, ...], store: Path) -> None:
        self.base, self.folders, self.store = base, folders, store
        store.mkdir()
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}

    def look(self) -> State:
        entries: dict[str, Entry] = {}
        names: dict[int, str] = {}
        for folder in self.folders:
            if (self.base / folder).exists():
                self._note(folder, entries, names)
        return State(entries)

    def _note(self, name: str, entries: dict[str, Entry], names: dict[int, str]) -> None:
        path = self.base / name
        found = path.lstat()
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISLNK(found.st_mode):
            entries[name] = Entry("link", mode, os.readlink(path))
        elif stat.S_ISDIR(found.st_mode):
            entries[name] = Entry("folder", mode)
            for inner in sorted(os.listdir(path)):
                self._note(f"{name}/{inner}", entries, names)
        elif SCRATCH.fullmatch(name):
            entries[name] = Entry("file", mode)
        else:
            first = names.setdefault(found.st_ino, name)
            other = first if first != name else ""
            entries[name] = Entry("file", mode, self._kept(name, found), other)

    def _kept(self, name: str, found: os.stat_result) -> str:
        marks = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if name in self._known and self._known[name][0] == marks:
            return self._known[name][1]
        content = (self.base / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if not (self.store / digest).exists():
            (self.store / digest).write_bytes(content)
        if time.time() - max(found.st_mtime, found.st_ctime) > SETTLED:
            self._known[name] = marks, digest
        return digest

    def lay(self, state: State) -> None:
        """The folders become what they were; files of scratch folders come back empty."""
        for folder in self.folders:
            shutil.rmtree(self.base / folder, ignore_errors=True)
        modes = {}
        for name, entry in state.entries.items():
            path = self.base / name
            if entry.kind == "folder":
                path.mkdir()
                modes[path] = entry.mode
            elif entry.kind == "link":
                path.symlink_to(entry.content)
            elif entry.same_as:
                os.link(self.base / entry.same_as, path)
            else:
                if entry.content:
                    shutil.copyfile(self.store / entry.content, path)
                else:
                    path.touch()
                path.chmod(entry.mode)
        for path, mode in modes.items():
            path.chmod(mode)
