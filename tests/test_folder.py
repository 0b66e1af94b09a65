"""A project's folder: nothing of the user's is lost, and what is killed leaves it old or new."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from gradlet.codegen import install
from gradlet.codegen.folder import MANIFEST, changes, contents, replaceable, sealed
from gradlet.codegen.install import recover, refuse_foreign, write_folder
from gradlet.errors import GradletError
from gradlet.support.files import exchange, locked
from tests.interruptions.follow import Follower, killed_at


def project(version: str, *more: str) -> dict[str, bytes]:
    """The files of a small one. `more`: with files that another version does not have."""
    files = {name: f"{name} {version}".encode() for name in ("main.c", "net.c", "plan.json")}
    files |= {f"kernels/{name}.c": name.encode() * 9 for name in ("shared", *more)}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return {**files, MANIFEST: sealed({"files": hashes})}


OLD, NEW = project("old", "a", "b"), {**project("new", "b", "c"), "weights.bin": bytes(range(256))}
HASHES = {n: hashlib.sha256(c).hexdigest() for n, c in NEW.items() if n != MANIFEST}
NEW[MANIFEST] = sealed({"files": HASHES})
MINE = {"notes.txt": b"mine", "kernels/own.c": b"mine", "build/x.o": b"", ".git/config": b"[core]"}


def snapshot(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return {
        path.relative_to(folder).as_posix(): os.fsencode(os.readlink(path))
        if path.is_symlink()
        else path.read_bytes()
        for path in paths
    }


def put(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "p", OLD)
    assert snapshot(tmp_path / "p") == OLD
    return tmp_path / "p"


def unable(*_: object, **__: object) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


WAYS = ("exchange", "no exchange", "no links", "working directory")


def go(way: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let folders be replaced in another way."""
    if way == "no exchange":
        monkeypatch.setattr(install, "exchange", unable)
    elif way == "no links":
        monkeypatch.setattr(os, "link", unable)
    elif way == "working directory":
        monkeypatch.chdir(folder / "kernels")


@pytest.mark.parametrize("way", WAYS)
def test_files_of_the_user_stay(
    way: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, MINE)
    (folder / "link").symlink_to("/nowhere")
    (folder / "elsewhere").symlink_to(tmp_path)
    (folder / "empty").mkdir(mode=0o750)
    folder.chmod(0o751)
    go(way, folder, monkeypatch)
    inodes = {name: (folder / name).stat().st_ino for name in MINE}
    itself = folder.stat().st_ino
    write_folder(folder, NEW)
    links = {"link": b"/nowhere", "elsewhere": os.fsencode(tmp_path)}
    assert snapshot(folder) == {**NEW, **MINE, **links}
    assert {name: (folder / name).stat().st_ino for name in MINE} == inodes
    assert [(folder / name).stat().st_nlink for name in MINE] == [1] * len(MINE)
    assert (folder / "empty").stat().st_mode & 0o777 == 0o750
    assert folder.stat().st_mode & 0o777 == 0o751
    assert os.listdir(tmp_path) == ["p"]
    assert (folder.stat().st_ino == itself) == (way != "exchange")


FOREIGN: dict[str, dict[str, bytes]] = {
    "no manifest": {"thesis.tex": b"all my work"},
    "a browser extension": {
        MANIFEST: json.dumps(
            {"manifest_version": 3, "name": "x", "files": {"main.c": "0", "bg.js": "1"}}
        ).encode(),
        "main.c": b"not yours",
        "bg.js": b"not yours either",
    },
    "a web app": {MANIFEST: b'{"short_name": "app", "icons": []}', "index.html": b"<html>"},
    "a list": {MANIFEST: b"[]"},
    "no JSON": {MANIFEST: b"\xff\x00", "a": b"b"},
    "nested too deeply": {MANIFEST: b"[" * 100_000},
    "only a hidden file": {".env": b"SECRET"},
    "made before there was a hash": {
        MANIFEST: b'{"gradlet": "0.0.1", "prefix": "net", "kernels": [], "files": {}}'
    },
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_folder_is_left_alone(case: str, force: bool, tmp_path: Path) -> None:
    put(tmp_path / "p", FOREIGN[case])
    with pytest.raises(GradletError, match="is not a Gradlet project"):
        write_folder(tmp_path / "p", NEW, force=force)
    assert snapshot(tmp_path) == {f"p/{name}": text for name, text in FOREIGN[case].items()}


def test_a_repository_with_nothing_in_it_is_as_good_as_empty(tmp_path: Path) -> None:
    put(tmp_path / "p", {".git/HEAD": b"ref", ".gitignore": b"*.o"})
    write_folder(tmp_path / "p", NEW)
    assert snapshot(tmp_path / "p") == {**NEW, ".git/HEAD": b"ref", ".gitignore": b"*.o"}


def edit(name: str) -> Callable[[Path], None]:
    def edited(folder: Path) -> None:
        (folder / name).write_bytes(b"work of a night")

    return edited


def link(name: str) -> Callable[[Path], None]:
    def linked(folder: Path) -> None:
        (folder.parent / "elsewhere").write_bytes((folder / name).read_bytes())
        (folder / name).unlink()
        (folder / name).symlink_to(folder.parent / "elsewhere")

    return linked


def edit_manifest(folder: Path) -> None:
    path = folder / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"files"', b'"mine": 1, "files"'))


EDITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a file that is replaced": (edit("main.c"), "main.c"),
    "a file that would be deleted": (edit("kernels/a.c"), "kernels/a.c"),
    "a file that stays as it is": (edit("kernels/shared.c"), "kernels/shared.c"),
    "the user's own, where ours is new": (edit("kernels/c.c"), "kernels/c.c"),
    "a link to the same text": (link("main.c"), "main.c"),
    "the manifest": (edit_manifest, MANIFEST),
}


