"""Sums in assembler: any extents and steps, with every update fused into the store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet.ir.graph import Array
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops.base import Size
from gradlet.ops.reduce import reduction_sizes
from tests.xpulp.support import NativeReference, cluster, distinct, same_bits

USED = [kernel for kernel in catalogue.kernels() if kernel.variant == "chains"]
HYPER = {"sgd": (0.5, 0.25), "momentum": (0.5, 0.25, 0.75, 1.0)}
AXES = ((0,), (1,), (0, 2))
"""Columns, rows, and planes: what the variant can do."""


def jobs(
    kernel: Kernel, seed: int
) -> Iterator[tuple[Array, tuple[int, ...], list[Array], dict[str, Size]]]:
    generator = np.random.default_rng(seed)
    for number in itertools.count():
        axes = AXES[number % 3 if kernel.family == "reduce" else 2]
        most = int(generator.choice([2, 6, 20]))
        shape = tuple(map(int, generator.integers(1, most + 1, 1 + max(axes[-1], 1))))
        x = generator.standard_normal(shape).astype(np.float32)
        settings = HYPER.get(kernel.epilogue, ())
        hyper = [np.array([*settings[:3], float(number % 2)][: len(settings)], np.float32)]
        sizes: dict[str, Size] = {**reduction_sizes(shape, {"axes": axes})}
        if kernel.family == "channel_sum":
            sizes = dict(zip(("outer", "channels", "inner"), shape, strict=True))
        yield x, axes, hyper if settings else [], sizes


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_a_thousand_shapes(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    states = 1 + len(catalogue.epilogues()[kernel.epilogue].outputs if kernel.epilogue else ())
    generator = np.random.default_rng(2)
    natives = NativeReference([kernel], tmp_path, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for x, axes, hyper, sizes in distinct(
            jobs(kernel, seed=1), part_of(300), lambda job: job[3]
        ):
            isa = ("xpulp",)
            able = catalogue.candidates(kernel.family, "sum", kernel.epilogue, sizes, isa, "f32")
            assert able == [kernel], sizes
            total = x.astype(np.float64).sum(axes)
            before = [generator.standard_normal(total.shape).astype(np.float32)] * states
            outcome = runner.call(kernel, before, [x, *hyper], sizes)
            wanted = natives.call(kernel, before, [x, *hyper], sizes)
            assert same_bits(outcome.outputs, wanted), sizes
            if not kernel.epilogue:
                assert np.allclose(outcome.outputs[0], total, rtol=1e-4, atol=1e-4), sizes


def test_what_the_variant_cannot_do() -> None:
    for shape, axes in (((2, 3, 4, 5), (1, 3)), ((2, 3, 4, 5, 6), (0, 2, 4))):
        sizes: dict[str, Size] = {**reduction_sizes(shape, {"axes": axes})}
        assert catalogue.candidates("reduce", "sum", "", sizes, ("xpulp",), "f32") == []


def test_a_thousand_variances(tmp_path: Path, part_of: Callable[[int], int]) -> None:
    kernel = Kernel("reduce", "variance", "", "lines", "f32")
    generator, natives = np.random.default_rng(3), NativeReference([kernel], tmp_path, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for _ in range(part_of(1400)):
            rank = int(generator.integers(2, 5))
            most = int(generator.choice([5, 12] if rank > 2 else [30, 60]))
            shape = tuple(map(int, generator.integers(1, most + 1, rank)))
            axes = tuple(d for d in range(rank) if generator.random() < 0.5) or (0,)
            x = generator.standard_normal(shape).astype(np.float32)
            sizes: dict[str, Size] = {**reduction_sizes(shape, {"axes": axes})}
            output = np.full(x.sum(axes).shape, np.nan, np.float32)
            made = runner.call(kernel, [output], [x], sizes).outputs
            assert same_bits(made, natives.call(kernel, [output], [x], sizes)), sizes
