"""Convolutions by columns: a thousand shapes of each step, in both layouts, with strides, dilation,
groups and padding of any kind, every access checked; bits against the C reference, values against
float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet.kernels import catalogue
from gradlet.kernels.family import Variant
from tests.xpulp.conv_jobs import Layer, drawn, run

USED = [
    kernel
    for kernel in catalogue.kernels()
    if kernel.family == "conv2d" and catalogue.variant_of(kernel).generator == "conv.im2col"
]
SHAPES = 1008
CORES, MOST_SCRATCH = 16, 40_000


def layers(variant: Variant, mode: str, generator: np.random.Generator) -> Iterator[Layer]:
    """Random ones that the variant takes, without an end."""

    def pick(*values: int) -> int:
        return int(generator.choice(values))

    def pair(*values: int) -> tuple[int, int]:
        return pick(*values), pick(*values)

    while True:
        groups = pick(1, 1, 1, 2, 3)
        of_group, made = pick(1, 2, 3, 5), pick(1, 2, 3, 4, 5, 7, 9, 13, 16)
        if mode.startswith("input_grad"):
            of_group, made = made, of_group
        size, window = pair(*range(1, 8), 9, 12), pair(1, 2, 3, 4, 5)
        step, spread, sides = pair(1, 1, 2, 3), pair(1, 1, 2, 3), pair(0, 1, 2) + pair(0, 1, 2)
        layer = drawn(pick, (groups, of_group, made), size, window, step, spread, sides)
        if layer is None:
            continue
        names = {**layer.sizes, **dict(variant.params), "cores": CORES}
        if (
            catalogue.evaluate(variant.scratch, names) < MOST_SCRATCH
        ):  # also where others are quicker
            yield layer


@pytest.mark.parametrize("step", ["forward", "input_grad", "weight_grad"])
def test_a_thousand_shapes(step: str, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    used = [k for k in USED if k.variant == "columns_part" and k.mode.startswith(step)]
    assert len(run(layers, used, part_of(SHAPES), 8, 1, tmp_path)) == len(used)


def test_all_at_once(tmp_path: Path, part_of: Callable[[int], int]) -> None:
    used = [kernel for kernel in USED if kernel.variant == "columns_full"]
    assert len(run(layers, used, part_of(SHAPES), 8, 1, tmp_path)) == len(used)


@pytest.mark.parametrize("cores", [1, 3, 16])
def test_other_teams(cores: int, tmp_path: Path) -> None:
    plain = [kernel for kernel in USED if not kernel.epilogue]
    run(layers, plain, 5 * len(plain), cores, cores, tmp_path)