@pytest.mark.parametrize("case", EDITS)
def test_edited_files_are_kept_unless_forced(case: str, folder: Path, tmp_path: Path) -> None:
    spoil, name = EDITS[case]
    spoil(folder)
    before = snapshot(tmp_path)
    with pytest.raises(GradletError, match=rf"{name}\. Nothing was written.*--force"):
        write_folder(folder, NEW)
    assert snapshot(tmp_path) == before
    write_folder(folder, NEW, force=True)
    assert snapshot(folder) == NEW
    elsewhere = tmp_path / "elsewhere"
    assert not elsewhere.exists() or elsewhere.read_bytes() == OLD["main.c"]


def test_deleted_files_come_back(folder: Path) -> None:
    (folder / "main.c").unlink()
    write_folder(folder, NEW)
    assert snapshot(folder) == NEW


def a_folder(folder: Path) -> None:
    (folder / "weights.bin").mkdir()


def a_linked_folder(folder: Path) -> None:
    (folder / "kernels").rename(folder.parent / "kernels")
    (folder / "kernels").symlink_to(folder.parent / "kernels")


@pytest.mark.parametrize("spoil", [a_folder, a_linked_folder])
def test_something_else_in_the_way(
    spoil: Callable[[Path], None], folder: Path, tmp_path: Path
) -> None:
    spoil(folder)
    before = snapshot(tmp_path)
    with pytest.raises(GradletError, match=r"something else|--force"):
        write_folder(folder, NEW)
    with pytest.raises(GradletError, match="something else where files of the project belong"):
        write_folder(folder, NEW, force=True)
    assert snapshot(tmp_path) == before


def test_a_manifest_that_points_outside_deletes_nothing(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    value = hashlib.sha256(b"mine").hexdigest()
    names = ("../victim", str(victim), "kernels/../../victim", "./main.c", "")
    (folder / MANIFEST).write_bytes(sealed({"files": dict.fromkeys(names, value)}))
    assert contents(folder).recorded == {}
    with pytest.raises(GradletError, match="differ from what was built"):
        replaceable(folder, NEW)
    write_folder(folder, NEW, force=True)
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "name", ["a b", "pröject", b"\xff\xfe", "[bold]", "-o", "n" * 255, ".hidden", "x.gradlet"]
)
def test_odd_names(name: str | bytes, tmp_path: Path) -> None:
    folder = tmp_path / (os.fsdecode(name) if isinstance(name, bytes) else name)
    for files in (OLD, NEW):
        write_folder(folder, files)
        assert snapshot(folder) == files
    assert list(tmp_path.iterdir()) == [folder]


def test_a_linked_folder_stays_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("p")
    (tmp_path / "sub").mkdir()
    write_folder(tmp_path / "link", NEW)
    write_folder(tmp_path / "sub" / ".." / "link" / "", NEW)
    assert (tmp_path / "link").is_symlink()
    assert snapshot(folder) == NEW
    assert sorted(os.listdir(tmp_path)) == ["link", "p", "sub"]


def test_a_folder_that_may_not_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told before anything is begun. (Nothing is forbidden to root, so this is pretended.)"""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))
    with pytest.raises(PermissionError, match="no permission to write in"):
        write_folder(folder, NEW)
    assert snapshot(tmp_path) == {f"p/{name}": text for name, text in OLD.items()}


def test_a_parent_that_may_not_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a volume that is mounted: all is done inside."""
    mkdir = Path.mkdir

    def refused(path: Path, *args: object, **options: object) -> None:
        if path.parent == tmp_path and not path.exists():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        mkdir(path, *args, **options)  # type: ignore[arg-type]

    put(folder, MINE)
    monkeypatch.setattr(Path, "mkdir", refused)
    write_folder(folder, NEW)
    assert snapshot(folder) == {**NEW, **MINE}
    assert not (folder / ".gradlet").exists()


