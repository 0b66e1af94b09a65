"""Compile the C core at first use, with the system's compiler or the one of ziglang."""

from __future__ import annotations

import platform
from pathlib import Path

from gradlet.errors import GradletError
from gradlet.support import compiler as compilers
from gradlet.support.compiler import EXACT, Compiler

FLAGS = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    *EXACT,
    *("-Wall", "-Wextra", "-Werror"),
)
SANITIZE_FLAGS = (
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
# Without the C library: its first use would compile one.
ZIG_FLAGS = ("-nostdlib", "-DGRADLET_FREESTANDING", "-fno-sanitize=all")


class BuildError(GradletError):
    """No compiler, or one that cannot compile the core."""


def source_directory() -> Path:
    """Where the C files are."""
    return Path(__file__).parent / "core"


def host_has_fma() -> bool:
    """Whether an x86 host has fused multiply-add; elsewhere the compiler knows by itself."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        return " fma " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def flags_of(compiler: Compiler, *, sanitize: bool = False, portable: bool = False) -> list[str]:
    flags = [*FLAGS, *(SANITIZE_FLAGS if sanitize else ())]
    flags += ZIG_FLAGS if compiler.name == "ziglang" else ()
    return flags if portable or not host_has_fma() else [*flags, "-mfma"]


def library(*, sanitize: bool = False, compiler: Compiler | None = None) -> Path:
    """The compiled core, built if this source has not been built with this compiler before."""
    sources = sorted(source_directory().glob("*.c"))
    problems = []
    for candidate in [compiler] if compiler else compilers.available():
        try:
            options = flags_of(candidate, sanitize=sanitize)
            return compilers.linked(candidate, options, sources, "sim")
        except GradletError as error:
            problems.append(str(error))
    raise BuildError(
        "cannot compile the simulator: "
        + ("; ".join(problems) or "no C compiler found; install one, or `pip install ziglang`")
    )
