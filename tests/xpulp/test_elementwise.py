"""Element-wise kernels in assembler: any count, in place as well, with NaN and signed zeros."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.ir.elements import ELEMENTS
from gradlet.ir.graph import Array
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops.base import Size
from tests.xpulp.support import NativeReference, cluster, distinct, same_bits

UPDATES = ("momentum", "adam", "adamw", "squares")
"""Modes that test_updates.py has."""
USED = [
    kernel
    for element in ELEMENTS.values()
    if element.is_float
    for kernel in catalogue.kernels(element.name)
    if kernel.variant in ("stretch", "pieces", "curve", "growth")
    and kernel.mode not in UPDATES
    and kernel.family != "cast"
]
SPECIAL = np.array([0x7FC00000, 0xFFC00000, 0x80000000, 0, 0x7F800000, 0xFF800000, 1], np.uint32)
HYPER = np.array([0.5, 0.25], np.float32)


OWN_SIZES: dict[str, dict[str, Size]] = {
    "map": {"a": -0.5, "b": 0.75},
    "blend": {"keep": 0.9, "take": 0.1},
    "clip": {"begin": 0},
}


def random(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    scale = generator.choice([1, 1, 6, 60, 1e-3, 1e30, 1e-30])
    value: Array = (generator.standard_normal(shape) * scale).astype(np.float32)
    where = generator.random(shape) < 0.05
    value[where] = generator.choice(SPECIAL, int(where.sum())).view(np.float32)
    return value


def broadcast(
    generator: np.random.Generator, count: int
) -> tuple[dict[str, Size], list[tuple[int, ...]], tuple[int, ...]]:
    """Sizes of a binary kernel, the shapes of its operands and of its result."""
    outer = generator.integers(1, 3, 5) if generator.random() < 0.5 else np.ones(5, int)
    shape = (*map(int, outer), count)
    operands = []
    for _ in range(2):
        repeated = generator.random(6) < 0.3
        operands.append(tuple(1 if r else n for r, n in zip(repeated, shape, strict=True)))
    steps = [_steps(operand) for operand in operands]
    sizes: dict[str, Size] = {"extent": shape, "a_step": steps[0], "b_step": steps[1]}
    return sizes, operands, shape


def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(0 if extent == 1 else step)
        step *= extent
    return tuple(reversed(steps))


def jobs(
    kernel: Kernel, seed: int
) -> Iterator[tuple[Array, list[Array], dict[str, Size], dict[int, int]]]:
    generator = np.random.default_rng(seed)
    for number in itertools.count():
        if kernel.family == "binary":
            size = int(generator.integers(1, generator.choice([4, 20, 60])))
            sizes, shapes, result = broadcast(generator, size)
        else:
            size = number + 1
            sizes, shapes, result = {"count": size}, [(size,)] * 3, (size,)
        _, formal = catalogue.operands(kernel)
        settings = [operand for operand in formal if operand.dtype == "f32"]
        stored = kernel.element.stored
        drawn = [random(generator, shape) for shape in shapes[: len(formal) - len(settings)]]
        inputs = [*map(stored, drawn), *(HYPER for _ in settings)]
        sizes |= OWN_SIZES.get(kernel.family, {})
        in_place = {0: 0} if number % 3 == 0 and shapes[0] == result else {}
        yield stored(np.full(result, np.nan, np.float32)), inputs, sizes, in_place


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def _values(kernel: Kernel, inputs: list[Array]) -> list[Any]:
    return [v if v is HYPER else kernel.element.loaded(v) for v in inputs]


def expected(kernel: Kernel, inputs: list[Array]) -> Any:
    """What the definition says; one operation more or less exactly, so float32 will do."""
    if kernel.family not in ("unary", "sgd", "binary") or kernel.mode == "reset":
        return None
    first, *others = _values(kernel, inputs)
    if kernel.mode == "relu":
        return np.where(first <= 0, np.float32(0), first)
    (second, *_) = others
    if kernel.mode == "relu_grad":
        return np.where(second > 0, first, np.float32(0))
    if kernel.mode in ("add_relu", "add_relu_grad"):
        total = first + second
        off = total <= 0 if kernel.mode == "add_relu" else ~(others[1] > 0)
        return np.where(off, np.float32(0), total)
    if kernel.mode == "sgd":
        return first - HYPER[0] * (second + HYPER[1] * first)
    made: Array = BINARY[kernel.mode](first, second)
    return made


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
@pytest.mark.filterwarnings("ignore:.* encountered in")
def test_a_thousand_counts(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    """A thousand for each variant, over all of its modes."""
    count = -(-1000 // len(catalogue.variant_of(kernel).modes))
    natives = NativeReference([kernel], tmp_path, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for output, inputs, sizes, in_place in distinct(
            jobs(kernel, seed=3), part_of(count), lambda job: job[2]
        ):
            made = runner.call(kernel, [output], inputs, sizes, in_place=in_place).outputs
            same = natives.call(kernel, [output], inputs, sizes)
            value, element = expected(kernel, inputs), kernel.element
            device, native = element.loaded(made[0]), element.loaded(same[0])
            if value is not None:
                held = element.rounded(value)
                near = max(1e-6, 2 * element.unit_roundoff) if element.accumulate else 1e-6
                assert np.allclose(device, held, rtol=near, atol=near, equal_nan=True), sizes
            # which NaN it is depends on the machine
            known = ~np.isnan(native)
            assert (np.isnan(device) == ~known).all(), sizes
            assert same_bits([made[0][known]], [same[0][known]]), sizes


@pytest.mark.parametrize("mode", ["widen", "narrow"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.filterwarnings("ignore:.* encountered in")
def test_casts(mode: str, dtype: str, tmp_path: Path) -> None:
    """Any count; subnormal numbers and what is too large for the narrow one are among them."""
    kernel = Kernel("cast", mode, "", "stretch", dtype)
    natives, generator = NativeReference([kernel], tmp_path, 8), np.random.default_rng(5)
    wide, element = ELEMENTS["f32"], kernel.element
    taken, given = (element, wide) if mode == "widen" else (wide, element)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for count in range(1, 200):
            value = random(generator, (count,)) * np.float32(10.0 ** generator.integers(-8, 8))
            x, y = taken.stored(value), given.stored(np.full(count, np.nan, np.float32))
            (made,) = runner.call(kernel, [y], [x], {"count": count}).outputs
            (same,) = natives.call(kernel, [y], [x], {"count": count})
            known = ~np.isnan(np.asarray(taken.loaded(x), np.float32))
            assert same_bits([made[known]], [same[known]]), count
            wanted = given.stored(taken.loaded(x))
            assert same_bits([made[known]], [wanted[known]]), count
