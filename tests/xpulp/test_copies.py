"""Permutations and padding in assembler: all that other orders, steps and places can be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gradlet.ir.graph import Array
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops.base import Size
from tests.xpulp.support import NativeReference, cluster, same_bits

PERMUTE = Kernel("permute", "copy", "", "lines", "f32")
PAD = Kernel("pad", "fill", "", "lines", "f32")


def extents(generator: np.random.Generator) -> tuple[int, ...]:
    most = int(generator.choice([1, 2, 4]))
    last = int(generator.integers(1, int(generator.choice([3, 30]))))
    return (*map(int, generator.integers(1, most + 1, 5)), last)


def repeated(view: Array) -> Array:
    """Its first column three times."""
    first = view[..., :1]
    return np.broadcast_to(first, (*first.shape[:-1], 3))


def test_a_thousand_permutations(tmp_path: Path, part_of: Callable[[int], int]) -> None:
    generator, natives = np.random.default_rng(1), NativeReference([PERMUTE], tmp_path, 8)
    with KernelRunner([PERMUTE], cluster(), sanitize=True) as runner:
        for number in range(part_of(1300)):
            x = generator.standard_normal(extents(generator)).astype(np.float32)
            view = x.transpose(generator.permutation(6))
            view = view[tuple(slice(int(generator.integers(0, n)), None) for n in view.shape)]
            if generator.random() < 0.3:  # backwards, or the same again and again
                view = view[..., ::-1] if number % 2 else repeated(view)
            start = view.__array_interface__["data"][0] - x.__array_interface__["data"][0]
            sizes: dict[str, Size] = {
                "extent": view.shape,
                "x_step": tuple(step // 4 for step in view.strides),
                "x_start": start // 4,
            }
            output = np.full(view.shape, np.nan, np.float32)
            made = runner.call(PERMUTE, [output], [x], sizes).outputs
            assert same_bits(made, [np.ascontiguousarray(view)]), sizes
            assert same_bits(made, natives.call(PERMUTE, [output], [x], sizes)), sizes


def padded(generator: np.random.Generator) -> tuple[Array, dict[str, Size], Array]:
    inner = extents(generator)
    steps = tuple(int(generator.choice([1, 1, 1, 2, 3])) if n > 1 else 1 for n in inner)
    start = tuple(int(generator.choice([0, 0, 1, 2])) for _ in inner)
    behind = tuple(int(generator.choice([0, 0, 1])) for _ in inner)
    extent = tuple(
        s + (n - 1) * step + 1 + b
        for s, n, step, b in zip(start, inner, steps, behind, strict=True)
    )
    if np.prod(extent) > 4000:
        return padded(generator)
    value = float(generator.choice([0.0, -1.5]))
    x = generator.standard_normal(inner).astype(np.float32)
    wanted = np.full(extent, value, np.float32)
    places = zip(start, steps, inner, strict=True)
    wanted[tuple(slice(s, s + (n - 1) * step + 1, step) for s, step, n in places)] = x
    sizes: dict[str, Size] = {"extent": extent, "inner": inner, "start": start}
    return x, {**sizes, "step": steps, "value": value}, wanted


def test_a_thousand_paddings(tmp_path: Path, part_of: Callable[[int], int]) -> None:
    generator, natives = np.random.default_rng(2), NativeReference([PAD], tmp_path, 8)
    with KernelRunner([PAD], cluster(), sanitize=True) as runner:
        for _ in range(part_of(1020)):
            x, sizes, wanted = padded(generator)
            output = np.full(wanted.shape, np.nan, np.float32)
            made = runner.call(PAD, [output], [x], sizes).outputs
            assert same_bits(made, [wanted]), sizes
            assert same_bits(made, natives.call(PAD, [output], [x], sizes)), sizes
