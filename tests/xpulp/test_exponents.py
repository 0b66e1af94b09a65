"""Softmax and cross-entropy in assembler: lines of any length and step, with -inf among them."""

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
from gradlet.ops import OPS
from gradlet.ops.base import Size
from tests.xpulp.support import NativeReference, cluster, distinct, same_bits

FAMILIES = ("softmax", "cross_entropy")
USED = [k for k in catalogue.kernels() if k.variant == "line" and k.family in FAMILIES]
Job = tuple[list[Array], list[Array | None], dict[str, Size], dict[int, int]]


def lines(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Some far below the others: the smallest result that is not 0, and beyond."""
    value: Array = generator.standard_normal(shape) * generator.choice([1.0, 10.0, 60.0])
    value[generator.random(shape) < 0.05] = -np.inf
    value[:, 0] = 0.0
    return np.asarray(value, np.float32)


def softmax_job(kernel: Kernel, generator: np.random.Generator, number: int) -> Job:
    most = int(generator.choice([2, 5, 30]))
    outer, count, inner = (int(generator.integers(1, n + 1)) for n in (9, most, 3))
    x = lines(generator, (outer, count, inner))
    inputs: list[Array | None] = [x]
    if kernel.mode.endswith("_grad"):
        y = np.exp(-np.abs(x)) if kernel.mode == "softmax_grad" else -np.abs(x)
        inputs = [generator.standard_normal(x.shape).astype(np.float32), y]
    in_place = {0: 0} if number % 3 == 0 else {}
    return (
        [np.full_like(x, np.nan)],
        inputs,
        {"outer": outer, "count": count, "inner": inner},
        in_place,
    )


def loss_job(kernel: Kernel, generator: np.random.Generator, number: int) -> Job:
    """Every second one is a single label without any options, which has a way of its own."""
    plain = number % 2 == 0
    classes = int(generator.integers(1, int(generator.choice([2, 5, 40])) + 1))
    batch, inner = (1, 1) if plain else map(int, generator.integers(1, (11, 3)))
    logits = lines(generator, (batch, classes, inner))
    labels = generator.integers(0, classes, (batch, inner)).astype(np.int32)
    weights = (generator.random(classes) + 0.5).astype(np.float32) if number % 4 == 1 else None
    sizes: dict[str, Size] = {
        "batch": batch,
        "classes": classes,
        "inner": inner,
        "ignore": -100 if plain or number % 5 else 0,
        "mean": int(number % 3 > 0),
        "smoothing": 0.0 if plain or number % 3 else 0.25,
    }
    gradient = [np.array([1.5], np.float32)] if kernel.mode == "grad" else []
    output = np.full_like(logits, np.nan) if gradient else np.ones(1, np.float32)
    in_place = {0: 0} if gradient and number % 4 < 2 else {}
    return [output], [logits, labels, *gradient, weights], sizes, in_place


def jobs(kernel: Kernel) -> Iterator[Job]:
    generator = np.random.default_rng(5)
    make = softmax_job if kernel.family == "softmax" else loss_job
    for number in itertools.count():
        yield make(kernel, generator, number)


def same(one: Array, other: Array) -> bool:
    """To the bit; but which NaN it is depends on the machine."""
    known = ~np.isnan(one)
    return bool((known == ~np.isnan(other)).all()) and same_bits([one[known]], [other[known]])


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_many_lines(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    natives = NativeReference([kernel], tmp_path, 8)
    count = -(-1000 // sum(kernel.family == other.family for other in USED))
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        absolute = 1e-37 if kernel.mode == "softmax" else 1e-5
        for outputs, inputs, sizes, in_place in distinct(
            jobs(kernel), part_of(count), lambda job: job[2]
        ):
            made = runner.call(kernel, outputs, inputs, sizes, in_place=in_place).outputs
            assert same(made[0], natives.call(kernel, outputs, inputs, sizes)[0]), sizes
            if kernel.family == "softmax":
                wide = [np.asarray(value, np.float64) for value in inputs]
                with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                    (wanted,) = OPS[kernel.mode].reference({"axis": 1}, *wide)
                assert np.allclose(made[0], wanted, rtol=1e-5, atol=absolute), sizes


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_no_number_is_not_lost(kernel: Kernel, tmp_path: Path) -> None:
    """Wherever in the line a NaN is, all that depends on it is NaN."""
    with KernelRunner([kernel], cluster()) as runner:
        for place in range(5):
            x = np.linspace(-1, 1, 5, dtype=np.float32).reshape(1, 5, 1)
            x[0, place, 0] = np.nan
            if kernel.family == "softmax":
                other = [np.ones_like(x)] if kernel.mode.endswith("_grad") else []
                sizes: dict[str, Size] = {"outer": 1, "count": 5, "inner": 1}
                made = runner.call(kernel, [np.zeros_like(x)], [x, *other], sizes).outputs
            else:
                outputs, inputs, sizes, _ = loss_job(kernel, np.random.default_rng(1), 0)
                outputs = [np.zeros_like(x) if kernel.mode == "grad" else outputs[0]]
                inputs[0], inputs[1] = x, np.array([[2]], np.int32)
                sizes["classes"] = 5
                made = runner.call(kernel, outputs, inputs, sizes).outputs
            assert np.isnan(made[0]).all(), place