@pytest.mark.parametrize(("name", "message"), [("file/p", "not a folder"), ("none/p", "no perm")])
def test_a_place_that_cannot_be_written_is_told_at_once(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is planned."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(GradletError, match=message):
        refuse_foreign(tmp_path / name)
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_finished_is_judged_by_its_hashes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By somebody who may only read."""
    monkeypatch.setattr(install, "settle", unable)
    with pytest.raises(OSError, match="Invalid argument"):
        write_folder(folder, NEW)
    recover(folder)
    assert changes(folder) == ()
    assert snapshot(folder) == NEW, "the exchange was the last step that mattered"


@pytest.mark.parametrize("text", ["", "[]", '{"old": 3}', '{"old": {}}'])
def test_a_damaged_journal_is_told(text: str, folder: Path, tmp_path: Path) -> None:
    put(tmp_path / ".p.gradlet", {"journal.json": text.encode(), "new/main.c": b"?"})
    with pytest.raises(GradletError, match=r"journal.json is damaged. Delete it"):
        recover(folder)
    assert snapshot(folder) == OLD


def test_a_users_folder_with_the_name_of_ours(folder: Path, tmp_path: Path) -> None:
    put(tmp_path / ".p.gradlet", {"precious": b"mine"})
    write_folder(folder, NEW)
    recover(folder)
    assert snapshot(tmp_path / ".p.gradlet") == {"precious": b"mine"}
    assert snapshot(folder) == NEW


def test_what_is_written_during_the_exchange_stays(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an editor, into the folder that is the old one a moment later."""
    swap = exchange

    def written_meanwhile(one: Path, other: Path) -> None:
        put(other, {"main.c": b"saved just now", "late.txt": b"new", "sub/late.txt": b"new"})
        swap(one, other)

    monkeypatch.setattr(install, "exchange", written_meanwhile)
    write_folder(folder, NEW)
    late = {"main.c.yours": b"saved just now", "late.txt": b"new", "sub/late.txt": b"new"}
    assert snapshot(folder) == {**NEW, **late}
    assert os.listdir(tmp_path) == ["p"]


def test_changes_are_named(folder: Path) -> None:
    assert changes(folder, ["kernels/*.c"]) == ()
    edit("main.c")(folder)
    (folder / "kernels/a.c").unlink()
    put(folder, MINE)
    found = ("kernels/a.c (deleted)", "kernels/own.c (added)", "main.c (edited)")
    assert changes(folder, ["kernels/*.c"]) == found


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    """The last wins, whole; a reader never sees a mixture."""
    place, failures, stop = tmp_path / "p", [], threading.Event()
    script = (
        "import sys\nfrom pathlib import Path\nfrom tests.test_folder import *\n"
        "for _ in range(15):\n    write_folder(Path(sys.argv[1]), globals()[sys.argv[2]])\n"
    )
    write_folder(place, OLD)

    def read() -> None:
        while not stop.is_set():
            recover(place)
            with locked(place.parent, shared=True):
                if changes(place):
                    failures.append(changes(place))

    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", script, str(place)]
    reader = threading.Thread(target=read)
    reader.start()
    writers = [subprocess.Popen([*command, which], env=environment) for which in ("OLD", "NEW")]
    codes = [writer.wait() for writer in writers]
    stop.set()
    reader.join()
    assert codes == [0, 0]
    assert not failures
    assert snapshot(place) in (OLD, NEW)
    assert os.listdir(tmp_path) == ["p"]


@pytest.fixture(scope="module")
def follower(tmp_path_factory: pytest.TempPathFactory) -> Follower:
    return Follower(tmp_path_factory.mktemp("follower"))


@pytest.mark.parametrize("way", ["new", *WAYS])
def test_killed_at_every_change(
    way: str, follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is the old one or the new one: at once, where folders can be exchanged; else for
    the next run. What the user has in it is there all the time."""
    old = {} if way == "new" else {**OLD, **MINE}
    new = NEW if way == "new" else {**NEW, **MINE}
    position, seen = 0, set()
    while True:
        position += 1
        base = tmp_path / str(position)
        place = base / "p"
        base.mkdir()
        if old:
            write_folder(place, OLD)
            put(place, MINE)
        with monkeypatch.context() as patch:
            go(way, place, patch)
            outcome = follower.run(partial(write_folder, place, NEW), killed_at(position))
        if outcome.exit_code == 0:
            break
        assert outcome.exit_code is None, "killed"
        raw = snapshot(place)
        assert not old or {name: raw.get(name) for name in MINE} == MINE
        if way in ("new", "exchange"):
            assert raw in (old, new), position
        recover(place)
        assert snapshot(place) in (old, new), position
        seen.add(snapshot(place) == new)
        write_folder(place, NEW)
        assert snapshot(place) == new
        assert os.listdir(base) == ["p"]
    assert position > 20
    assert seen == {False, True}
