"""Puts a project into its folder as a whole: whenever the process is killed, the folder is the old
one or the new one.

The new project is written completely into a folder beside its place (or inside it, where nothing
may be written beside). A journal is added that says what may be replaced. Then

- a new folder is renamed into place;
- an existing one is exchanged with the new one in a single step. What the user has in it is in the
  new one before, by hard links, so that it is never missing;
- where that is not possible (no such call, no hard links, a mounted folder, or somebody's working
  directory, which should not vanish under him), the files are renamed one by one.

`settle` finishes all three, and is what the next run calls if it finds a journal: it may be stopped
and called again at any time. Without a journal the new project is not complete and is removed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from gradlet.codegen.folder import MANIFEST, digest, replaceable
from gradlet.errors import GradletError
from gradlet.support.files import PARTIAL, exchange, locked, remove_partial

JOURNAL = "journal.json"
NEW = "new"
MOST_CARRIED = 2000
"""Files of the user's that are worth linking; with more, files are renamed one by one."""
LONGEST_NAME = 255
KEPT = ".yours"
"""End of the name of a file that was changed in the very moment when the project was replaced."""


def write_folder(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Make a folder hold these files, the manifest among them, instead of an earlier project."""
    place = Path(os.path.realpath(folder))
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.parent):
        _recover(place)
        old = replaceable(place, files, force=force)
        _check_permission(place, {*old, *files})
        staging = _new_staging(place)
        try:
            _write_staged(staging, files, old)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        try:
            _install(place, staging, old)
        except KeyboardInterrupt:
            settle(place, staging)
            raise


def refuse_foreign(folder: Path, *, force: bool = False) -> None:
    """Raise if a project in this folder would cost the user something that he has there, or cannot
    be written."""
    recover(folder)
    replaceable(folder, force=force)
    with writing(folder):
        _check_permission(Path(os.path.realpath(folder)))


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the system refuses becomes a message."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise GradletError(f"cannot write the project to '{folder}': {reason}") from None


def recover(folder: Path) -> None:
    """Finish or remove what a killed process has begun to write. Whoever may only read leaves it as
    it is: hashes tell whether it is whole."""
    place = Path(os.path.realpath(folder))
    remove_partial(place)
    if any(map(os.path.lexists, _stagings(place))):
        with locked(place.parent), suppress(OSError):
            _recover(place)


def _recover(place: Path) -> None:
    for staging in filter(_is_ours, _stagings(place)):
        if (staging / JOURNAL).exists():
            settle(place, staging)
        else:
            shutil.rmtree(staging)


def _is_ours(staging: Path) -> bool:
    """A folder that happens to have this name is not."""
    known = {NEW, JOURNAL, f"{JOURNAL}{PARTIAL}"}
    return staging.is_dir() and not staging.is_symlink() and set(os.listdir(staging)) <= known


def _check_permission(place: Path, names: Iterable[str] = (MANIFEST,)) -> None:
    """Before anything is written: what was begun could not be finished."""
    folders = sorted({(place / name).parent for name in names})
    there = next(folder for folder in (place, *place.parents) if os.path.lexists(folder))
    for folder in {there, *filter(os.path.lexists, folders)}:
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"'{folder}' is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"no permission to write in '{folder}'")


def _stagings(place: Path) -> tuple[Path, Path]:
    """Beside the folder; inside, if nothing can be written there."""
    name = f".{place.name}.gradlet"
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = f".{hashlib.sha256(os.fsencode(name)).hexdigest()}.gradlet"
    return place.parent / name, place / ".gradlet"


def _new_staging(place: Path) -> Path:
    beside, inside = _stagings(place)
    try:
        beside.mkdir()
        return beside
    except OSError:
        if not place.is_dir():
            raise
        inside.mkdir()
        return inside


def _write_staged(staging: Path, files: Mapping[str, bytes], old: Mapping[str, str]) -> None:
    """All files, then the journal, which has to appear as a whole."""
    for name, content in files.items():
        path = staging / NEW / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    new = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    fresh = staging / f"{JOURNAL}{PARTIAL}"
    fresh.write_bytes(json.dumps({"old": dict(old), "new": new}).encode())
    os.replace(fresh, staging / JOURNAL)


def _install(place: Path, staging: Path, old: Collection[str]) -> None:
    if place.exists() and staging.parent == place.parent and not _in_use(place):
        with suppress(OSError):  # then file by file
            _carry(place, staging / NEW, old)
            exchange(staging / NEW, place)
    settle(place, staging)


def _in_use(place: Path) -> bool:
    """Whether a process has its working directory in there, which an exchange would take away."""
    folders = [os.getcwd()]
    if sys.platform == "linux":
        for process in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                folders.append(os.readlink(process))
    return any(Path(folder).is_relative_to(place) for folder in folders)


def _carry(place: Path, new: Path, old: Collection[str]) -> None:
    """Link into the new folder what the user has in the old one; an OSError if something there
    cannot be linked."""
    found = [name for name in _files_of(place) if name not in old]
    if len(found) > MOST_CARRIED:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
    emptied = {str(parent) for name in old for parent in PurePosixPath(name).parents}
    for folder in _folders_of(place):
        if folder not in emptied:
            (new / folder).mkdir(parents=True, exist_ok=True)
    for name in found:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(place / name, new / name, follow_symlinks=False)
    for folder in (*_folders_of(new), "."):  # last, as it may make them unwritable
        if (place / folder).is_dir():
            _same_owner(place / folder, new / folder)
            shutil.copystat(place / folder, new / folder)


def _folders_of(place: Path) -> list[str]:
    """Those inside first."""
    found = [Path(folder) for folder, _, _ in os.walk(place, topdown=False, onerror=_raise)]
    return [folder.relative_to(place).as_posix() for folder in found if folder != place]


def _same_owner(one: Path, other: Path) -> None:
    wanted, there = one.stat(), other.stat()
    if (wanted.st_uid, wanted.st_gid) != (there.st_uid, there.st_gid):
        os.chown(other, wanted.st_uid, wanted.st_gid)


def _raise(error: OSError) -> None:
    raise error


def settle(place: Path, staging: Path) -> None:
    """Bring a folder and what was staged for it to the end: all that is new into the folder, the
    old files away, and the user's own where they were. What is staged may be the new project or,
    after the exchange, the old one."""
    staged = staging / NEW
    try:
        journal = json.loads((staging / JOURNAL).read_bytes())
        old, new = dict(journal["old"]), dict(journal["new"])
    except (ValueError, KeyError, TypeError):
        raise GradletError(
            f"'{staging}' was left by an interrupted write of '{place}', and its {JOURNAL} is "
            "damaged. Delete it, after a look whether it has files of yours"
        ) from None
    if staged.exists() and not os.path.lexists(place):
        os.rename(staged, place)
    for name in list(_files_of(staged)):
        _settle_file(place, staged, name, old.get(name), new.get(name))
    for name in old.keys() - new.keys():
        if digest(place, name) == old[name]:
            (place / name).unlink()
            _remove_empty(place, name)
    if (staged / MANIFEST).exists():
        _settle_file(place, staged, MANIFEST, old.get(MANIFEST), new[MANIFEST])
    for inside in (*_folders_of(staged), "") if staged.exists() else ():
        (staged / inside).rmdir()
    (staging / JOURNAL).unlink()
    staging.rmdir()


def _files_of(folder: Path) -> Iterator[str]:
    """Every file and link but the manifest: that shows that all the rest is in its place."""
    for inside, names, files in os.walk(folder):
        names.sort()
        links = [name for name in names if Path(inside, name).is_symlink()]
        for name in sorted((*files, *links)):
            path = Path(inside, name).relative_to(folder).as_posix()
            if path != MANIFEST:
                yield path


def _settle_file(place: Path, staged: Path, name: str, old: str | None, new: str | None) -> None:
    source, target = staged / name, place / name
    if os.path.lexists(target) and os.path.samestat(source.lstat(), target.lstat()):
        source.unlink()  # a file of the user's that is in both
        return
    now = digest(staged, name)
    if now == new:
        there = digest(place, name)
        if there is None or (there == old and there != new):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
        else:  # it is there already, or the user has written one in the meantime
            source.unlink()
    elif now == old:
        source.unlink()
    else:  # the user wrote it when the folders were exchanged
        while os.path.lexists(target):
            target = target.with_name(f"{target.name}{KEPT}")
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)


def _remove_empty(place: Path, name: str) -> None:
    for parent in (place / name).parents:
        if parent == place:
            return
        try:
            parent.rmdir()
        except OSError:
            return
