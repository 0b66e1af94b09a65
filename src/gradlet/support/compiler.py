"""Finds C compilers (the system's `cc`, ziglang's clang) and keeps what they have compiled."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from gradlet.errors import GradletError, InternalError
from gradlet.support.cache import cache_folder, held_by, is_whole, keep, scratch_folder
from gradlet.support.progress import counted

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wsign-conversion", "-Werror")
EXACT = ("-ffp-contract=off", "-fno-math-errno")
"""No fma that is not written; without the second a square root would call libm, to set errno."""
BASE = ("-std=c99", *WARNINGS, *EXACT)
HOST_ONLY = ("-fPIC",)
DEVICE_ONLY = (
    *("-DGL_DEVICE", "-O2", "-ffreestanding", "-fno-sanitize=all", "-fomit-frame-pointer"),
)
"""A project's Makefile has these three as well: what is verified is compiled as what is shipped."""
QUICK = "-O3"
TEMPORARY = ("TMPDIR", "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
"""Variables that say where compilers put files of their own."""
BLOBS = re.compile(r'^GL_BLOB\(.*, "(.+)", \d+, \d+\);$', flags=re.MULTILINE)
"""Files that a source takes into its object as they are."""
LARGE = 1 << 20
"""Bytes of such files, from which on an object is not kept: it is made as quickly as found."""
FULL_DISK = "No space left on device"
MISSING_ZIG = (
    "there is no compiler for this device: the Python package ziglang is not here; "
    "`pip install ziglang` brings it"
)


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
    """No libc is linked, so the first use is as quick as any; faults trap, as it has no runtime.
    The package's program is called itself: its way through Python takes as long as a small file."""
    found = find_spec("ziglang")
    if found is None:
        return None
    program = Path(found.origin or "").parent / "zig"
    start = (str(program),) if program.is_file() else (sys.executable, "-m", "ziglang")
    return Compiler(
        "ziglang",
        (*start, "cc"),
        ("-mcpu=native",),
        ("-fsanitize=undefined", "-fsanitize-trap=undefined"),
        ("-nostdlib",),
    )


@cache
def system() -> Compiler | None:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if name and path and _output([path, "--version"]):
            plain = Compiler(name, (path,), ("-march=native",), ("-fsanitize=address,undefined",))
            if plain.sanitizer_runtime:
                return plain
            # a compiler without the address sanitizer's runtime still traps undefined behaviour
            trap = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
            return Compiler(name, (path,), ("-march=native",), trap)
    return None


def available() -> list[Compiler]:
    """What is here, the system's first."""
    return [compiler for compiler in (system(), zig()) if compiler is not None]


def default() -> Compiler:
    chosen = os.environ.get("GRADLET_CC")
    compiler = zig() if chosen == "zig" else (system() or zig())
    if compiler is None:
        raise GradletError(
            "no C compiler: neither `cc` nor the Python package ziglang is here; "
            "`pip install ziglang` brings one"
        )
    return compiler


def build_library(
    sources: Sequence[Path],
    output: Path,
    *,
    include: Sequence[Path] = (),
    defines: Mapping[Path, Sequence[str]] | None = None,
    compiler: Compiler | None = None,
    sanitize: bool = False,
) -> Path:
    """Compile sources into one shared library; a failure shows what the compiler said.

    defines: of each source its own, so that the others are found in the cache.
    """
    compiler = compiler or default()
    options = [*BASE, *HOST_ONLY, *compiler.native]
    options += [*compiler.sanitize, "-O1", "-g"] if sanitize else [QUICK]
    objects = compile_objects(compiler, options, sources, include, defines or {}, output.parent)
    command = [*compiler.command, *options, "-shared", *map(str, objects), *compiler.link]
    run_compiler(command, output, output)
    return output


def build_executable(
    sources: Sequence[Path],
    output: Path,
    *,
    include: Sequence[Path] = (),
    defines: Mapping[Path, Sequence[str]] | None = None,
    compiler: Compiler | None = None,
) -> Path:
    """Compile sources into a program for this machine, of the same objects as a library."""
    compiler = compiler or default()
    options = [*BASE, *HOST_ONLY, *compiler.native, QUICK]
    objects = compile_objects(compiler, options, sources, include, defines or {}, output.parent)
    command = [*compiler.command, *options, *map(str, objects), "-lm"]
    run_compiler(command, output, output)
    return output


def build_program(
    sources: Sequence[Path],
    output: Path,
    *,
    flags: Sequence[str],
    script: Path,
    include: Sequence[Path] = (),
    defines: Mapping[Path, Sequence[str]] | None = None,
    unused: bool = False,
) -> Path:
    """A bare-metal ELF; `flags` say for which processor, the script where everything lies. With
    `unused` it has functions that it does not call itself: whoever runs it finds them by name."""
    compiler = zig()
    if compiler is None:
        raise GradletError(MISSING_ZIG)
    options = [*BASE, *DEVICE_ONLY, *flags]
    objects = compile_objects(compiler, options, sources, include, defines or {}, output.parent)
    link = [*options, "-nostdlib", "-static", f"-Wl,-T,{script}", *map(str, objects)]
    link += ["-Wl,--no-gc-sections"] if unused else []
    run_compiler([*compiler.command, *link], output, output)
    return output


def compile_objects(
    compiler: Compiler,
    options: Sequence[str],
    sources: Sequence[Path],
    include: Sequence[Path],
    defines: Mapping[Path, Sequence[str]],
    beside: Path | None = None,
) -> list[Path]:
    """The object file of each source, from the cache if the same text was compiled before; one with
    much data in it is made `beside`. A define that a source does not mention changes nothing, and
    is left out: what was compiled with another one is found."""
    read = cache(_read)

    def compiled(source: Path) -> Path:
        texts = _texts(source, include, read)
        named = [d for d in defines.get(source, ()) if any(d.split("=")[0] in t for t in texts)]
        own = [*options, *(f"-D{define}" for define in named)]
        folders = [f"-I{folder}" for folder in include]
        command = [*compiler.command, *own, *folders, "-c", str(source)]
        if beside and sum(blob.stat().st_size for blob in blobs(source, include)) > LARGE:
            run_compiler(command, beside / f"{source.stem}.o", source)
            return beside / f"{source.stem}.o"
        return _kept(command, source, f"objects/{key(compiler, own, source, include, texts)}.o")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(compiled, sources)
        return list(counted(made, len(sources), "compiling"))


def linked(compiler: Compiler, options: Sequence[str], sources: Sequence[Path], name: str) -> Path:
    """A shared library of all sources in one go, kept in the cache under a name of its own."""
    keys = [key(compiler, options, source, ()) for source in sources]
    digest = hashlib.sha256("".join(keys).encode()).hexdigest()[:24]
    command = [*compiler.command, *options, *map(str, sources)]
    return _kept(command, Path(name), f"{name}-{digest}.so")


def key(
    compiler: Compiler,
    options: Sequence[str],
    source: Path,
    include: Sequence[Path],
    texts: Sequence[str] = (),
) -> str:
    """Of all that decides what comes out. texts: those of the source, if they are at hand."""
    texts = texts or _texts(source, include, _read)
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in blobs(source, include)]
    everything = [*options, platform.machine(), version(compiler), *texts, *hashes]
    return hashlib.sha256("\0".join([source.suffix, *everything]).encode()).hexdigest()


