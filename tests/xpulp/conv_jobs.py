"""Single calls of convolutions: operands, what float64 makes of them, and the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradlet import kernels
from gradlet.graph import Array, Attrs
from gradlet.kernels import Kernel, Variant
from gradlet.ops import OPS
from gradlet.ops.conv import conv_sizes
from gradlet.ops.optimizer import update_op
from gradlet.tolerance import MARGIN
from gradlet.trial import Trial
from tests.xpulp.support import Twins, cluster, same_bits

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


@dataclass(frozen=True)
class Layer:
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    attrs: Attrs

    @property
    def sizes(self) -> dict[str, int]:
        return conv_sizes(self.attrs, self.x, self.w, self.y)


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
    terms = {"forward": w[0].size, "input_grad": w[:, 0].size, "weight_grad": dy[:, 0].size}
    mode, attrs = kernel.mode.removesuffix("_hwc"), layer.attrs
    if mode != kernel.mode:
        x, w, dy = (np.ascontiguousarray(np.moveaxis(v, 1, -1)) for v in (x, w, dy))
        attrs = {**attrs, "layout": "hwc"}
    operands = {"forward": (x, w, b), "input_grad": (dy, w), "weight_grad": (dy, x)}[mode]
    inputs: tuple[Array | None, ...] = operands
    if mode == "forward" and generator.random() < 0.5:
        operands, inputs = (x, w), (x, w, None)
    op = OPS[OP[mode]]
    value, reach = (
        op.reference(attrs, *(change(v.astype(np.float64)) for v in operands))[0]
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
    tolerance = MARGIN * (terms[mode] + 5) * ROUNDOFF * reach
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


Source = Callable[[Variant, str, np.random.Generator], Iterator[Layer]]


def run(
    layers: Source, used: list[Kernel], count: int, cores: int, seed: int, folder: Path
) -> Counter[Kernel]:
    """So many calls, of each kernel in turn, with layers from where they come."""
    generator = np.random.default_rng(seed)
    sources = {k: layers(kernels.variant_of(k), k.mode, generator) for k in used}
    twins, reached = Twins(used, folder, cores), Counter[Kernel]()
    with Trial(used, cluster(cores), sanitize=True) as trial:
        for index in range(count):
            kernel = used[index % len(used)]
            check(job(kernel, next(sources[kernel]), generator), trial, twins)
            reached[kernel] += 1
    return reached
