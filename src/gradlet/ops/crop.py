"""Slices with a step, and their adjoint: a tensor laid into a larger one of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import (
    Axis,
    Call,
    Emitter,
    Importer,
    Lowering,
    Op,
    ShapeError,
    Span,
    from_onnx,
    from_torch,
    ints,
    register,
)
from gradlet.ops.pointwise import merge, padded, row_major


def _index(attrs: Attrs, size: Shape) -> tuple[slice, ...]:
    """Where `size` elements lie in the larger tensor."""
    starts, steps = ints(attrs, "start"), ints(attrs, "step")
    return tuple(
        slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, size, steps, strict=True)
    )


def _check_inside(attrs: Attrs, small: Shape, large: Shape) -> None:
    starts, steps = ints(attrs, "start"), ints(attrs, "step")
    if not len(small) == len(large) == len(starts) == len(steps):
        raise ShapeError("start, step and shapes need the same rank")
    for a, s, n, total in zip(starts, steps, small, large, strict=True):
        if a < 0 or s < 1 or n < 1 or a + (n - 1) * s >= total:
            raise ShapeError(f"{n} elements from {a} in steps of {s} are not inside {total}")


@register
class Slice(Op):
    name = "slice"
    inputs = ("x",)
    linear = True
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        size = ints(attrs, "size")
        _check_inside(attrs, size, ins[0])
        return (size,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0][_index(attrs, ints(attrs, "size"))],)

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        attrs = {"start": site.attrs["start"], "step": site.attrs["step"]}
        return {"x": emit.add("pad", [grads[0]], {**attrs, "size": site.ins[0].shape})}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        starts, steps = ints(site.attrs, "start"), ints(site.attrs, "step")
        return tuple(
            Axis(f"dim{dim}", n, (Span("x", dim, steps[dim], starts[dim]), Span("y", dim)))
            for dim, n in enumerate(site.outs[0].shape)
        )

    def lower(self, site: Site) -> Lowering:
        strides = row_major(site.ins[0].shape)
        starts, steps = ints(site.attrs, "start"), ints(site.attrs, "step")
        walked = tuple(step * stride for step, stride in zip(steps, strides, strict=True))
        extents, (x_step,) = merge(site.outs[0].shape, [walked])
        first = sum(a * stride for a, stride in zip(starts, strides, strict=True))
        return Lowering(
            "permute",
            "copy",
            {"extent": padded(extents, 1), "x_step": padded(x_step, 0), "x_start": first},
        )

    def torch(self, attrs: Attrs, *ins: str) -> str:
        parts = [f"{s.start}:{s.stop}:{s.step}" for s in _index(attrs, ints(attrs, "size"))]
        return f"{ins[0]}[{', '.join(parts)}]"


@register
class Pad(Op):
    name = "pad"
    inputs = ("x",)
    linear = True
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        size = ints(attrs, "size")
        _check_inside(attrs, ins[0], size)
        return (size,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        result = np.zeros(ints(attrs, "size"), ins[0].dtype)
        result[_index(attrs, ins[0].shape)] = ins[0]
        return (result,)

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        attrs = {"start": site.attrs["start"], "step": site.attrs["step"]}
        return {"x": emit.add("slice", [grads[0]], {**attrs, "size": site.ins[0].shape})}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        starts, steps = ints(site.attrs, "start"), ints(site.attrs, "step")
        axes = []
        for dim, (small, large) in enumerate(
            zip(site.ins[0].shape, site.outs[0].shape, strict=True)
        ):
            if steps[dim] == 1:
                spans = (Span("x", dim, 1, -starts[dim]), Span("y", dim))
                axes.append(Axis(f"dim{dim}", large, spans))
            elif small == 1:
                axes.append(Axis(f"dim{dim}", large, (Span("y", dim),)))
        return tuple(axes)

    def lower(self, site: Site) -> Lowering:
        shape = site.ins[0].shape
        sizes = {
            "extent": padded(site.outs[0].shape, 1),
            "inner": padded(shape, 1),
            "start": padded(ints(site.attrs, "start"), 0),
            "step": padded(ints(site.attrs, "step"), 1),
        }
        return Lowering("pad", "zeros", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"_pad({ins[0]}, {attrs['start']}, {attrs['step']}, {attrs['size']})"


def _pad(imp: Importer, x: str, before: Sequence[int], after: Sequence[int]) -> str:
    """Zeros before and after each dimension; negative numbers cut off."""
    shape = imp.shape(x)
    steps = (1,) * len(shape)
    if any(n < 0 for n in (*before, *after)):
        size = tuple(
            n + min(b, 0) + min(a, 0) for n, b, a in zip(shape, before, after, strict=True)
        )
        start = tuple(max(-b, 0) for b in before)
        x = imp.add("slice", [x], {"start": start, "step": steps, "size": size})
        shape = size
    start = tuple(max(b, 0) for b in before)
    size = tuple(n + b + max(a, 0) for n, b, a in zip(shape, start, after, strict=True))
    return (
        x if size == shape else imp.add("pad", [x], {"start": start, "step": steps, "size": size})
    )


def _slice(imp: Importer, x: str, cuts: Sequence[tuple[int, int, int, int]]) -> str:
    """x cut along dimensions by (dim, start, end, step), as Python cuts."""
    shape = imp.shape(x)
    start, step, size = [0] * len(shape), [1] * len(shape), list(shape)
    for dim, begin, end, stride in cuts:
        if stride < 1:
            raise imp.unsupported(f"a slice with step {stride}")
        chosen = range(shape[dim])[slice(begin, end, stride)]
        if not len(chosen):
            raise imp.unsupported("an empty slice")
        start[dim], step[dim], size[dim] = chosen.start, stride, len(chosen)
    if tuple(size) == shape:
        return x
    attrs = {"start": tuple(start), "step": tuple(step), "size": tuple(size)}
    return imp.add("slice", [x], attrs)


@from_torch("aten.pad.default", "aten.constant_pad_nd.default")
def _torch_pad(imp: Importer, call: Call) -> str:
    x, pads = imp.tensor(call.args[0]), list(call.args[1])
    mode, value = call.arg(2, "constant"), call.arg(3, 0)
    if call.target == "aten.constant_pad_nd.default":
        mode, value = "constant", call.arg(2, 0)
    if mode != "constant" or value:
        raise imp.unsupported("padding with anything but zeros")
    rank = len(imp.shape(x))
    before, after = [0] * rank, [0] * rank
    for index in range(len(pads) // 2):
        before[rank - 1 - index], after[rank - 1 - index] = pads[2 * index : 2 * index + 2]
    return _pad(imp, x, before, after)


@from_torch("aten.slice.Tensor")
def _torch_slice(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    dim = call.arg(1, 0) % len(imp.shape(x))
    end = call.arg(3, imp.shape(x)[dim])
    return _slice(imp, x, [(dim, call.arg(2, 0), end, call.arg(4, 1))])


@from_torch("aten.select.int")
def _torch_select(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    shape = imp.shape(x)
    dim = call.args[1] % len(shape)
    index = call.args[2] % shape[dim]
    y = _slice(imp, x, [(dim, index, index + 1, 1)])
    return imp.add("reshape", [y], {"shape": (*shape[:dim], *shape[dim + 1 :])})


@from_onnx("Pad")
def _onnx_pad(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    pads = [int(n) for n in imp.static(call.args[1])]
    value: Any = 0 if call.arg(2) is None else imp.static(call.args[2])
    if call.attrs.get("mode", "constant") != "constant" or np.any(value):
        raise imp.unsupported("padding with anything but zeros")
    rank = len(imp.shape(x))
    dims = range(rank) if call.arg(3) is None else [int(d) % rank for d in imp.static(call.args[3])]
    before, after = [0] * rank, [0] * rank
    for index, dim in enumerate(dims):
        before[dim], after[dim] = pads[index], pads[index + len(pads) // 2]
    return _pad(imp, x, before, after)


@from_onnx("Slice")
def _onnx_slice(imp: Importer, call: Call) -> str:
    x = imp.param(call.args[0])
    rank = len(imp.shape(x))
    starts, ends = ([int(n) for n in imp.static(call.args[i])] for i in (1, 2))
    dims = range(len(starts)) if call.arg(3) is None else [int(d) for d in imp.static(call.args[3])]
    steps = [1] * len(starts) if call.arg(4) is None else [int(n) for n in imp.static(call.args[4])]
    cuts = [(d % rank, a, b, s) for d, a, b, s in zip(dims, starts, ends, steps, strict=True)]
    return _slice(imp, x, cuts)
