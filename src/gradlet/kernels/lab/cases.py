"""What can be measured: one kernel call with operands, and what float64 makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.elements import ELEMENTS, F32, Element
from gradlet.ir.graph import Array, Attrs, Shape
from gradlet.ir.recipe import Recipe
from gradlet.kernels.catalogue import epilogues, families, updates
from gradlet.ops import OPS
from gradlet.ops.base import ShapeError, integer, ints
from gradlet.ops.conv import conv_sizes
from gradlet.ops.learning.optimizer import update_op
from gradlet.ops.lib.channels import LAYOUTS as MAPS
from gradlet.ops.lib.channels import PAIRED, channels_last, in_pairs, paired
from gradlet.oracle.scatter import MARGIN

STEPS = ("forward", "weight_grad", "input_grad")
LAYOUTS = ("nn", "nt", "tn")
HYPER = Recipe(momentum=0.9)
"""Rate, decay and the like, as a layer that is trained has them."""
LARGEST = 2**18


@dataclass(frozen=True)
class Case:
    """tolerance is how far off the first output may be, element by element. Operands are as they
    lie in memory, most of them numbers of `element`."""

    label: str
    family: str
    mode: str
    epilogue: str
    sizes: Mapping[str, int]
    outputs: tuple[Array, ...]
    inputs: tuple[Array | None, ...]
    macs: int
    expected: Array
    tolerance: Array
    element: Element = F32

    @property
    def bytes(self) -> int:
        arrays = (*self.outputs, *self.inputs)
        return sum(v.nbytes for v in arrays if v is not None) + 4 * len(self.sizes)


def gemm(
    m: int,
    n: int,
    k: int,
    layout: str = "nn",
    update: str = "",
    dtype: str = F32.name,
    *,
    bias: bool = False,
) -> Case:
    """c[m, n] = a . b; nt: b is [n, k], tn: a is [k, m]."""
    _positive(m=m, n=n, k=k)
    if layout not in LAYOUTS:
        raise GradletError(f"--layout {layout}: there are {', '.join(LAYOUTS)}")
    element = _element(dtype)
    random = _random(element)
    a = random(1, k, m) if layout == "tn" else random(1, m, k)
    b = random(1, n, k) if layout == "nt" else random(1, k, n)
    left = a[0].T if layout == "tn" else a[0]
    right = b[0].T if layout == "nt" else b[0]
    added = random(n) if bias else None
    value, size = (
        (one.astype(np.float64) @ other.astype(np.float64))[None]
        for one, other in ((left, right), (np.abs(left), np.abs(right)))
    )
    if added is not None:
        value, size = value + added, size + np.abs(added)
    sizes = {"batch": 1, "m": m, "n": n, "k": k}
    label = f"gemm {m}x{n}x{k} {layout}"
    return _case(
        (label, "gemm", layout, update),
        sizes,
        element,
        (a, b, added),
        m * n * k,
        value,
        size,
        k + 1,
    )


def linear(
    inputs: int, outputs: int, batch: int, step: str, update: str = "", dtype: str = F32.name
) -> Case:
    """A fully connected layer with weights w[outputs, inputs] and bias."""
    _positive(**{"in": inputs, "out": outputs, "batch": batch})
    _known_step(step)
    made = {
        "forward": lambda: gemm(batch, outputs, inputs, "nt", update, dtype, bias=True),
        "input_grad": lambda: gemm(batch, inputs, outputs, "nn", update, dtype),
        "weight_grad": lambda: gemm(outputs, inputs, batch, "tn", update, dtype),
    }[step]()
    return _renamed(made, f"linear {inputs}->{outputs}, batch {batch}, {step}")


def conv2d(
    shape: Sequence[int],
    channels: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    groups: int,
    batch: int,
    step: str,
    update: str = "",
    dilation: tuple[int, int] = (1, 1),
    layout: str = "chw",
    dtype: str = F32.name,
) -> Case:
    """shape: channels, height, width, whatever the layout. padding: top, left, bottom, right."""
    _positive(**{"out-channels": channels, "groups": groups, "batch": batch})
    _positive(kernel=min(kernel), stride=min(stride), dilation=min(dilation))
    _known_step(step)
    _known_layout(layout)
    _divisible(shape[0], channels, groups, layout)
    attrs: Attrs = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "size": tuple(shape[1:]),
        "kernel": kernel,
        "layout": layout,
    }
    element = _element(dtype)
    random = _random(element)
    x = random(batch, *shape)
    w = random(channels, shape[0] // groups, *kernel)
    made = _made(attrs, x, w)
    sizes = conv_sizes(attrs, x.shape, w.shape, made)
    if in_pairs(attrs) and groups == 1:
        sizes["in_channels"] += shape[0] % 2
    macs = int(np.prod(made)) * int(np.prod(w.shape[1:]))
    b, dy = random(channels), random(*made)
    sums = {"forward": w[0].size + 1, "input_grad": w[:, 0].size, "weight_grad": dy[:, 0].size}
    x, w, dy, offset = _laid(attrs, x, w, dy, np.broadcast_to(b[:, None, None], made))
    if in_pairs(attrs):
        attrs = {**attrs, "channels": channels}
    op, operands = {
        "forward": ("conv2d", (x, w, b)),
        "input_grad": ("conv2d_input_grad", (dy, w)),
        "weight_grad": ("conv2d_weight_grad", (dy, x)),
    }[step]
    value, size = _reference(op, attrs, operands)
    if step == "forward" and update == "sum":
        operands = (x, w, None)
        value, size = value - offset, size - np.abs(offset)
    label = f"{_conv_label(attrs, shape, channels)}, batch {batch}, {step}"
    mode = step if layout == "chw" else f"{step}_{layout}"
    return _case(
        (label, "conv2d", mode, update), sizes, element, operands, macs, value, size, sums[step]
    )


def _made(attrs: Attrs, x: Array, w: Array) -> Shape:
    try:
        return OPS["conv2d"].shape({**attrs, "layout": "chw"}, x.shape, w.shape)[0]
    except ShapeError as error:
        raise GradletError(f"this layer has no output: {error}") from None


def _laid(attrs: Attrs, x: Array, w: Array, *made: Array) -> tuple[Array, ...]:
    """As the layout has them."""
    if channels_last(attrs):
        return tuple(np.ascontiguousarray(np.moveaxis(v, 1, -1)) for v in (x, w, *made))
    if not in_pairs(attrs):
        return (x, w, *made)
    dims = (1, 0 if integer(attrs, "groups") > 1 else 1, *(1 for _ in made))
    pairs = zip((x, w, *made), dims, strict=True)
    return tuple(np.ascontiguousarray(paired(v, dim)) for v, dim in pairs)


def _reference(op: str, attrs: Attrs, operands: Sequence[Array]) -> tuple[Array, Array]:
    """The result in float64, and that of the operands without their signs."""
    wide = [operand.astype(np.float64) for operand in operands]
    (value,), (size,) = (OPS[op].reference(attrs, *map(f, wide)) for f in (np.asarray, np.abs))
    return value, size


def _conv_label(attrs: Attrs, shape: Sequence[int], channels: int) -> str:
    kernel, stride, dilation = (
        "x".join(map(str, ints(attrs, name))) for name in ("kernel", "stride", "dilation")
    )
    label = f"conv2d {'x'.join(map(str, shape))} -> {channels}, kernel {kernel}, stride {stride}"
    label += f", dilation {dilation}" if dilation != "1x1" else ""
    return f"{label}, groups {attrs['groups']}"


def _known_layout(layout: str) -> None:
    if layout not in MAPS:
        raise GradletError(f"--layout {layout}: there are {', '.join(MAPS)}")


def _divisible(inputs: int, outputs: int, groups: int, layout: str) -> None:
    if inputs % groups or outputs % groups:
        raise GradletError(
            f"{inputs} input and {outputs} output channels cannot be split into {groups} groups"
        )
    if layout == PAIRED and groups > 1 and (groups, groups) != (inputs, outputs):
        raise GradletError(f"--layout {layout}: groups have to be of one channel each")


def _case(
    what: tuple[str, str, str, str],
    sizes: Mapping[str, int],
    element: Element,
    inputs: tuple[Array | None, ...],
    macs: int,
    value: Array,
    size: Array,
    roundings: int,
) -> Case:
    """what: label, family, mode, update. If an update is wanted, the same with it fused into the
    store."""
    label, family, mode, update = what
    known = families()[family].modes[mode].epilogues
    if update and update not in known:
        able = f"; there are {', '.join(known)}" if known else ""
        raise GradletError(f"--update {update}: {label} cannot be fused with it{able}")
    outputs: tuple[Array, ...] = (np.full(value.shape, np.nan, np.float32),)
    hyper: tuple[Array, ...] = ()
    if update:
        states = 1 + len(epilogues()[update].outputs)
        outputs = tuple(_random(element, 7 + i)(*value.shape) for i in range(states))
        value, size = _updated(update, outputs, value, size)
        roundings += 4
        hyper = (_hyper(update),) if update in updates() else ()
        label = f"{label}, {update}"
    bound = MARGIN * roundings * element.sums.unit_roundoff * size
    if element.accumulate:
        label = f"{label}, {element.name}"
        bound = bound + element.unit_roundoff * (np.abs(value) + bound) + element.smallest
    stored = [None if v is None else element.stored(v) for v in inputs]
    return Case(
        label,
        family,
        mode,
        update,
        sizes,
        tuple(element.stored(v) for v in outputs),
        (*stored, *hyper),
        macs,
        value,
        bound,
        element,
    )


def _updated(
    update: str, outputs: Sequence[Array], value: Array, size: Array
) -> tuple[Array, Array]:
    w, *states = (v.astype(np.float64) for v in outputs)
    reach = size + np.sum(np.abs(outputs), axis=0)
    if update not in updates():
        return w + value, reach
    hyper = _hyper(update).astype(np.float64)
    return update_op(update).reference({}, w, value, hyper, *states)[0], reach


def _hyper(update: str) -> Array:
    return np.array([getattr(HYPER, name) for name in update_op(update).hyper], np.float32)


def _renamed(case: Case, label: str) -> Case:
    values: dict[str, Any] = {**vars(case), "label": label}
    if case.epilogue:
        values["label"] += f", {case.epilogue}"
    return Case(**values)


def _element(dtype: str) -> Element:
    found = ELEMENTS.get(dtype)
    if found is None or not found.is_float:
        known = ", ".join(name for name, element in ELEMENTS.items() if element.is_float)
        raise GradletError(f"--dtype {dtype}: there are {known}")
    return found


def _random(element: Element, seed: int = 0) -> Any:
    """Numbers that the element has."""
    generator = np.random.default_rng(seed)

    def draw(*shape: int) -> Array:
        elements = math.prod(shape)
        if elements > LARGEST:
            raise GradletError(
                f"an operand of {'x'.join(map(str, shape))} has {elements:,} elements; L1, where "
                f"it has to lie, never has room for more than {LARGEST:,}"
            )
        return np.asarray(element.rounded(generator.standard_normal(shape)), np.float32)

    return draw


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise GradletError(f"--{name} {size}: it must be 1 or more")


def _known_step(step: str) -> None:
    if step not in STEPS:
        raise GradletError(f"--step {step}: there are {', '.join(STEPS)}")
