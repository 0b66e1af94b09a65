"""What this machine has for Gradlet, and what each missing part would be needed for."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gradlet.engines import gvsoc
from gradlet.support import cache, compiler


@dataclass(frozen=True)
class Finding:
    name: str
    present: bool
    required: bool
    detail: str
    purpose: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


PACKAGES = (
    ("numpy", True, "everything"),
    ("jinja2", True, "writing C"),
    ("cffi", True, "the simulator"),
    ("ziglang", False, "programs for devices; a compiler where the system has none"),
    ("torch", False, "PyTorch models, the zoo, verify"),
    ("onnx", False, "ONNX models"),
    ("scikit-learn", False, "the demo"),
)


def examine() -> list[Finding]:
    return [*_interpreter(), *_packages(), *_compilers(), *_gvsoc(), *_cache()]


def _interpreter() -> Iterator[Finding]:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("Python", sys.version_info >= (3, 11), True, detail, "everything (3.11 or newer)")


def _packages() -> Iterator[Finding]:
    for name, required, purpose in PACKAGES:
        try:
            yield Finding(name, True, required, version(name), purpose)
        except PackageNotFoundError:
            yield Finding(name, False, required, f"pip install {name}", purpose)


def _compilers() -> Iterator[Finding]:
    found = compiler.available()
    names = ", ".join(item.name for item in found) or "none: pip install ziglang"
    yield Finding("C compiler", bool(found), True, names, "running generated code on the host")


def _gvsoc() -> Iterator[Finding]:
    found = gvsoc.find()
    detail = str(found) if found else f"no `gvsoc` on the PATH, no {gvsoc.VARIABLE}"
    yield Finding("GVSoC", found is not None, False, detail, "run --engine gvsoc")


def _cache() -> Iterator[Finding]:
    folder = cache.cache_folder()
    yield Finding("cache", os.access(folder, os.W_OK), False, str(folder), "compiling things once")
