"""Convolutions in assembler: every variant over a thousand shapes, borders that stick out, groups
and sizes of 1 among them, every access checked; bits against the C reference, values against
float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from tests.xpulp.conv_jobs import job, layers, run
from tests.xpulp.support import cluster

USED = [
    kernel
    for dtype in ("f32", "f16", "bf16")
    for kernel in catalogue.kernels(dtype)
    if kernel.family == "conv2d"
    and catalogue.variant_of(kernel).isa == "xpulp"
    and catalogue.variant_of(kernel).generator.startswith("conv.direct")
]
SHAPES = 1008


@pytest.mark.parametrize("variant", sorted({kernel.variant for kernel in USED}))
def test_a_thousand_shapes(variant: str, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    used = [kernel for kernel in USED if kernel.variant == variant]
    assert len(run(layers, used, part_of(SHAPES), 8, 1, tmp_path)) == len(used)


@pytest.mark.parametrize("cores", [1, 3, 16])
def test_other_teams(cores: int, tmp_path: Path) -> None:
    plain = [kernel for kernel in USED if not kernel.epilogue]
    run(layers, plain, 5 * len(plain), cores, cores, tmp_path)


def test_a_wrong_tap_is_caught(tmp_path: Path) -> None:
    """The comparison can fail: a kernel that is told of another padding computes something else."""
    kernel = Kernel("conv2d", "forward", "", "direct_k3s1", "f32")
    generator = np.random.default_rng(3)
    found = (x for x in layers(catalogue.variant_of(kernel), "forward", generator) if x.y[3] > 3)
    made = job(kernel, next(x for x in found if x.sizes["pad_left"] == 1), generator)
    other = {**made.layer.sizes, "pad_left": 0}
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        (output,) = runner.call(kernel, made.outputs, made.inputs, other).outputs
    assert not (np.abs(output - made.value) <= made.tolerance).all()
