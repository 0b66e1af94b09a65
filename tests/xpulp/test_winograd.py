"""Convolutions by Winograd's algorithm: every variant over many shapes, any padding, every access
checked; bits against the C reference, values against float64 with the bound of the transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.family import Variant
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.kernels.xpulp.conv.winograd_model import TRANSFORMS, growth
from tests.xpulp.conv_jobs import Layer, drawn, job, run
from tests.xpulp.support import cluster

USED = [
    kernel
    for kernel in catalogue.kernels()
    if kernel.family == "conv2d" and kernel.variant.startswith("winograd")
]
SHAPES = 560


def layers(variant: Variant, mode: str, generator: np.random.Generator) -> Iterator[Layer]:
    """Random ones, without an end: few rows and columns, and more than a block of them."""

    def pick(*values: int) -> int:
        return int(generator.choice(values))

    while True:
        channels = pick(1, 2, 3, 8, 11), pick(1, 2, 3, 5, 9, 16)
        size = pick(*range(1, 11), 16, 17, 19), pick(*range(1, 13), 16, 17, 25)
        sides = tuple(pick(0, 1, 1, 1, 2) for _ in range(4))
        layer = drawn(pick, (1, *channels), size, (3, 3), (1, 1), (1, 1), sides)
        if layer and catalogue.fits(variant, layer.sizes):
            yield layer


@pytest.mark.parametrize("variant", sorted({kernel.variant for kernel in USED}))
def test_many_shapes(variant: str, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    used = [kernel for kernel in USED if kernel.variant == variant]
    assert len(run(layers, used, part_of(SHAPES), 8, 1, tmp_path)) == len(used)


@pytest.mark.parametrize("cores", [1, 3, 16])
def test_other_teams(cores: int, tmp_path: Path) -> None:
    plain = [kernel for kernel in USED if not kernel.epilogue]
    run(layers, plain, 5 * len(plain), cores, cores, tmp_path)


def test_the_transforms_make_a_convolution() -> None:
    """Of all products of a weight and a number, each result has those of its own window, once."""
    for outputs, given in TRANSFORMS.items():
        results, weights, values = (np.array(matrix) for matrix in given)
        made = np.einsum("ki,ij,il->kjl", results, weights, values)
        wanted = np.zeros((outputs, 3, outputs + 2))
        for k in range(outputs):
            for j in range(3):
                wanted[k, j, k + j] = 1
        assert np.abs(made - wanted).max() < 1e-12


@pytest.mark.parametrize("mode", ["forward", "weight_grad"])
def test_errors_grow_as_far_as_is_said(mode: str) -> None:
    """Of random numbers in single precision, against plain sums of as many channels."""
    generator = np.random.default_rng(5)
    for outputs, given in TRANSFORMS.items():
        results, weights, values = (np.array(matrix, np.float32) for matrix in given)
        if mode == "weight_grad":
            results, weights = weights.T, results.T
        g = generator.standard_normal((2000, 32, weights.shape[1])).astype(np.float32)
        d = generator.standard_normal((2000, 32, values.shape[1])).astype(np.float32)
        window = np.arange(len(results))[:, None] + np.arange(weights.shape[1])
        exact = np.einsum("ncj,nckj->nk", g.astype(np.float64), d.astype(np.float64)[..., window])
        plain = np.zeros_like(exact, np.float32)
        sums = np.zeros((len(g), values.shape[0])).astype(np.float32)
        for c in range(g.shape[1]):
            for j in range(weights.shape[1]):
                plain = plain + g[:, c, j, None] * d[:, c][:, window[:, j]]
            sums += (g[:, c] @ weights.T) * (d[:, c] @ values.T)
        errors = (np.sqrt(np.mean((v - exact) ** 2, axis=0)) for v in (plain, sums @ results.T))
        usual, other = errors
        factor, _ = growth(mode, {"outputs": outputs})
        assert 0.3 * factor < (other / usual).max() < factor


def test_a_wrong_padding_is_caught(tmp_path: Path) -> None:
    """The comparison can fail, also with the wider bound."""
    kernel = Kernel("conv2d", "forward", "", "winograd_4", "f32")
    generator = np.random.default_rng(3)
    found = (x for x in layers(catalogue.variant_of(kernel), "forward", generator) if x.y[3] > 3)
    made = job(kernel, next(x for x in found if x.sizes["pad_left"] == 1), generator)
    other = {**made.layer.sizes, "pad_left": 0}
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        (output,) = runner.call(kernel, made.outputs, made.inputs, other).outputs
    assert not (np.abs(output - made.value) <= made.tolerance).all()
