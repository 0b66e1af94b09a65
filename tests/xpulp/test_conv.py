"""Convolutions in assembler: every variant over a thousand shapes, borders that stick out, groups
and sizes of 1 among them, every access checked; bits against the C twin, values against float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet import kernels
from gradlet.graph import Attrs
from gradlet.kernels import Kernel, Variant
from gradlet.trial import Trial
from tests.xpulp.conv_jobs import Layer, job, run
from tests.xpulp.support import cluster

USED = [
    kernel
    for kernel in kernels.kernels()
    if kernel.family == "conv2d"
    and kernels.variant_of(kernel).isa == "xpulp"
    and kernels.variant_of(kernel).generator != "columns"
]
SHAPES = 1008


def layers(variant: Variant, mode: str, generator: np.random.Generator) -> Iterator[Layer]:
    """Random ones that the variant takes, without an end."""

    def pick(*values: int) -> int:
        return int(generator.choice(values))

    params = dict(variant.params)
    kernel, stride = params.get("kernel", 0), params.get("stride", 1)
    edge, dilation = params.get("edge", 0), params.get("dilation", 1)
    while True:
        groups = pick(1, 1, 1, 2, 3)
        of_group, made = pick(1, 2, 3, 5), pick(1, 2, 3, 4)
        size = (pick(*range(1, 8)), pick(*range(1, 12), 13, 17, *([25, 57] if edge > 1 else [])))
        window, step, spread = (
            (pick(1, 2, 3, 3, 4, 5), kernel),
            (pick(1, 2, 3), stride),
            (pick(1, 1, 2) if dilation == 1 else pick(2, 3), dilation),
        )
        across = (0, 2, 4) if edge > 1 else (0, 1) if kernel != 1 else (0,)
        sides = tuple(pick(*values) for values in ((0, 1, 2), across) * 2)
        if variant.generator.startswith("depthwise"):
            groups, of_group, made = pick(1, 2, 3, 8, 9), 1, 1
            window, step, spread = (3, 3), (1, 1), (1, 1)
            if variant.name == "rolling_s2":
                step = (2, 2)
            sides = tuple(pick(1, 1, 2 if mode == "input_grad" else 0) for _ in range(4))
        elif variant.generator == "pointwise":
            groups, window, step, spread, sides = 1, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)
        elif variant.name.startswith("channels"):
            groups, of_group, made = pick(1, 3, 8, 11, 16), 1, 1
            window, step = (pick(1, 2, 3, 5), pick(1, 2, 3, 4)), (pick(1, 2, 3), pick(1, 2, 3))
            spread, sides = (pick(1, 2), pick(1, 2, 3)), tuple(pick(0, 1, 2) for _ in range(4))
        elif mode == "weight_grad" and pick(0, 1, 1):
            window = kernel, kernel
        if mode == "weight_grad" and kernel and pick(0, 0, 0, 1):  # many units for each core
            groups, of_group, made = 1, pick(9, 13), pick(8, 11, 14)
        if kernel == 1 and mode == "weight_grad":
            of_group = pick(4, 8, 24)
        attrs: Attrs = {
            **{"stride": step, "padding": sides, "dilation": spread, "groups": groups},
            **{"size": size, "kernel": window},
        }
        image = tuple(
            (size[d] + sides[d] + sides[d + 2] - spread[d] * (window[d] - 1) - 1) // step[d] + 1
            for d in (0, 1)
        )
        if min(image) < 1:
            continue
        batch = pick(1, 1, 2)
        layer = Layer(
            (batch, groups * of_group, *size),
            (groups * made, of_group, *window),
            (batch, groups * made, *image),
            attrs,
        )
        if kernels.evaluate(variant.needs, layer.sizes):
            yield layer


@pytest.mark.parametrize("variant", sorted({kernel.variant for kernel in USED}))
def test_a_thousand_shapes(variant: str, tmp_path: Path) -> None:
    used = [kernel for kernel in USED if kernel.variant == variant]
    assert len(run(layers, used, SHAPES, 8, 1, tmp_path)) == len(used)


@pytest.mark.parametrize("cores", [1, 3, 16])
def test_other_teams(cores: int, tmp_path: Path) -> None:
    plain = [kernel for kernel in USED if not kernel.epilogue]
    run(layers, plain, 5 * len(plain), cores, cores, tmp_path)


def test_a_wrong_tap_is_caught(tmp_path: Path) -> None:
    """The comparison can fail: a kernel that is told of another padding computes something else."""
    kernel = Kernel("conv2d", "forward", "", "direct_k3s1", "f32")
    generator = np.random.default_rng(3)
    found = (x for x in layers(kernels.variant_of(kernel), "forward", generator) if x.y[3] > 3)
    made = job(kernel, next(x for x in found if x.sizes["pad_left"] == 1), generator)
    other = {**made.layer.sizes, "pad_left": 0}
    with Trial([kernel], cluster(), sanitize=True) as trial:
        (output,) = trial.call(kernel, made.outputs, made.inputs, other).outputs
    assert not (np.abs(output - made.value) <= made.tolerance).all()
