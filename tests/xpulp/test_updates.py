"""Updates in assembler that remember something, and the norm of gradients: any count, in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradlet.ir.elements import ELEMENTS
from gradlet.ir.graph import Array
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops import OPS
from gradlet.ops.learning.optimizer import update_op
from tests.xpulp.support import NativeReference, cluster, same_bits

CHOSEN = [
    kernel
    for element in ELEMENTS.values()
    if element.is_float
    for kernel in catalogue.kernels(element.name)
    if kernel.variant == "stretch"
]
UPDATES = [kernel for kernel in CHOSEN if kernel.mode in ("momentum", "adam", "adamw")]
SQUARES = [kernel for kernel in CHOSEN if kernel.mode == "squares"]


def settings(mode: str, number: int) -> Array:
    if mode == "momentum":
        return np.array([0.5, 0.25, 0.75, number % 2], np.float32)
    epsilon = (1e-8, 1e-3, 0.0)[number % 3]
    return np.array([0.01, 0.1 * (number % 2), 0.9, 0.999, epsilon], np.float32)


def state(generator: np.random.Generator, count: int) -> Array:
    """Squares of all sizes: 0, tiny ones and infinity are divided by otherwise."""
    value: Array = generator.standard_normal(count) * 10.0 ** generator.integers(-3, 3, count)
    rare = generator.random(count) < 0.1
    value[rare] = generator.choice([0.0, 1e-22, 1e-19, 1e-10, 1e18, 1e19], int(rare.sum()))
    return np.asarray(value, np.float32)


@pytest.mark.parametrize("kernel", UPDATES, ids=lambda kernel: kernel.name)
@pytest.mark.filterwarnings("ignore:.* encountered in")
def test_a_thousand_updates(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    generator, natives = np.random.default_rng(6), NativeReference([kernel], tmp_path, 8)
    element = kernel.element
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for number in range(part_of(1000)):
            count = number // 2 + 1
            w, g, m = (element.stored(state(generator, count)) for _ in range(3))
            hyper, steps = settings(kernel.mode, number), 1 + number % 4
            inputs = [w, g, hyper, m]
            if kernel.mode != "momentum":
                correction = (1 - hyper[2:4].astype(np.float64) ** steps).astype(np.float32)
                inputs += [np.square(state(generator, count)), correction]
            nothing = element.stored(np.full(count, np.nan, np.float32))
            outputs = [nothing for _ in inputs[3:5]] + [w]
            outputs = outputs[: len(catalogue.operands(kernel)[0])]
            places = {0: 0, 1: 3, 2: 4}
            in_place = {i: places[i] for i in range(len(outputs))} if number % 3 else {}
            sizes = {"count": count}
            made = runner.call(kernel, outputs, inputs, sizes, in_place=in_place).outputs
            same = natives.call(kernel, outputs, inputs, sizes)
            own = [v if v is hyper else element.loaded(v) for v in inputs]
            wide = [np.asarray(value, np.float64) for value in own]
            wanted = update_op(kernel.mode).reference({}, *wide)
            normal = np.square(wide[1]) < 1e30
            if kernel.mode != "momentum":  # what is nearly 0 as float32 divides badly
                normal &= (hyper[4] > 0) | (wanted[2] > 1e-30)
            rounding = 1e-4 + 2 * element.unit_roundoff
            for device, native, exact in zip(made, same, wanted, strict=True):
                one, other = element.loaded(device), element.loaded(native)
                known = ~np.isnan(other)
                assert same_bits([one[known]], [other[known]]), number
                assert (np.isnan(one) == ~known).all(), number
                near = normal & np.isfinite(other) & (np.abs(exact) < 1e30)
                assert np.allclose(one[near], exact[near], rtol=rounding, atol=1e-4), number


@pytest.mark.parametrize("kernel", SQUARES, ids=lambda kernel: kernel.name)
def test_a_thousand_norms(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    generator, natives = np.random.default_rng(6), NativeReference([kernel], tmp_path, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for number in range(part_of(500)):
            count, begin = number + 1, int(generator.integers(0, 16))
            g = generator.standard_normal(count).astype(np.float32)
            before, y = (generator.standard_normal(16).astype(np.float32) for _ in range(2))
            inputs = [g, before if number % 2 else None]
            sizes = {"count": count, "begin": begin}
            made = runner.call(kernel, [y], inputs, sizes).outputs
            assert same_bits(made, natives.call(kernel, [y], inputs, sizes)), sizes
            wide = [value.astype(np.float64) for value in inputs if value is not None]
            (wanted,) = OPS["clip_squares"].reference({"begin": begin}, *wide)
            wanted = wanted + (y if kernel.epilogue == "sum" else 0.0)
            assert np.allclose(made[0], wanted, rtol=1e-5, atol=1e-5), sizes
