"""Sums over any set of dimensions, and the mean of planes that front ends spell as a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import (
    Axis,
    Call,
    Importer,
    Lowering,
    Op,
    ShapeError,
    Span,
    Work,
    from_onnx,
    from_torch,
    ints,
    register,
)
from gradlet.ops.pointwise import merge, padded, row_major
from gradlet.ops.pool import global_average


@register
class Sum(Op):
    name = "sum"
    inputs = ("x",)
    linear = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        axes = ints(attrs, "axes")
        if any(axis < 0 or axis >= len(ins[0]) for axis in axes):
            raise ShapeError(f"axes {axes} are outside the shape")
        return (tuple(n for dim, n in enumerate(ins[0]) if dim not in axes),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.asarray(ins[0].sum(axis=ints(attrs, "axes"))),)

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        reduced = ints(site.attrs, "axes")
        axes, kept = [], 0
        for dim, extent in enumerate(site.ins[0].shape):
            if dim in reduced:
                axes.append(Axis(f"dim{dim}", extent, (Span("x", dim),), reduction=True))
            else:
                axes.append(Axis(f"dim{dim}", extent, (Span("x", dim), Span("y", kept))))
                kept += 1
        return tuple(axes)

    def lower(self, site: Site) -> Lowering:
        shape, reduced = site.ins[0].shape, ints(site.attrs, "axes")
        steps = row_major(shape)
        sizes: dict[str, tuple[int, ...]] = {}
        for part, dims in (
            ("keep", [d for d in range(len(shape)) if d not in reduced]),
            ("sum", [d for d in range(len(shape)) if d in reduced]),
        ):
            extents, (strides,) = merge(
                tuple(shape[d] for d in dims), [tuple(steps[d] for d in dims)]
            )
            sizes[f"{part}_extent"] = padded(extents, 1)
            sizes[f"{part}_step"] = padded(strides, 0)
        return Lowering("reduce", "sum", sizes)


def _mean(imp: Importer, x: str, axes: Sequence[int], keepdim: bool) -> str:
    rank = len(imp.shape(x))
    if sorted(axis % rank for axis in axes) != [rank - 2, rank - 1] or rank not in (3, 4):
        raise imp.unsupported("a mean over other dimensions than the last two of a feature map")
    y = global_average(imp, x)
    return y if keepdim else imp.add("reshape", [y], {"shape": imp.shape(y)[:-2]})


@from_torch("aten.mean.dim")
def _torch_mean(imp: Importer, call: Call) -> str:
    x, axes, keepdim = call.args[:3]
    return _mean(imp, imp.tensor(x), axes, bool(keepdim))


@from_onnx("ReduceMean")
def _onnx_mean(imp: Importer, call: Call) -> str:
    axes: Any = call.attrs.get("axes")  # an operand since opset 18
    if axes is None and call.arg(1) is not None:
        axes = [int(axis) for axis in imp.static(call.args[1])]
    if axes is None:
        raise imp.unsupported("a mean over all dimensions")
    return _mean(imp, imp.tensor(call.args[0]), axes, bool(call.attrs.get("keepdims", 1)))
