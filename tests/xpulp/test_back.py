"""The way back through a linear layer in one pass: more than a thousand shapes with every access
checked, bits against the C reference, values against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet.ir.graph import Array
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.oracle.scatter import MARGIN
from tests.xpulp.support import NativeReference, cluster, same_bits

USED = [kernel for kernel in catalogue.kernels() if kernel.family == "back"]
FAST = [kernel for kernel in USED if kernel.variant != "ref"]
SHIFTS = (0.0, 3.0, -3.0)
"""Half, all, or none of the inputs are above 0 behind a ReLU."""
ROUNDOFF = 2.0**-24


def jobs(count: int, seed: int) -> Iterator[tuple[list[Array], list[Array], dict[str, int]]]:
    generator = np.random.default_rng(seed)

    def random(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    for number in range(count):
        n, k = (int(generator.integers(1, top)) for top in generator.choice([8, 30, 90], 2))
        if number % 9 == 0:
            n = int(generator.integers(1, 20)) * 8
        if number % 23 == 0:
            n, k = int(generator.integers(120, 300)), k % 20 + 1
        hyper = np.array([0.5, generator.choice([0.0, 0.25])], np.float32)
        outputs = [np.full(n, np.nan, np.float32), random(k, n)]
        yield outputs, [random(k), random(n), hyper], {"n": n, "k": k}


def check(
    kernel: Kernel, made: list[Array], outputs: list[Array], inputs: list[Array], label: str
) -> None:
    w = outputs[1].astype(np.float64)
    dy, x, (rate, decay) = (value.astype(np.float64) for value in inputs)
    terms = np.abs(dy) @ np.abs(w)
    product = dy @ w * (x > 0 if kernel.mode == "relu_sgd" else 1)
    assert (np.abs(made[0] - product) <= MARGIN * len(dy) * ROUNDOFF * terms).all(), label
    slope = np.outer(dy, x)
    size = np.abs(w) + rate * (np.abs(slope) + decay * np.abs(w))
    error = np.abs(made[1] - (w - rate * (slope + decay * w)))
    assert (error <= MARGIN * 4 * ROUNDOFF * size).all(), label


@pytest.mark.parametrize(("cores", "count"), [(8, 1200), (1, 60), (2, 60), (3, 60), (16, 60)])
def test_kernel_and_twin(
    cores: int, count: int, tmp_path: Path, part_of: Callable[[int], int]
) -> None:
    natives = NativeReference(USED, tmp_path, cores)
    with KernelRunner(USED, cluster(cores), sanitize=True) as runner:
        for outputs, inputs, sizes in jobs(part_of(count), seed=cores):
            for kernel in USED if cores != 8 else FAST:
                label = f"{kernel.name} {sizes}"
                if kernel.mode == "relu_sgd":
                    inputs[1] = np.maximum(inputs[1] + SHIFTS[sizes["k"] % 3], np.float32(0.0))
                made = runner.call(kernel, outputs, inputs, sizes, known=(1,)).outputs
                assert same_bits(made, natives.call(kernel, outputs, inputs, sizes)), label
                check(kernel, list(made), outputs, inputs, label)
