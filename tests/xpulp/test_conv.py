"""Convolutions in assembler: every variant over a thousand shapes, borders that stick out, groups
and sizes of 1 among them, every access checked; bits against the C twin, values against float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gradlet import kernels
from gradlet.graph import Array, Attrs
from gradlet.kernels import Kernel, Variant
from gradlet.ops import OPS
from gradlet.ops.conv import conv_sizes
from gradlet.ops.optimizer import update_op
from gradlet.tolerance import MARGIN
from gradlet.trial import Trial
from tests.xpulp.support import Twins, cluster, same_bits

USED = [
    kernel
    for kernel in kernels.kernels()
    if kernel.family == "conv2d" and kernels.variant_of(kernel).isa == "xpulp"
]
HYPER = {
    "sgd": np.array([0.5, 0.25], np.float32),
    "momentum": np.array([0.5, 0.25, 0.75, 1.0], np.float32),
}
OP = {
    "forward": "conv2d",
    "input_grad": "conv2d_input_grad",
    "weight_grad": "conv2d_weight_grad",
}
ROUNDOFF = 2.0**-24
SHAPES = 1008


@dataclass(frozen=True)
class Layer:
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    attrs: Attrs

    @property
    def sizes(self) -> dict[str, int]:
        return conv_sizes(self.attrs, self.x, self.w, self.y)


def layers(variant: Variant, mode: str, generator: np.random.Generator) -> Iterator[Layer]:
    """Random ones that the variant takes, without an end."""

    def pick(*values: int) -> int:
        return int(generator.choice(values))

    params = dict(variant.params)
    kernel, stride = params.get("kernel", 0), params.get("stride", 1)
    while True:
        groups = pick(1, 1, 1, 2, 3)
        of_group, made = pick(1, 2, 3, 5), pick(1, 2, 3, 4)
        size = (pick(*range(1, 8)), pick(*range(1, 12), 13, 17))
        window, step, spread = (
            (pick(1, 2, 3, 3, 4), kernel),
            (pick(1, 2, 3), stride),
            (pick(1, 1, 2), 1),
        )
        across = {"direct_k3s1_open": (0, 2)}.get(variant.name, (0, 1) if kernel != 1 else (0,))
        sides = tuple(pick(*values) for values in ((0, 1, 2), across) * 2)
        if variant.generator.startswith("depthwise"):
            groups, of_group, made = pick(1, 2, 3, 8, 9), 1, 1
            window, step, spread = (3, 3), (1, 1), (1, 1)
            if variant.name == "rolling_s2":
                step = (2, 2)
            sides = tuple(pick(1, 1, 2 if mode == "input_grad" else 0) for _ in range(4))
        elif variant.generator == "pointwise":
            groups, window, step, spread, sides = 1, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)
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


@dataclass(frozen=True)
class Job:
    kernel: Kernel
    layer: Layer
    outputs: tuple[Array, ...]
    inputs: tuple[Array | None, ...]
    value: Array
    tolerance: Array


def job(kernel: Kernel, layer: Layer, generator: np.random.Generator) -> Job:
    def random(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    x, w, dy, b = (random(*shape) for shape in (layer.x, layer.w, layer.y, layer.w[:1]))
    operands = {"forward": (x, w, b), "input_grad": (dy, w), "weight_grad": (dy, x)}[kernel.mode]
    inputs: tuple[Array | None, ...] = operands
    if kernel.mode == "forward" and generator.random() < 0.5:
        operands, inputs = (x, w), (x, w, None)
    op = OPS[OP[kernel.mode]]
    value, reach = (
        op.reference(layer.attrs, *(change(v.astype(np.float64)) for v in operands))[0]
        for change in (np.asarray, np.abs)
    )
    outputs: tuple[Array, ...] = (np.full(value.shape, np.nan, np.float32),)
    if kernel.epilogue == "relu":
        value = np.maximum(value, 0.0)
    elif kernel.epilogue:
        states = len(kernels.EPILOGUES[kernel.epilogue].outputs)
        outputs = tuple(random(*value.shape) for _ in range(1 + states))
        inputs = (*inputs, *([HYPER[kernel.epilogue]] if kernel.epilogue in HYPER else []))
        reach = reach + sum(np.abs(v) for v in outputs)
        value = _updated(kernel.epilogue, outputs, value)
    terms = {"forward": w[0].size, "input_grad": w[:, 0].size, "weight_grad": dy[:, 0].size}
    tolerance = MARGIN * (terms[kernel.mode] + 5) * ROUNDOFF * reach
    return Job(kernel, layer, outputs, inputs, value, tolerance)


def _updated(epilogue: str, outputs: tuple[Array, ...], value: Array) -> Array:
    w, *states = (v.astype(np.float64) for v in outputs)
    if epilogue == "sum":
        return w + value
    hyper = HYPER[epilogue].astype(np.float64)
    return update_op(epilogue).reference({}, w, value, hyper, *states)[0]


def check(job: Job, trial: Trial, twins: Twins) -> None:
    sizes, label = job.layer.sizes, f"{job.kernel.name} {job.layer}"
    device = trial.call(job.kernel, job.outputs, job.inputs, sizes).outputs
    assert same_bits(device, twins.call(job.kernel, job.outputs, job.inputs, sizes)), label
    assert (np.abs(device[0] - job.value) <= job.tolerance).all(), label


def run(used: list[Kernel], count: int, cores: int, seed: int, folder: Path) -> Counter[Kernel]:
    generator = np.random.default_rng(seed)
    sources = {k: layers(kernels.variant_of(k), k.mode, generator) for k in used}
    twins, reached = Twins(used, folder, cores), Counter[Kernel]()
    with Trial(used, cluster(cores), sanitize=True) as trial:
        for index in range(count):
            kernel = used[index % len(used)]
            check(job(kernel, next(sources[kernel]), generator), trial, twins)
            reached[kernel] += 1
    return reached


@pytest.mark.parametrize("variant", sorted({kernel.variant for kernel in USED}))
def test_a_thousand_shapes(variant: str, tmp_path: Path) -> None:
    used = [kernel for kernel in USED if kernel.variant == variant]
    assert len(run(used, SHAPES, 8, 1, tmp_path)) == len(used)


@pytest.mark.parametrize("cores", [1, 3, 16])
def test_other_teams(cores: int, tmp_path: Path) -> None:
    plain = [kernel for kernel in USED if not kernel.epilogue]
    run(plain, 5 * len(plain), cores, cores, tmp_path)


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
