"""A cache that was damaged, cannot be used or was left by a killed process: all work as before."""

from __future__ import annotations

import ctypes
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradlet.sim import build
from gradlet.support import cache, compiler, values
from gradlet.tuner.cache import Cache

SOURCE = Path(__file__).parent.parent / "src"
COMPILE = """
import ctypes, sys
from pathlib import Path
from gradlet.support import cache
from gradlet.support import compiler

folder = Path(sys.argv[1])
(folder / "one.c").write_text("int three(void) { return 3; }\\n")
library = compiler.build_library([folder / "one.c"], folder / "one.so", compiler=compiler.zig())
assert ctypes.CDLL(str(library)).three() == 3
with cache.scratch_folder() as scratch:
    assert scratch.is_dir()
print(cache.cache_folder())
"""


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
        (path / "something").touch()
    elif how != "absent":
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        texts = {"empty": b"", "cut": content[: len(content) // 2], "garbage": os.urandom(999)}
        path.write_bytes({**texts, "one bit": bytes(changed)}[how])


DAMAGES = ("empty", "cut", "garbage", "one bit", "a folder", "absent")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("part", ["entry", "record"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_object_is_compiled_again(
    how: str, part: str, own_cache: Path, tmp_path: Path
) -> None:
    source = tmp_path / "one.c"
    source.write_text("int three(void) { return 3; }\n")

    def compiled() -> Path:
        tool = compiler.default()
        (made,) = compiler.compile_objects(tool, compiler.BASE, [source], [], {})
        return made

    entry = compiled()
    before = entry.read_bytes()
    damage(entry if part == "entry" else entry.with_name(f"{entry.name}.sha256"), how)
    assert not cache.is_whole(entry)
    assert compiled() == entry
    assert entry.read_bytes() == before
    assert cache.is_whole(entry)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_value_is_absent(how: str, own_cache: Path) -> None:
    """One bit may be where no value is."""
    values.kept("one", {"cycles": [1, 2]})
    damage(own_cache / "values.sqlite", how)
    still = [{"cycles": [1, 2]}] if how == "one bit" else []
    assert values.recalled("one") in [None, *still]
    values.kept("one", {"cycles": [3]})
    assert values.recalled("one") == {"cycles": [3]}


def test_a_value_that_was_changed_is_absent(own_cache: Path) -> None:
    values.kept("one", {"cycles": [1, 2]})
    with sqlite3.connect(own_cache / "values.sqlite") as base:
        base.execute(f"UPDATE {values.TABLE} SET value = '{{}}'")
    base.close()
    assert values.recalled("one") is None


def test_a_file_where_a_folder_of_the_cache_should_be(own_cache: Path) -> None:
    own_cache.mkdir()
    for name in ("objects", cache.SCRATCH):
        (own_cache / name).write_text("no folder")
    with cache.scratch_folder() as folder:
        (folder / "fresh").write_text("it")
        assert cache.keep(folder / "fresh", "objects/one.o").read_text() == "it"
    assert cache.is_whole(own_cache / "objects" / "one.o")


def run(folder: Path, **environment: str | None) -> str:
    """What the script prints, with an environment that differs (None: not set)."""
    there = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(folder)],
        env={name: value for name, value in there.items() if value is not None},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_cut_simulator_is_built_again(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading what was cut short would be a bus error. (The core is a small one here.)"""
    (tmp_path / "core.c").write_text('#define OUT __attribute__((visibility("default")))\n')
    with (tmp_path / "core.c").open("a") as file:
        file.write("OUT int three(void);\nint three(void) { return 3; }\n")
    monkeypatch.setattr(build, "source_directory", lambda: tmp_path)
    os.truncate(build.library(), 700)
    assert ctypes.CDLL(str(build.library())).three() == 3


UNUSABLE: dict[str, dict[str, str | None]] = {
    "no home": {"HOME": None},
    "no home at all": {"HOME": "nowhere"},
    "home is a file": {"HOME": "{tmp}/file"},
    "a file in its place": {"GRADLET_CACHE": "{tmp}/file"},
    "below a file": {"GRADLET_CACHE": "{tmp}/file/cache"},
    "nothing can be made there": {"GRADLET_CACHE": "/proc/gradlet"},
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_cache_that_cannot_be_used(case: str, tmp_path: Path) -> None:
    """Everything works in a temporary folder, and nothing of it stays."""
    temporary, work = tmp_path / "temporary", tmp_path / "work"
    temporary.mkdir()
    work.mkdir()
    (tmp_path / "file").write_text("mine")
    default = {"GRADLET_CACHE": None, "XDG_CACHE_HOME": None, "TMPDIR": str(temporary)}
    given = {k: v.format(tmp=tmp_path) if v else v for k, v in UNUSABLE[case].items()}
    if case == "no home":  # the user's own, by the list of users; that is not for a test to fill
        default["XDG_CACHE_HOME"] = str(tmp_path / "file")
    folder = run(work, **{**default, **given})
    assert Path(folder).is_relative_to(temporary), folder
    assert list(temporary.iterdir()) == []
    assert (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in work.iterdir()} == {"one.c", "one.so"}


def test_a_full_disk_is_no_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "ROOM", 2**62)
    cache._usable.cache_clear()
    assert cache.lasting_folder() is None
    assert not cache.cache_folder().is_relative_to(own_cache)
    cache._usable.cache_clear()


def test_an_entry_that_cannot_be_kept_is_used(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = cache._move

    def refused(fresh: Path, path: Path) -> Path:
        if path.is_relative_to(own_cache):
            raise PermissionError(13, "Permission denied", str(path))
        return move(fresh, path)

    monkeypatch.setattr(cache, "_move", refused)
    (tmp_path / "fresh").write_text("it")
    assert cache.keep(tmp_path / "fresh", "objects/one.o").read_text() == "it"


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def spoil_a_value(path: Path) -> None:
    with sqlite3.connect(path) as base:
        base.execute(f"UPDATE {values.TABLE} SET value = '17'")
    base.close()


def another_table(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as base:
        base.execute(f"CREATE TABLE {values.TABLE} (name TEXT)")
    base.close()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [overwrite, cut, spoil_a_value, another_table, a_folder])
def test_damaged_measurements_are_forgotten(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "values.sqlite"
    first = Cache(path)
    first.add({f"key {i}": 1000 + i for i in range(300)})
    first.close()
    spoil(path)
    again = Cache(path)
    limits = {f"key {i}": 10**9 for i in range(300)}
    assert all(value == 1000 + int(key[4:]) for key, value in again.known(limits).items())
    again.add({"key 7": 70})
    assert again.known({"key 7": 10**9}) == {"key 7": 70}
    again.close()


def test_measurements_damaged_while_they_are_used(tmp_path: Path) -> None:
    path = tmp_path / "values.sqlite"
    first = Cache(path)
    first.add({f"key {i}": i for i in range(3000)})
    overwrite(path)
    again = Cache(path)
    again.add({"a": 1})
    assert again.known({"a": 10**9}) == {"a": 1}
    first.known({"key 5": 10**9})
    first.add({"b": 2})
    assert first.known({"b": 10**9}) == {"b": 2}


HOLD = """
import subprocess, sys
from gradlet.support import cache
with cache.scratch_folder() as folder:
    child = subprocess.Popen(["sleep", "60"], pass_fds=cache.held_by(folder))
    print(folder, child.pid, flush=True)
    sys.stdin.read()
"""


def test_scratch_folders_of_killed_processes_are_removed(own_cache: Path) -> None:
    """Not those of a living one, nor those where a child of a killed one still works."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    name, child = process.stdout.readline().split()

    def another_run() -> None:
        cache._remove_left_behind.cache_clear()
        with cache.scratch_folder():
            pass

    another_run()
    assert Path(name).exists(), "it is in use"
    process.kill()
    process.wait()
    another_run()
    assert Path(name).exists(), "a child works there"
    os.kill(int(child), signal.SIGKILL)
    for _ in range(100):
        another_run()
        if not Path(name).exists():
            break
        time.sleep(0.01)
    assert not (own_cache / cache.SCRATCH).exists()
    process.stdin.close() if process.stdin else None
    process.stdout.close()


def test_threads_hold_scratch_folders_at_once(own_cache: Path) -> None:
    done = threading.Event()

    def others() -> None:
        while not done.is_set():
            with cache.scratch_folder():
                pass

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(4) as pool, cache.scratch_folder() as folder:
        running = [pool.submit(others) for _ in range(4)]
        try:
            end = time.monotonic() + 2
            while time.monotonic() < end:
                assert len(cache.held_by(folder)) == 1
        finally:
            done.set()
            sys.setswitchinterval(before)
        for thread in running:
            thread.result()
