"""The C of kernels as native code, called as a team would: what a cluster must agree with."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.ir.graph import Array
from gradlet.kernels import catalogue, source
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import size_words
from gradlet.ops.base import Size
from gradlet.runtime import includes
from gradlet.support import compiler


class Core(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("count", ctypes.c_int))


class NativeReference:
    """Some kernels in one library; `folder` is where it and its sources are put."""

    def __init__(self, used: Sequence[Kernel], folder: Path, cores: int) -> None:
        sources = []
        for kernel in used:
            sources.append(folder / f"{kernel.name}.c")
            sources[-1].write_text(source.render(kernel))
        library = compiler.build_library(sources, folder / "native.so", include=includes("host"))
        self.library, self.cores = ctypes.CDLL(str(library)), cores

    def call(
        self,
        kernel: Kernel,
        outputs: Sequence[Array | None],
        inputs: Sequence[Array | None],
        sizes: Mapping[str, Size],
        repeat: int = 1,
    ) -> list[Array]:
        """What the kernel leaves in its outputs, whose arrays have their initial contents."""
        made = [None if v is None else v.copy() for v in outputs]
        words = np.array(size_words(kernel, sizes), np.int32)
        needed = catalogue.scratch_bytes(kernel, sizes, self.cores)
        scratch = [np.zeros(-(-needed // 8))] if needed else []  # aligned for any element
        pointers = [_pointer(v) for v in (*made, *inputs, *scratch)]
        stepped = catalogue.stepped(kernel)
        function = getattr(self.library, kernel.name)
        function.restype = None
        for step in range(repeat * catalogue.variant_of(kernel).steps):
            arguments = [*pointers, *([step] if stepped else []), _pointer(words)]
            for core in range(self.cores):
                function(Core(core, self.cores), *arguments)
        return [v for v in made if v is not None]


def same_bits(one: Sequence[Array], other: Sequence[Array]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def _pointer(value: Array | None) -> Any:
    return None if value is None else value.ctypes.data_as(ctypes.c_void_p)