def _kept(command: Sequence[str], what: Path, name: str) -> Path:
    """What a command makes, from the cache if it is there."""
    path = cache_folder() / name
    if is_whole(path):
        return path
    with scratch_folder() as folder:
        fresh = folder / path.name
        run_compiler(command, fresh, what)
        return keep(fresh, name)


def blobs(source: Path, include: Sequence[Path]) -> list[Path]:
    """Files that a source takes in as they are, found as the compiler does."""
    places = [folder / name for name in BLOBS.findall(source.read_text()) for folder in include]
    return [path for path in dict.fromkeys(places) if path.is_file()]


def _texts(
    source: Path, include: Sequence[Path], read: Callable[[Path], tuple[str, list[str]]]
) -> list[str]:
    """A source and all headers of ours that it includes, each once."""
    texts: dict[Path, str] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path in texts:
            continue
        texts[path], names = read(path)
        for name in names:
            folders = [path.parent, *include]
            waiting += [folder / name for folder in folders if (folder / name).is_file()][:1]
    return list(texts.values())


def _read(path: Path) -> tuple[str, list[str]]:
    """A text, and the headers that it includes."""
    text = path.read_text()
    return text, re.findall(r'^#include "(.*)"', text, flags=re.MULTILINE)


def run_compiler(command: Sequence[str], output: Path, what: Path) -> None:
    """Whatever a compiler writes beside its output goes to a scratch folder, where it is found even
    if the compiler is killed."""
    with scratch_folder() as folder:
        try:
            done = subprocess.run(
                [*command, "-o", str(output)],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env={**os.environ, **dict.fromkeys(TEMPORARY, str(folder))},
                pass_fds=(*held_by(folder), *held_by(output.absolute())),
            )
        except OSError as error:
            raise GradletError(f"cannot start the C compiler {command[0]}: {error}") from None
    if done.returncode:
        said = done.stderr.strip()[-4000:]
        kind = GradletError if FULL_DISK in said else InternalError
        raise kind(f"the C compiler {command[0]} rejects {what.name}:\n{said}")


@cache
def version(compiler: Compiler) -> str:
    return _output([*compiler.command, "--version"])


def _output(command: Sequence[str]) -> str:
    try:
        with scratch_folder() as folder:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env={**os.environ, **dict.fromkeys(TEMPORARY, str(folder))},
            )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
