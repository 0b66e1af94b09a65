"""Cross-entropy and its gradient in one call: many sizes and options with every access checked,
bits against the C reference, values against float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.ir.graph import Array, Attrs
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops import OPS
from gradlet.ops.base import Size
from tests.xpulp.support import NativeReference, cluster, distinct
from tests.xpulp.test_exponents import lines, same

USED = [kernel for kernel in catalogue.kernels() if kernel.family == "loss"]
FAST = [kernel for kernel in USED if kernel.variant != "ref"]
Job = tuple[list[Array], list[Any], dict[str, Size]]


def jobs() -> Iterator[Job]:
    """Two of three are a single label without any options, which has a way of its own."""
    generator = np.random.default_rng(7)
    for number in itertools.count():
        plain = number % 3 < 2
        classes = int(generator.integers(1, int(generator.choice([2, 9, 40, 140])) + 1))
        batch, inner = (1, 1) if plain else map(int, generator.integers(1, (11, 3)))
        logits = lines(generator, (batch, classes, inner))
        labels = generator.integers(0, classes, (batch, inner)).astype(np.int32)
        weights = (generator.random(classes) + 0.5).astype(np.float32) if number % 6 == 2 else None
        sizes: dict[str, Size] = {
            "batch": batch,
            "classes": classes,
            "inner": inner,
            "ignore": -100 if number % 7 else int(labels[0, 0]),
            "mean": int(number % 5 > 0),
            "smoothing": 0.0 if plain or number % 4 else 0.25,
        }
        outputs = [np.full(1, np.nan, np.float32), np.full_like(logits, np.nan)]
        yield outputs, [logits, labels, np.array([1.5], np.float32), weights], sizes


def wanted(inputs: list[Any], sizes: dict[str, Size]) -> tuple[Array, Array]:
    attrs: Attrs = {
        "ignore_index": sizes["ignore"],
        "reduction": "mean" if sizes["mean"] else "sum",
        "label_smoothing": sizes["smoothing"],
    }
    logits, labels, seed, weights = inputs
    more = [] if weights is None else [weights.astype(np.float64)]
    wide = logits.astype(np.float64)
    (loss,) = OPS["cross_entropy"].reference(attrs, wide, labels, *more)
    operands = (wide, labels, seed[0].astype(np.float64), *more)
    (slopes,) = OPS["cross_entropy_grad"].reference(attrs, *operands)
    return loss, slopes


@pytest.mark.parametrize(("cores", "count"), [(8, 1010), (1, 90), (3, 90), (16, 90)])
def test_kernel_and_native_reference(
    cores: int, count: int, tmp_path: Path, part_of: Callable[[int], int]
) -> None:
    natives = NativeReference(FAST, tmp_path, cores)
    with KernelRunner(FAST, cluster(cores), sanitize=True) as runner:
        for outputs, inputs, sizes in distinct(jobs(), part_of(count), lambda job: job[2]):
            made = runner.call(FAST[0], outputs, inputs, sizes, repeat=2).outputs
            same_as = natives.call(FAST[0], outputs, inputs, sizes, repeat=2)
            assert all(map(same, made, same_as)), sizes
            if (inputs[1] == sizes["ignore"]).all():
                assert not made[1].any(), sizes  # the mean of nothing is no number
            elif np.isfinite(inputs[0]).all():  # the reference cannot leave out what is not
                for value, right in zip(made, wanted(inputs, sizes), strict=True):
                    assert np.allclose(value, right.reshape(value.shape), 1e-5, 1e-5), sizes


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_no_number_is_not_lost(kernel: Kernel, tmp_path: Path) -> None:
    outputs, inputs, sizes = next(jobs())
    sizes["classes"] = 12
    with KernelRunner([kernel], cluster()) as runner:
        for place in range(12):
            x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 12, 1)
            x[0, place, 0] = np.nan
            values = [x, np.array([[2]], np.int32), *inputs[2:]]
            made = runner.call(kernel, [outputs[0], np.zeros_like(x)], values, sizes, repeat=2)
            assert all(np.isnan(value).all() for value in made.outputs), place
