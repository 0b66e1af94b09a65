"""One time of recurrent layers in assembler: all times of a sequence, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet import kernels
from gradlet.graph import Array
from gradlet.kernels import Kernel
from gradlet.ops.base import Size
from gradlet.trial import Trial
from tests.xpulp.support import Twins, cluster, distinct, same_bits

FAMILIES = ("rnn", "gru", "lstm")
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
USED = [
    kernel
    for kernel in kernels.kernels()
    if kernel.family in FAMILIES and kernel.variant.startswith(("lines", "stream"))
]
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


def _sizes(generator: np.random.Generator, family: str) -> dict[str, int]:
    times, batch = (int(n) for n in generator.integers(1, 4, 2))
    hidden = int(generator.integers(1, generator.choice([5, 20, 44])))
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
    formal = kernels.operands(kernel)
    overwritten = ("gx", "kept") if "grad" not in kernel.mode else ("dgx", "kept")
    for number in itertools.count():
        sizes = _sizes(generator, kernel.family)
        gates = GATES[kernel.family]
        optional = generator.random() < 0.5
        scale = generator.choice([0.3, 1, 4])

        def array(name: str, sizes: dict[str, int] = sizes, scale: float = scale) -> Array:
            shape = _shape(name, sizes, GATES[kernel.family])
            value: Array = (generator.standard_normal(shape) * scale).astype(np.float32)
            return value

        inputs = [array(o.name) if optional or not o.optional else None for o in formal[1]]
        outputs: list[Array | None] = [
            np.full(_shape(o.name, sizes, gates), np.nan, np.float32)
            if optional or not o.optional
            else None
            for o in formal[0]
        ]
        repeat = sizes["times"] + (optional and any(o.optional for o in formal[0]))
        names = [o.name for o in formal[1]], [o.name for o in formal[0]]
        in_place = {}
        if number % 3 == 0 and overwritten[0] in names[0 if "grad" not in kernel.mode else 1]:
            pair = ("kept", "gx") if "grad" not in kernel.mode else ("dgx", "kept")
            if pair[0] in names[1] and pair[1] in names[0]:
                in_place = {names[1].index(pair[0]): names[0].index(pair[1])}
        yield outputs, inputs, dict(sizes), repeat, in_place


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_a_thousand_scans(kernel: Kernel, tmp_path: Path) -> None:
    """A thousand for each variant, over its modes; those that fetch weights have them far away."""
    count = 500
    level = "L2" if kernel.variant.startswith("stream") else ""
    twins = Twins([kernel], tmp_path, 8)
    with Trial([kernel], cluster(), sanitize=True) as trial:
        for outputs, inputs, sizes, repeat, in_place in distinct(
            jobs(kernel, seed=5), count, lambda job: job[2]
        ):
            made = trial.call(
                kernel, outputs, inputs, sizes, in_place=in_place, repeat=repeat, level=level
            ).outputs
            same = twins.call(kernel, outputs, inputs, sizes, repeat)
            assert same_bits(made, same), (sizes, repeat)
