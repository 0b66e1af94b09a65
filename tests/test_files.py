"""Results are written whole, and over nothing that somebody else wrote."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gradlet.codegen.install import recover
from gradlet.errors import GradletError
from gradlet.support import files
from gradlet.support.files import write_output, write_whole
from gradlet.verifier import failure


def ours(content: bytes) -> bool:
    return content.startswith(b"ours")


@pytest.mark.parametrize("there", [None, b"", b"ours of yesterday"])
def test_a_result_takes_the_place_of_an_earlier_one(there: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    if there is not None:
        path.write_bytes(there)
        path.chmod(0o640)
    write_output(path, b"ours of today", ours)
    assert path.read_bytes() == b"ours of today"
    assert there is None or path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["m.csv"]


def test_a_file_of_somebody_else_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"hours of training")
    with pytest.raises(GradletError, match=r"was not written by this command.*--force"):
        write_output(path, b"ours", ours)
    assert path.read_bytes() == b"hours of training"
    write_output(path, b"ours", ours, force=True)
    assert path.read_bytes() == b"ours"


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_output(tmp_path / "link", b"ours", ours)
    assert (tmp_path / "target").read_bytes() == b"ours"
    assert (tmp_path / "link").is_symlink()


def test_what_is_no_file_is_written_to_or_named(tmp_path: Path) -> None:
    write_output(Path("/dev/null"), b"ours", ours)
    with pytest.raises(GradletError, match="is a folder; name a file"):
        write_output(tmp_path, b"ours", ours)
    with pytest.raises(GradletError, match=r"cannot write .*: No such file or directory"):
        write_output(tmp_path / "nowhere" / "m.csv", b"ours", ours)


def test_a_full_disk_leaves_the_old_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:2])
        raise OSError(28, os.strerror(28), str(path))

    path = tmp_path / "m.csv"
    path.write_bytes(b"ours, old")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(GradletError, match="No space left on device"):
        write_output(path, b"ours, new", ours)
    assert path.read_bytes() == b"ours, old"
    assert os.listdir(tmp_path) == ["m.csv"]


def test_what_a_killed_process_left_of_a_file_is_removed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f".{name}{files.PARTIAL}").write_bytes(b"half")
    write_whole(tmp_path / "a", b"whole")
    assert sorted(os.listdir(tmp_path)) == [f".b{files.PARTIAL}", "a"]
    recover(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_a_failure_is_saved_beside_a_file_of_the_users(tmp_path: Path) -> None:
    mine = tmp_path / failure.NAME
    np.savez(mine, results=np.arange(3))
    before = mine.read_bytes()
    first = failure.save(tmp_path, {"x": np.ones(2)}, {"y": np.zeros(2)})
    again = failure.save(tmp_path, {"x": np.ones(3)}, {"y": np.zeros(3)})
    assert first == again == str(tmp_path / "verify-failure-1.npz")
    with np.load(first) as saved:
        assert {name: saved[name].shape for name in saved} == {"input/x": (3,), "output/y": (3,)}
    failure.forget(tmp_path)
    assert os.listdir(tmp_path) == [failure.NAME]
    assert mine.read_bytes() == before
