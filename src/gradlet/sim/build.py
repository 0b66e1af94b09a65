"""Compile the C core at first use, with the system's compiler or the one of ziglang."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from gradlet.errors import GradletError

FLAGS = [
    "-std=c11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
    "-Werror",
]
SANITIZE_FLAGS = [
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
]


class BuildError(GradletError):
    """No compiler, or one that cannot compile the core."""


def source_directory() -> Path:
    """Where the C files are."""
    return Path(__file__).parent / "core"


def cache_directory() -> Path:
    """Where compiled libraries are kept: GRADLET_CACHE, or the user's cache directory."""
    if chosen := os.environ.get("GRADLET_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gradlet"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gradlet"


def host_has_fma() -> bool:
    """Whether an x86 host has fused multiply-add; elsewhere the compiler knows by itself."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        return " fma " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def compilers() -> list[list[str]]:
    """The commands worth trying, best first."""
    found: list[list[str]] = []
    known = set()
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path and os.path.realpath(path) not in known:
            known.add(os.path.realpath(path))
            found.append([path])
    if find_spec("ziglang"):
        # Without the C library: its first use would compile one.
        found.append(
            [
                sys.executable,
                "-m",
                "ziglang",
                "cc",
                "-nostdlib",
                "-DGRADLET_FREESTANDING",
                "-fno-sanitize=all",
            ]
        )
    return found


def _flags(sanitize: bool) -> list[str]:
    flags = [*FLAGS, *(SANITIZE_FLAGS if sanitize else [])]
    return [*flags, "-mfma"] if host_has_fma() else flags


def _key(compiler: list[str], flags: list[str], files: list[Path]) -> str:
    digest = hashlib.sha256()
    stat = os.stat(compiler[0])
    for part in [*compiler, *flags, str(stat.st_size), str(stat.st_mtime_ns), platform.machine()]:
        digest.update(part.encode() + b"\0")
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def _compile(compiler: list[str], flags: list[str], sources: list[Path], output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=output.parent)
    os.close(handle)
    try:
        command = [*compiler, *flags, *map(str, sources), "-o", temporary]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{compiler[0]}: {done.stderr.strip()[:2000]}")
        # Several processes may build at once: the last one to finish wins, all are the same.
        os.replace(temporary, output)
    finally:
        Path(temporary).unlink(missing_ok=True)


def library(*, sanitize: bool = False, compiler: list[str] | None = None) -> Path:
    """The compiled core, built if this source has not been built with this compiler before."""
    directory = source_directory()
    sources = sorted(directory.glob("*.c"))
    files = sources + sorted(directory.glob("*.h"))
    flags = _flags(sanitize)
    problems = []
    for candidate in [compiler] if compiler else compilers():
        output = cache_directory() / f"sim-{_key(candidate, flags, files)}.so"
        if output.exists():
            return output
        try:
            _compile(candidate, flags, sources, output)
            return output
        except (BuildError, OSError) as error:
            problems.append(str(error))
    raise BuildError(
        "cannot compile the simulator: "
        + ("; ".join(problems) or "no C compiler found; install one, or `pip install ziglang`")
    )
