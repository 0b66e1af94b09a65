"""Convolutions by strides, of maps that lie near and of such that the kernel fetches itself: a
thousand shapes of each, in both layouts, with windows, strides, dilation, groups and padding of
any kind, every access and every transfer checked; bits against the C reference, values against
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
    if kernel.family == "conv2d" and catalogue.variant_of(kernel).generator == "conv.sliding"
]
SHAPES = 360


def layers(variant: Variant, mode: str, generator: np.random.Generator) -> Iterator[Layer]:
    """Random ones that the variant takes, without an end."""

    def pick(*values: int) -> int:
        return int(generator.choice(values))

    def pair(*values: int) -> tuple[int, int]:
        return pick(*values), pick(*values)

    while True:
        channels = pick(1, 1, 1, 2, 3), pick(1, 3, 4, 5, 7, 8, 10), pick(2, 3, 4, 5, 7, 9, 13)
        if mode.startswith("input_grad"):
            channels = channels[0], channels[2], channels[1]
        size, window = (pick(*range(1, 8), 12), pick(*range(1, 10), 12, 17)), pair(1, 2, 3, 4, 5, 7)
        step, spread = pair(1, 1, 1, 2, 3), pair(1, 1, 1, 2, 3)
        sides = pair(0, 1, 2, 4) + pair(0, 1, 2, 4)
        layer = drawn(pick, channels, size, window, step, spread, sides)
        if layer and catalogue.fits(variant, layer.sizes):
            yield layer


@pytest.mark.parametrize("variant", ["sliding", "columns_dma"])
@pytest.mark.parametrize("step", ["forward", "input_grad", "weight_grad"])
def test_hundreds_of_shapes(
    step: str, variant: str, tmp_path: Path, part_of: Callable[[int], int]
) -> None:
    used = [k for k in USED if k.variant == variant and k.mode.startswith(step)]
    assert len(run(layers, used, part_of(SHAPES), 8, 1, tmp_path)) == len(used)


@pytest.mark.parametrize("cores", [1, 3, 16])
def test_other_teams(cores: int, tmp_path: Path) -> None:
    plain = [kernel for kernel in USED if not kernel.epilogue]
    run(layers, plain, 6 * len(plain), cores, cores, tmp_path)
