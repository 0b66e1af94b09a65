"""What is kept from run to run, and scratch folders; both heal by themselves.

An entry of the cache has its SHA-256 in a file beside it. What does not agree with it, because it
was cut short, damaged or never finished, counts as absent and is made anew. A scratch folder is
locked as long as a process uses it: those that nobody holds were left by a killed process, and
the next one removes them.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from gradlet.errors import GradletError
from gradlet.support.files import try_lock

RECORD = ".sha256"
ROOM = 16 * 1024 * 1024
"""Bytes that have to be free where the cache is."""
SCRATCH = "scratch"
TRIES = 100
_descriptors: dict[Path, int] = {}


def cache_folder() -> Path:
    """Where things are kept: GRADLET_CACHE, or the user's cache directory; a temporary folder for
    this process where that is not usable."""
    return lasting_folder() or _temporary(os.getpid())


def lasting_folder() -> Path | None:
    """The cache, if it outlives this process."""
    given = os.environ.get("GRADLET_CACHE")
    folder = Path(os.path.abspath(given)) if given else _user_cache()
    return _usable(folder) if folder else None


def _user_cache() -> Path | None:
    """None where no home is known."""
    if sys.platform == "darwin":
        home = Path(os.path.expanduser("~"))
        return home / "Library" / "Caches" / "gradlet" if home.is_absolute() else None
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / ".cache"
    return base / "gradlet" if base.is_absolute() else None


@cache
def _usable(folder: Path) -> Path | None:
    """That folder if it can be written and has room."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < ROOM:
            return None
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


@cache
def _temporary(process: int) -> Path:
    """Gone at the end of the process, or removed by the next one."""
    held = ExitStack()
    folder = held.enter_context(_held_folder(_private_folder()))
    atexit.register(held.close)
    return folder


def _private_folder() -> Path:
    """A folder of this user's where temporary files are; nobody else can have put one there."""
    try:
        base = Path(tempfile.gettempdir())
        user = os.getuid() if hasattr(os, "getuid") else 0
        folder = base / f"gradlet-{user}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077:
            return folder
        return Path(tempfile.mkdtemp(prefix="gradlet-"))
    except OSError as error:
        raise GradletError(
            f"there is no folder for temporary files ({error}); set TMPDIR to one"
        ) from None


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder for a while, on the same file system as the cache."""
    with _held_folder(cache_folder() / SCRATCH) as folder:
        yield folder


@contextmanager
def _held_folder(base: Path) -> Iterator[Path]:
    """A new folder, in one that is locked by this process and by the children that get its
    descriptor. Whoever leaves last removes the base, too."""
    _remove_left_behind(base, os.getpid())
    folder, descriptor = _new_folder(base)
    _descriptors[folder] = descriptor
    try:
        inner = folder / "files"
        inner.mkdir()
        yield inner
    finally:
        del _descriptors[folder]
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        with suppress(OSError):
            base.rmdir()


def _new_folder(base: Path) -> tuple[Path, int]:
    for _ in range(TRIES):
        # another one has cleaned up just now, perhaps between mkdir's attempt and its look at why
        with suppress(FileNotFoundError, FileExistsError):
            _make_folder(base)
            folder = Path(tempfile.mkdtemp(dir=base, prefix=""))
            descriptor = os.open(folder, os.O_RDONLY)
            if try_lock(descriptor) is not False and folder.exists():
                return folder, descriptor
            os.close(descriptor)
    raise GradletError(f"cannot make a folder for temporary files in '{base}'")


def _make_folder(folder: Path) -> None:
    """A file in its place is none of the cache's, and is removed."""
    if folder.exists() and not folder.is_dir():
        folder.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def held_by(folder: Path) -> tuple[int, ...]:
    """The descriptors that a child process needs to hold the scratch folder that it writes to."""
    above = (_descriptors.get(held) for held in (folder, *folder.parents))  # threads add and remove
    return tuple(descriptor for descriptor in above if descriptor is not None)


@cache
def _remove_left_behind(base: Path, process: int) -> None:
    """Once per process: scratch folders of processes that were killed."""
    with suppress(OSError):
        for entry in os.scandir(base):
            with suppress(OSError):
                descriptor = os.open(entry.path, os.O_RDONLY)
                try:
                    if try_lock(descriptor) is True:
                        shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(descriptor)


def is_whole(path: Path) -> bool:
    """Whether an entry is there, as it was kept."""
    try:
        return _record(path).read_text() == _digest(path)
    except (OSError, ValueError):
        return False


def keep(fresh: Path, name: str) -> Path:
    """Move a file into the cache, and say where it is now. Several processes may do so at once: the
    last to finish wins, and what a reader finds between the two steps counts as absent."""
    try:
        return _move(fresh, cache_folder() / name)
    except OSError:  # that part of the cache cannot be written
        return _move(fresh, _temporary(os.getpid()) / name)


def _move(fresh: Path, path: Path) -> Path:
    record = fresh.with_name(f"{fresh.name}{RECORD}")
    record.write_text(_digest(fresh))
    _make_folder(path.parent)
    for source, target in ((fresh, path), (record, _record(path))):
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)  # nothing of ours
        try:
            os.replace(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copyfile(source, target)
    return path


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}{RECORD}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
