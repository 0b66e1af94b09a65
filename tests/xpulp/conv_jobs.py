"""Single calls of convolutions: operands, what float64 makes of them, and the comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from gradlet.ir.graph import Array, Attrs
from gradlet.kernels import catalogue, traits
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.family import Variant
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops import OPS
from gradlet.ops.conv import MAP, conv_sizes
from gradlet.ops.learning.optimizer import update_op
from gradlet.ops.lib.channels import PAIRED, paired
from gradlet.oracle.growth import grown
from gradlet.oracle.scatter import MARGIN
from tests.xpulp.support import NativeReference, cluster, same_bits

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

    @property
    def paired_dims(self) -> tuple[int, int, int]:
        """Of x, w and y: whose neighbours lie side by side, if channels are in pairs."""
        return 1, 0 if self.attrs["groups"] != 1 else 1, 1


def drawn(
    pick: Callable[..., int],
    channels: tuple[int, int, int],
    size: tuple[int, ...],
    window: tuple[int, ...],
    step: tuple[int, ...],
    spread: tuple[int, ...],
    sides: tuple[int, ...],
) -> Layer | None:
    """channels: groups, given and made ones of each. None where no window fits into the image."""
    groups, of_group, made = channels
    image = tuple(
        (size[d] + sides[d] + sides[d + 2] - spread[d] * (window[d] - 1) - 1) // step[d] + 1
        for d in (0, 1)
    )
    if min(image) < 1:
        return None
    attrs: Attrs = {
        **{"stride": step, "padding": sides, "dilation": spread, "groups": groups},
        **{"size": size, "kernel": window},
    }
    batch = pick(1, 1, 2)
    return Layer(
        (batch, groups * of_group, *size),
        (groups * made, of_group, *window),
        (batch, groups * made, *image),
        attrs,
    )


def plain(mode: str) -> str:
    """Without the layout."""
    return mode.removesuffix("_hwc").removesuffix(f"_{PAIRED}")


def layers(variant: Variant, mode: str, generator: np.random.Generator) -> Iterator[Layer]:
    """Random ones that the variant takes, without an end."""

    def pick(*values: int) -> int:
        return int(generator.choice(values))

    params = dict(variant.params)
    kernel, stride = params.get("kernel", 0), params.get("stride", 1)
    edge, dilation = params.get("edge", 0), params.get("dilation", 1)
    others = {"conv.weight_pair": (1, 2, 3, 5), "conv.weight_pixels": (3,)}
    windows = others.get(variant.generator, (kernel,))
    found = 0
    for tried in count():
        assert tried < 1000 * (found + 1), f"no layer is drawn that {variant.name} takes"
        kernel = pick(*windows)
        groups = pick(1, 1, 1, 2, 3)
        of_group, made = pick(1, 2, 3, 5), pick(1, 2, 3, 4)
        size = (
            pick(*range(1, 8)),
            pick(*range(1, 12), 13, 16, 17, 24, *([57] if edge > 1 else [])),
        )
        window, step, spread = (
            (pick(1, 2, 3, 3, 4, max(5, kernel)), kernel),
            (pick(1, 2, 3), stride),
            (pick(1, 1, 2) if dilation == 1 else pick(2, 3), dilation),
        )
        across = (0, edge, 2 * edge) if edge > 1 else (0, 1) if kernel != 1 else (0,)
        sides = tuple(pick(*values) for values in ((0, 1, 2), across) * 2)
        if variant.generator.startswith("depthwise"):
            groups, of_group, made = pick(1, 2, 3, 8, 9), 1, 1
            window, step, spread = (3, 3), (1, 1), (1, 1)
            if variant.name == "rolling_s2":
                step = (2, 2)
            sides = tuple(pick(1, 1, 2 if mode.startswith("input_grad") else 0) for _ in range(4))
        elif variant.generator.startswith("conv.pointwise"):
            groups, window, step, spread, sides = 1, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)
        elif variant.generator == "conv.strided":
            groups, of_group, made = 1, pick(*range(1, 10)), pick(*range(1, 10))
            window, step = (1, 1), (pick(1, 2, 3), 2 if "_" not in mode[-4:] else pick(1, 2, 3))
            size, spread, sides = (size[0], pick(*range(1, 22))), (1, 1), (0, 0, 0, 0)
            if pick(0, 1):  # whole blocks only
                of_group, made, size = pick(4, 8), pick(4, 8), (size[0], pick(8, 16, 24))
        elif variant.name.startswith("channels"):
            groups, of_group, made = pick(1, 3, 8, 11, 16), 1, 1
            window, step = (pick(1, 2, 3, 5), pick(1, 2, 3, 4)), (pick(1, 2, 3), pick(1, 2, 3))
            spread, sides = (pick(1, 2), pick(1, 2, 3)), tuple(pick(0, 1, 2) for _ in range(4))
        elif plain(mode) == "weight_grad" and kernel and pick(0, 1, 1):
            window = kernel, kernel
        if mode == "weight_grad" and kernel and pick(0, 0, 0, 1):  # many units for each core
            groups, of_group, made = 1, pick(9, 13), pick(8, 11, 14)
        if kernel == 1 and mode == "weight_grad":
            of_group = pick(4, 8, 24)
        if mode.endswith(PAIRED) and not variant.generator.startswith("depthwise"):
            groups, of_group = 1, 2 * of_group
        if variant.generator == "conv.weight_pixels":
            window, step, spread = (3, 3), (1, 1), (1, 1)
            sides = tuple(pick(0, 1, 1) for _ in range(4))
        layer = drawn(pick, (groups, of_group, made), size, window, step, spread, sides)
        if layer and catalogue.fits(variant, layer.sizes):
            found += 1
            yield layer


@dataclass(frozen=True)
class Job:
    kernel: Kernel
    layer: Layer
    outputs: tuple[Array, ...]
    inputs: tuple[Array | None, ...]
    value: Array
    tolerance: Array
    sizes: dict[str, int]


def job(kernel: Kernel, layer: Layer, generator: np.random.Generator) -> Job:
    element = kernel.element

    def random(*shape: int) -> Array:
        return element.rounded(generator.standard_normal(shape)).astype(np.float32)

    x, w, dy, b = (random(*shape) for shape in (layer.x, layer.w, layer.y, layer.w[:1]))
    terms = {"forward": w[0].size, "input_grad": w[:, 0].size, "weight_grad": dy[:, 0].size}
    mode, attrs = plain(kernel.mode), layer.attrs
    if kernel.mode.endswith(PAIRED):
        pairs = zip((x, w, dy), layer.paired_dims, strict=True)
        x, w, dy = (np.ascontiguousarray(paired(v, dim)) for v, dim in pairs)
        attrs = {**attrs, "layout": PAIRED, "channels": layer.w[0]}
    elif mode != kernel.mode:
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
        states = len(catalogue.epilogues()[kernel.epilogue].outputs)
        outputs = tuple(random(*value.shape) for _ in range(1 + states))
        inputs = (*inputs, *([HYPER[kernel.epilogue]] if kernel.epilogue in HYPER else []))
        reach = reach + sum(np.abs(v) for v in outputs)
        value = _updated(kernel.epilogue, outputs, value)
    growth = traits.growth(kernel)
    tolerance = grown(MARGIN * (terms[mode] + 5) * ROUNDOFF * reach, growth.factor, growth.reach)
    if element.accumulate:
        tolerance = tolerance + element.unit_roundoff * (np.abs(value) + tolerance)
        tolerance = tolerance + element.smallest
    settings = 1 if kernel.epilogue in HYPER else 0
    numbers = len(inputs) - settings
    stored = [None if v is None else element.stored(v) for v in inputs[:numbers]]
    inputs = (*stored, *inputs[numbers:])
    outputs = tuple(element.stored(v) for v in outputs)
    sizes = layer.sizes
    for number in catalogue.fetched(kernel):
        if (given := inputs[number]) is not None and generator.random() < 0.5:
            whole, more = _larger(given, attrs, generator)
            inputs = (*inputs[:number], whole, *inputs[number + 1 :])
            sizes.update(more)
    return Job(kernel, layer, outputs, inputs, value, tolerance, sizes)


def _larger(
    given: Array, attrs: Attrs, generator: np.random.Generator
) -> tuple[Array, dict[str, int]]:
    """A map that begins with this one, and its sizes."""
    extents = [size + int(generator.integers(0, 3)) for size in given.shape[1:]]
    whole = np.full((given.shape[0], *extents), np.nan, np.float32)
    whole[tuple(slice(size) for size in given.shape)] = given
    if attrs.get("layout") == "hwc":
        extents = [extents[-1], *extents[:-1]]
    return whole, dict(zip(MAP, extents, strict=True))


def _updated(epilogue: str, outputs: tuple[Array, ...], value: Array) -> Array:
    w, *states = (v.astype(np.float64) for v in outputs)
    if epilogue == "sum":
        return w + value
    hyper = HYPER[epilogue].astype(np.float64)
    return update_op(epilogue).reference({}, w, value, hyper, *states)[0]


def check(job: Job, runner: KernelRunner, natives: NativeReference) -> None:
    sizes, label = job.sizes, f"{job.kernel.name} {job.layer} {job.sizes}"
    device = runner.call(job.kernel, job.outputs, job.inputs, sizes).outputs
    assert same_bits(device, natives.call(job.kernel, job.outputs, job.inputs, sizes)), label
    made = job.kernel.element.loaded(device[0]).astype(np.float64)
    assert (np.abs(made - job.value) <= job.tolerance).all(), label


Source = Callable[[Variant, str, np.random.Generator], Iterator[Layer]]


def run(
    layers: Source, used: list[Kernel], calls: int, cores: int, seed: int, folder: Path
) -> Counter[Kernel]:
    """So many calls, of each kernel in turn, with layers from where they come."""
    generator = np.random.default_rng(seed)
    sources = {k: layers(catalogue.variant_of(k), k.mode, generator) for k in used}
    natives, reached = NativeReference(used, folder, cores), Counter[Kernel]()
    with KernelRunner(used, cluster(cores), sanitize=True) as runner:
        for index in range(calls):
            kernel = used[index % len(used)]
            check(job(kernel, next(sources[kernel]), generator), runner, natives)
            reached[kernel] += 1
    return reached
