"""Files that are written whole or not at all, and folders that one process at a time changes."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from gradlet.errors import GradletError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not on every system; there nothing is locked
    fcntl = None

PATIENCE = 60.0
"""Seconds that another process may take to write a project."""
RENAME_EXCHANGE = 2
AT_FDCWD = -100
PARTIAL = ".gradlet-partial"
"""End of the name of a file that is being written; what a killed process leaves has it too."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Whether the lock was free; None where the file system has no locks. It lasts until the last
    copy of the descriptor is closed, those of child processes included."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


@contextmanager
def locked(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Keep other processes of ours from changing what is in a folder. The folder itself is locked,
    so that there is no lock file that could stay behind."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may not be listed cannot be locked
        yield
        return
    try:
        end = time.monotonic() + PATIENCE
        while try_lock(descriptor, shared=shared) is False:
            if time.monotonic() > end:
                raise GradletError(
                    f"another gradlet has been writing in '{folder}' for more than "
                    f"{PATIENCE:.0f} seconds; wait for it, or end it"
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Swap two folders in one step. An OSError where the system or the file system cannot."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    names = (os.fsencode(one), os.fsencode(other))
    if function(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(other))


def write_output(
    path: Path, content: bytes, ours: Callable[[bytes], bool], *, force: bool = False
) -> None:
    """Write a result to a file that the user named: whole, and over nothing but an earlier result
    (`ours` knows one by its content) unless forced."""
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise GradletError(f"'{path}' is a folder; name a file")
        path.write_bytes(content)  # a pipe or a device
        return
    try:
        if path.is_file() and not force and not _may_replace(path.read_bytes(), ours):
            raise GradletError(
                f"'{path}' is there already and was not written by this command; name another "
                "file, or give --force to overwrite it"
            )
        write_whole(path, content)
    except OSError as error:
        raise GradletError(f"cannot write '{path}': {error.strerror or error}") from None


def _may_replace(there: bytes, ours: Callable[[bytes], bool]) -> bool:
    return not there or ours(there)


def write_whole(path: Path, content: bytes) -> None:
    """Through a file beside it: whoever reads sees the old content or the new one. A link stays a
    link, and its target is written."""
    path = Path(os.path.realpath(path))
    with locked(path.parent):
        fresh = path.with_name(f".{path.name}{PARTIAL}")
        try:
            fresh.write_bytes(content)
            if path.exists():
                fresh.chmod(path.stat().st_mode & 0o7777)
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """What a killed process left of files that it was writing into a folder."""
    with suppress(OSError):
        found = [name for name in os.listdir(folder) if name.endswith(PARTIAL)]
        if not found:
            return
        with locked(folder):
            for name in found:
                (folder / name).unlink(missing_ok=True)
