"""Normalisation in assembler: groups of any dimensions, with and without weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradlet.ir.graph import Array
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops.base import Size
from gradlet.ops.lib.pointwise import broadcast_strides, merge, padded, row_major
from tests.xpulp.support import NativeReference, cluster, same_bits

USED = [
    kernel
    for kernel in catalogue.kernels()
    if kernel.family == "normalize" and kernel.variant == "lines"
]


def sizes_of(
    shape: tuple[int, ...], axes: tuple[int, ...], weight: tuple[int, ...], center: bool
) -> dict[str, Size]:
    sizes: dict[str, Size] = {"center": int(center), "eps": 1e-5}
    steps = (row_major(shape), broadcast_strides(weight, shape))
    for part, inside in (("keep", False), ("sum", True)):
        dims = [d for d in range(len(shape)) if (d in axes) == inside]
        extents, (x_step, w_step) = merge(
            tuple(shape[d] for d in dims), [tuple(step[d] for d in dims) for step in steps]
        )
        sizes[f"{part}_extent"] = padded(extents, 1)
        sizes[f"{part}_step"], sizes[f"{part}_w"] = padded(x_step, 0), padded(w_step, 0)
    return sizes


def normalised(x: Array, axes: tuple[int, ...], center: bool) -> Array:
    wide = x.astype(np.float64)
    away: Array = wide - (wide.mean(axes, keepdims=True) if center else 0.0)
    return np.asarray(away / np.sqrt(np.square(away).mean(axes, keepdims=True) + 1e-5))


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_many_groups(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    generator, natives = np.random.default_rng(3), NativeReference([kernel], tmp_path, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for number in range(part_of(550)):
            shape = tuple(map(int, generator.integers(1, int(generator.choice([3, 8])), 4)))
            shape = (*shape[:3], int(generator.integers(1, 20)))
            chosen = np.sort(generator.permutation(4)[: generator.integers(1, 4)])
            axes, center = tuple(map(int, chosen)), number % 4 > 0
            weighted = generator.random(4) < 0.5
            weight = tuple(n if has else 1 for n, has in zip(shape, weighted, strict=True))
            x, dy = (generator.standard_normal(shape).astype(np.float32) for _ in range(2))
            w, b = (generator.standard_normal(weight).astype(np.float32) for _ in range(2))
            affine = [w if number % 4 else None, b if number % 4 > 1 else None]
            sizes = sizes_of(shape, axes, weight if number % 4 else (), center)
            inputs: list[Array | None] = [x, *affine]
            if kernel.mode == "input_grad":
                inputs = [dy, x, affine[0]]
            in_place = {0: 0} if kernel.mode == "input_grad" and number % 3 == 0 else {}
            output = np.full(shape, np.nan, np.float32)
            made = runner.call(kernel, [output], inputs, sizes, in_place=in_place).outputs
            assert same_bits(made, natives.call(kernel, [output], inputs, sizes)), sizes
            if kernel.mode == "forward":
                value = normalised(x, axes, center)
                value = value * (1.0 if affine[0] is None else w)
                value = value + (0.0 if affine[1] is None else b)
                assert np.allclose(made[0], value, rtol=1e-3, atol=1e-3), sizes


FROZEN = [kernel for kernel in catalogue.kernels() if kernel.family == "frozen_norm"]


@pytest.mark.parametrize(
    "kernel", [k for k in FROZEN if k.variant == "lines"], ids=lambda kernel: kernel.name
)
def test_given_statistics(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    generator, natives = np.random.default_rng(4), NativeReference([kernel], tmp_path, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for number in range(part_of(500)):
            outer, channels, inner = (int(generator.integers(1, n)) for n in (3, 20, 12))
            x = generator.standard_normal(outer * channels * inner).astype(np.float32)
            mean, w, b = (generator.standard_normal(channels).astype(np.float32) for _ in range(3))
            var, forward = np.abs(mean) + np.float32(0.1), kernel.mode.startswith("forward")
            affine = [w if number % 3 else None, b if number % 3 > 1 else None]
            inputs = [x, mean, var, *affine] if forward else [x, var, affine[0]]
            sizes: dict[str, Size] = {"outer": outer, "channels": channels, "inner": inner}
            sizes["eps"], output = 1e-3, np.full_like(x, np.nan)
            in_place = {0: 0} if number % 2 else {}
            made = runner.call(kernel, [output], inputs, sizes, in_place=in_place).outputs
            assert same_bits(made, natives.call(kernel, [output], inputs, sizes)), sizes
