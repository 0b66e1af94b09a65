"""Finds a C compiler (the system's `cc`, else ziglang's clang) and builds shared libraries."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from gradlet.errors import GradletError

COMMON = (
    "-std=c99",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffp-contract=off",
    "-fPIC",
    "-fno-math-errno",
)
"""Without the last a square root would call libm, to set errno."""


@dataclass(frozen=True)
class Compiler:
    """A command and the flags that make it tune for this machine and link a library."""

    name: str
    command: tuple[str, ...]
    native: tuple[str, ...]
    sanitize: tuple[str, ...]
    link: tuple[str, ...] = ("-lm",)

    @property
    def sanitizer_runtime(self) -> str:
        """A library to preload into a process that loads a sanitized one; '' if none is needed."""
        if "-fsanitize=address,undefined" not in self.sanitize:
            return ""
        found = _output([*self.command, "-print-file-name=libasan.so"])
        return found if os.path.isabs(found) else ""


@cache
def zig() -> Compiler | None:
    """No libc is linked, so the first use is as quick as any; faults trap, as it has no runtime."""
    if find_spec("ziglang") is None:
        return None
    return Compiler(
        "ziglang",
        (sys.executable, "-m", "ziglang", "cc"),
        ("-mcpu=native",),
        ("-fsanitize=undefined", "-fsanitize-trap=undefined"),
        ("-nostdlib",),
    )


@cache
def system() -> Compiler | None:
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path and _output([path, "--version"]):
            plain = Compiler(name, (path,), ("-march=native",), ("-fsanitize=address,undefined",))
            if plain.sanitizer_runtime:
                return plain
            # a compiler without the address sanitizer's runtime still traps undefined behaviour
            trap = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
            return Compiler(name, (path,), ("-march=native",), trap)
    return None


def default() -> Compiler:
    chosen = os.environ.get("GRADLET_CC")
    compiler = zig() if chosen == "zig" else (system() or zig())
    if compiler is None:
        raise GradletError(
            "no C compiler: neither `cc` nor the Python package ziglang is here; "
            "`pip install ziglang` brings one"
        )
    return compiler


def available() -> list[Compiler]:
    return [compiler for compiler in (system(), zig()) if compiler is not None]


def build_library(
    sources: Sequence[Path],
    output: Path,
    *,
    include: Sequence[Path] = (),
    defines: Sequence[str] = (),
    compiler: Compiler | None = None,
    sanitize: bool = False,
) -> Path:
    """Compile sources into one shared library; a failure shows what the compiler said."""
    compiler = compiler or default()
    command = [*compiler.command, *COMMON, *compiler.native]
    command += [*compiler.sanitize, "-O1", "-g"] if sanitize else ["-O3"]
    command += [f"-I{path}" for path in include]
    command += [f"-D{define}" for define in defines]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(
            pool.map(lambda source: _object(compiler, command, include, source), sources)
        )
    link = [*command, "-shared", *map(str, objects), *compiler.link, "-o", str(output)]
    _compile(link, output)
    return output


def _object(
    compiler: Compiler, command: Sequence[str], include: Sequence[Path], source: Path
) -> Path:
    """The object file of one source, from the cache if the same text was compiled before."""
    options = [part for part in command if not part.startswith("-I")]
    text = "\0".join([*options, _version(compiler), *_texts(source, include)])
    path = cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.o"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            fresh = Path(scratch) / "fresh.o"
            _compile([*command, "-c", str(source), "-o", str(fresh)], source)
            os.replace(fresh, path)
    return path


def _texts(source: Path, include: Sequence[Path]) -> list[str]:
    """A source and all headers of ours that it includes, each once."""
    texts: dict[Path, str] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in texts:
            continue
        texts[path] = path.read_text()
        for name in re.findall(r'^#include "(.*)"', texts[path], flags=re.MULTILINE):
            folders = [path.parent, *include]
            waiting += [folder / name for folder in folders if (folder / name).is_file()][:1]
    return list(texts.values())


def _compile(command: Sequence[str], what: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GradletError(f"the C compiler rejects {what.name}:\n{done.stderr[-4000:]}")
    return done.stdout


@cache
def _version(compiler: Compiler) -> str:
    return _output([*compiler.command, "--version"])


@cache
def cache_folder() -> Path:
    """Where object files are kept between runs; a temporary place if there is no such folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "gradlet" / "objects"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="gradlet-objects-"))


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
