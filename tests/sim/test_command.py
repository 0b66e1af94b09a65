"""The command `gradlet sim`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradlet.cli.commands import app
from tests.sim.support import EXIT, PROGRAMS, assemble, elf_of, i_type, li, s_type


def main(arguments: list[str]) -> int:
    """The exit status of `gradlet sim`."""
    return int(app(["sim", *arguments], prog_name="gradlet", standalone_mode=False) or 0)


@pytest.fixture
def program() -> str:
    return str(assemble(PROGRAMS / "counters.S", NC=4))


def test_json(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main([program, "--json", "--set", "fpus=4", "--set", "contention=off", "--cores", "4"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"exit_code", "stdout", "cycles", "cores", "seconds"}
    assert len(document["cores"]) == 4
    core = document["cores"][0]
    assert core.keys() == {"instructions", "cycles", "stalls"}
    assert {"load_use", "tcdm_contention", "fpu_contention", "icache", "barrier", "dma"} <= core[
        "stalls"
    ].keys()


def test_text_and_trace(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([program, "--trace"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "exit code 0 after" in captured.err
    assert "core_start" in captured.err


def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.elf"
    path.write_bytes(elf_of([*li(5, 0x1A1040A0), *li(6, 0x80000003), s_type(0x23, 2, 6, 5, 0)]))
    assert main([str(path)]) == 1
    path.write_bytes(elf_of([i_type(3, 2, 5, 0, 0), *EXIT]))
    assert main([str(path)]) == 1
    assert "fabric controller, pc 0x1c010000" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing.elf")]) == 2
    assert main([str(path), "--set", "fpus"]) == 2
    assert main([str(path), "--set", "colour=red"]) == 2
    assert "no setting 'colour'" in capsys.readouterr().err
