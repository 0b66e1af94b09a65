"""Compiling the core: the cache, several processes at once, and every compiler there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradlet.sim import build
from gradlet.support import compiler as compilers
from gradlet.support.compiler import Compiler
from tests.sim.support import CALIBRATION, assemble

SOURCE = Path(build.__file__).resolve().parents[2]
SNIPPET = """
import sys
from pathlib import Path
from gradlet.sim import SimConfig, simulate
print(simulate(Path(sys.argv[1]), SimConfig.load(), max_cycles=10**7).stdout)
"""


def run(elf: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET, str(elf)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )
    return done.stdout


@pytest.fixture
def program() -> Path:
    return assemble(CALIBRATION / "fp_arith.S", PAD=0)


def test_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path))
    first = build.library()
    stamp = first.stat().st_mtime_ns
    assert build.library() == first
    assert first.stat().st_mtime_ns == stamp
    assert set(tmp_path.iterdir()) == {first, first.with_name(f"{first.name}.sha256")}


@pytest.mark.thorough
def test_several_processes_at_once(tmp_path: Path, program: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "GRADLET_CACHE": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SNIPPET, str(program)],
            text=True,
            stdout=subprocess.PIPE,
            env=environment,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert len(set(outputs)) == 1
    assert outputs[0]
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_every_compiler_gives_the_same(tmp_path: Path, program: Path) -> None:
    """Also without fused multiply-add in the host's instruction set."""
    expected = run(program)
    for number, compiler in enumerate(compilers.available()):
        library = build.library(compiler=compiler)
        assert run(program, GRADLET_SIM_LIBRARY=str(library)) == expected, compiler.name
        portable = tmp_path / f"portable{number}.so"
        sources = sorted(build.source_directory().glob("*.c"))
        flags = build.flags_of(compiler, portable=True)
        command = [*compiler.command, *flags, *map(str, sources), "-o", str(portable)]
        subprocess.run(command, check=True)
        assert run(program, GRADLET_SIM_LIBRARY=str(portable)) == expected, compiler.name


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path))
    monkeypatch.setattr(compilers, "available", lambda: [])
    with pytest.raises(build.BuildError, match="no C compiler"):
        build.library()


def test_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path))
    false = shutil.which("false")
    assert false
    broken = Compiler("broken", (false,), (), ())
    monkeypatch.setattr(compilers, "available", lambda: [broken])
    with pytest.raises(build.BuildError, match="false"):
        build.library()
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_long() -> None:
    for path in build.source_directory().iterdir():
        assert len(path.read_text().splitlines()) <= 420, path.name
