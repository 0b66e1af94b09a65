"""One time of recurrent layers in assembler: all times of a sequence, forward and backward."""

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
from tests.xpulp.support import NativeReference, cluster, distinct, same_bits

FAMILIES = ("rnn", "gru", "lstm")
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
USED = [k for k in catalogue.kernels() if k.family in FAMILIES and k.variant == "lines"]
WIDTHS = {"gx": "gates", "kept": "gates", "dgx": "gates", "dgh": "gates"}
"""Operands with times whose width is not that of the state."""
STATES = ("h0", "c0", "dh0", "dc0")
Job = tuple[list[Array | None], list[Array | None], dict[str, Size], int, dict[int, int]]


def _shape(name: str, sizes: dict[str, int], gates: int) -> tuple[int, ...]:
    rows, hidden = sizes["times"] * sizes["batch"], sizes["hidden"]
    if name in STATES:
        return (sizes["batch"], hidden)
    known = {"w": (gates * hidden, hidden), "bias": (gates * hidden,), "p": (3 * hidden,)}
    return known.get(name, (rows, hidden * (gates if name in WIDTHS else 1)))


def _sizes(generator: np.random.Generator, family: str, *, wide: bool) -> dict[str, int]:
    times, batch = int(generator.choice([1, 2, 2, 3])), int(generator.choice([1, 1, 2, 3]))
    hidden = int(generator.integers(1, generator.choice([5, 12, 12, 40])))
    if wide:  # so that the lines of a gate come in several pieces
        times, batch, hidden = 2, 1, int(generator.integers(162, 180))
    first = generator.random() < 0.5
    return {
        "times": times,
        "batch": batch,
        "hidden": hidden,
        "time_stride": 1 if first else batch,
        "batch_stride": times if first else 1,
        "reverse": int(generator.random() < 0.5),
        **({"relu": int(generator.random() < 0.3)} if family == "rnn" else {}),
    }


def jobs(kernel: Kernel, seed: int) -> Iterator[Job]:
    generator = np.random.default_rng(seed)
    made, given = catalogue.operands(kernel)
    gates = GATES[kernel.family]
    initial = any(operand.optional for operand in made)
    for number in itertools.count():
        far = kernel.variant.startswith("stream")
        sizes = _sizes(generator, kernel.family, wide=far and number % 500 == 100)
        optional = generator.random() < 0.5
        scale = float(generator.choice([0.3, 1, 4]))
        inputs: list[Array | None] = []
        for operand in given:
            shape = _shape(operand.name, sizes, gates)
            value = (generator.standard_normal(shape) * scale).astype(np.float32)
            inputs.append(value if optional or not operand.optional else None)
        outputs: list[Array | None] = [
            np.full(_shape(operand.name, sizes, gates), np.nan, np.float32)
            if optional or not operand.optional
            else None
            for operand in made
        ]
        repeat = sizes["times"] + int(optional and initial)
        in_place = _in_place(kernel) if number % 3 == 0 else {}
        yield outputs, inputs, dict(sizes), repeat, in_place


def _in_place(kernel: Kernel) -> dict[int, int]:
    """Which output takes the place of which input."""
    names = [[operand.name for operand in side] for side in catalogue.operands(kernel)]
    pairs = {"rnn": ("y", "gx"), "rnn_grad": ("dgx", "dy")}
    grad = ("dgx", "kept") if kernel.mode.endswith("_grad") else ("kept", "gx")
    output, taken = pairs.get(kernel.mode, grad)
    return {names[0].index(output): names[1].index(taken)}


def check(kernel: Kernel, folder: Path, count: int, level: str) -> None:
    """Half a thousand scans, so that a variant has a thousand with both of its modes."""
    natives = NativeReference([kernel], folder, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for outputs, inputs, sizes, repeat, in_place in distinct(
            jobs(kernel, seed=5), count, lambda job: job[2]
        ):
            made = runner.call(
                kernel, outputs, inputs, sizes, in_place=in_place, repeat=repeat, level=level
            ).outputs
            same = natives.call(kernel, outputs, inputs, sizes, repeat)
            assert same_bits(made, same), (sizes, repeat)


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_a_thousand_scans(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    check(kernel, tmp_path, part_of(500), level="")
