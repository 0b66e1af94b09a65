"""Depthwise and pointwise convolutions in assembler, channels first and last: as test_conv.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradlet.kernels import catalogue
from tests.xpulp.conv_jobs import layers, run

OTHERS = ("conv.direct", "conv.im2col", "conv.sliding", "conv.winograd")
USED = [
    kernel
    for dtype in ("f32", "f16", "bf16")
    for kernel in catalogue.kernels(dtype)
    if kernel.family == "conv2d"
    and catalogue.variant_of(kernel).isa == "xpulp"
    and not catalogue.variant_of(kernel).generator.startswith(OTHERS)
]
SHAPES = 1104


@pytest.mark.parametrize("variant", sorted({kernel.variant for kernel in USED}))
def test_a_thousand_shapes(variant: str, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    used = [kernel for kernel in USED if kernel.variant == variant]
    assert len(run(layers, used, part_of(SHAPES), 8, 1, tmp_path)) == len(used)


@pytest.mark.parametrize("cores", [1, 3, 16])
def test_other_teams(cores: int, tmp_path: Path) -> None:
    plain = [kernel for kernel in USED if not kernel.epilogue]
    run(layers, plain, 5 * len(plain), cores, cores, tmp_path)
