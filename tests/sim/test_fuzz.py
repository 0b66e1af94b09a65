"""Whatever the program: the process neither crashes nor hangs, and no sanitizer complains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradlet.sim import build
from gradlet.support import compiler as compilers
from tests.sim.support import CALIBRATION, PROGRAMS, assemble

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
ROUNDS = int(os.environ.get("GRADLET_FUZZ_ROUNDS", "400"))
GCC = shutil.which("gcc")


def trapping_library() -> Path:
    """Built by zig, which has no address sanitizer: undefined behaviour ends the process."""
    zig = compilers.zig()
    assert zig is not None
    flags = [*build.flags_of(zig), *zig.sanitize]
    return compilers.linked(zig, flags, sorted(build.source_directory().glob("*.c")), "sim-traps")


def sanitizer_environment() -> dict[str, str]:
    if GCC is None:
        return {"GRADLET_SIM_LIBRARY": str(trapping_library())}
    library = build.library(sanitize=True, compiler=compilers.Compiler("gcc", (GCC,), (), ()))
    asan = subprocess.run(
        [GCC, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        "GRADLET_SIM_LIBRARY": str(library),
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def run(script: list[str], environment: dict[str, str], seconds: float) -> str:
    done = subprocess.run(
        [sys.executable, *script],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{HERE.parent.parent}", **environment},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_fuzz() -> None:
    assert "faults" in run(["fuzz_worker.py", "1", str(ROUNDS)], {}, 300)


@pytest.mark.thorough
def test_fuzz_under_sanitizers() -> None:
    assert "faults" in run(["fuzz_worker.py", "2", str(ROUNDS)], sanitizer_environment(), 600)


@pytest.mark.thorough
def test_real_programs_under_sanitizers() -> None:
    names = [
        "fp16_simd",
        "dma_cores8",
        "mm_2x4",
        "rvc_align",
        "misaligned",
        "icache8",
        "fdiv_share",
    ]
    elves = [assemble(CALIBRATION / f"{name}.S", PAD=0) for name in names]
    elves += [
        assemble(PROGRAMS / f"{name}.S", NC=cores, MODE=0)
        for name, cores in (
            ("mutex", 8),
            ("dispatch", 8),
            ("dma", 8),
            ("timer", 1),
            ("rewrite", 1),
            ("loops", 1),
            ("unaligned", 2),
        )
    ]
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from gradlet.sim import SimConfig, simulate\n"
        "for name in sys.argv[1:]:\n"
        "    simulate(Path(name), SimConfig.load(), max_cycles=10**7)\n"
    )
    run(["-c", script, *map(str, elves)], sanitizer_environment(), 300)
