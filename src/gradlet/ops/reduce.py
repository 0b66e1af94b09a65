"""Sums over any set of dimensions, their adjoint (repetition), and means of planes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Span, Work, ints, register
from gradlet.ops.elementwise import affine, reduce_to
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.importers.pool import global_average
from gradlet.ops.lib.pointwise import (
    broadcast,
    broadcast_axes,
    broadcast_strides,
    merge,
    padded,
    row_major,
    strided_copy,
)
from gradlet.ops.lib.tiling import Region, tile_shape


def reduced_shape(attrs: Attrs, shape: Shape) -> Shape:
    axes = ints(attrs, "axes")
    if any(axis < 0 or axis >= len(shape) for axis in axes):
        raise ShapeError(f"axes {axes} are outside the shape")
    return tuple(n for dim, n in enumerate(shape) if dim not in axes)


def reduction_sizes(shape: Shape, attrs: Attrs) -> dict[str, tuple[int, ...]]:
    """Extents and steps of what is kept and of what is reduced, for the kernels."""
    reduced, steps = ints(attrs, "axes"), row_major(shape)
    sizes: dict[str, tuple[int, ...]] = {}
    for part, dims in (
        ("keep", [d for d in range(len(shape)) if d not in reduced]),
        ("sum", [d for d in range(len(shape)) if d in reduced]),
    ):
        extents, (strides,) = merge(tuple(shape[d] for d in dims), [tuple(steps[d] for d in dims)])
        sizes[f"{part}_extent"] = padded(extents, 1)
        sizes[f"{part}_step"] = padded(strides, 0)
    return sizes


def free_axes(attrs: Attrs, full: Shape, large: Sequence[str], small: str) -> tuple[Axis, ...]:
    """The dimensions that stay, which are fewer of the small operand."""
    reduced = ints(attrs, "axes")
    axes: list[Axis] = []
    for dim, extent in enumerate(full):
        if dim not in reduced:
            spans = (*(Span(name, dim) for name in large), Span(small, len(axes)))
            axes.append(Axis(f"dim{dim}", extent, spans))
    return tuple(axes)


@register
class Sum(Op):
    name = "sum"
    counts = True
    inputs = ("x",)
    linear = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (reduced_shape(attrs, ins[0]),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.asarray(ins[0].sum(axis=ints(attrs, "axes"))),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        full, axes = site.ins[0].shape, ints(site.attrs, "axes")
        kept = tuple(1 if dim in axes else n for dim, n in enumerate(full))
        column = emit.add("reshape", [grads[0]], {"shape": kept})
        return {"x": emit.add("expand", [column], {"shape": full})}

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        added = ints(site.attrs, "axes")
        free = iter(free_axes(site.attrs, site.ins[0].shape, ("x",), "y"))
        return tuple(
            Axis(f"dim{dim}", n, (Span("x", dim),), reduction=True) if dim in added else next(free)
            for dim, n in enumerate(site.ins[0].shape)
        )

    def lower(self, site: Site) -> Lowering:
        return Lowering("reduce", "sum", reduction_sizes(site.ins[0].shape, site.attrs))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.sum({ints(attrs, 'axes')})"


@register
class Expand(Op):
    name = "expand"
    inputs = ("x",)
    linear = True
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        shape = ints(attrs, "shape")
        if broadcast(ins[0], shape) != shape:
            raise ShapeError(f"{ins[0]} cannot be repeated to {shape}")
        return (shape,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.broadcast_to(ins[0], ints(attrs, "shape")),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": reduce_to(emit, grads[0], site.ins[0].shape)}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return broadcast_axes(site.outs[0].shape, {"x": site.ins[0].shape})

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        return {"shape": tile_shape(parts["y"])}

    def lower(self, site: Site) -> Lowering:
        shape = site.outs[0].shape
        return strided_copy(shape, broadcast_strides(site.ins[0].shape, shape))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.expand({ints(attrs, 'shape')})"


def keepdims(imp: Importer, y: str, full: Shape, axes: Sequence[int]) -> str:
    """Put the reduced dimensions back as ones."""
    kept = tuple(1 if dim in axes else n for dim, n in enumerate(full))
    return imp.add("reshape", [y], {"shape": kept})


def chosen_axes(imp: Importer, x: str, axes: Sequence[int] | None) -> list[int]:
    rank = len(imp.shape(x))
    return sorted({axis % rank for axis in axes}) if axes else list(range(rank))


def summed(imp: Importer, x: str, axes: Sequence[int] | None, keepdim: bool) -> str:
    chosen = chosen_axes(imp, x, axes)
    y = imp.add("sum", [x], {"axes": tuple(chosen)}) if chosen else x
    return keepdims(imp, y, imp.shape(x), chosen) if keepdim else y


def _mean(imp: Importer, x: str, axes: Sequence[int] | None, keepdim: bool) -> str:
    chosen, rank = chosen_axes(imp, x, axes), len(imp.shape(x))
    if chosen == [rank - 2, rank - 1] and rank in (3, 4):
        y = global_average(imp, x)
        return y if keepdim else imp.add("reshape", [y], {"shape": imp.shape(y)[:-2]})
    return affine(imp, summed(imp, x, axes, keepdim), 1 / _count(imp, x, chosen))


def _count(imp: Importer, x: str, axes: Sequence[int]) -> int:
    return int(np.prod([imp.shape(x)[axis] for axis in axes], dtype=int))


def _variance(
    imp: Importer, x: str, axes: Sequence[int] | None, keepdim: bool, correction: float
) -> str:
    count = _count(imp, x, chosen_axes(imp, x, axes))
    if count - correction <= 0:
        raise imp.unsupported(f"a variance of {count} elements with a correction of {correction}")
    away = imp.add("sub", [x, _mean(imp, x, axes, True)])
    total = summed(imp, imp.add("mul", [away, away]), axes, keepdim)
    return affine(imp, total, 1 / (count - correction))


@from_torch("aten.mean.dim", "aten.mean.default")
def _torch_mean(imp: Importer, call: Call) -> str:
    whole = call.target == "aten.mean.default"
    axes, keepdim = (None, False) if whole else (call.args[1], bool(call.args[2]))
    return _mean(imp, imp.tensor(call.args[0]), axes, keepdim)


@from_torch("aten.var.correction", "aten.std.correction", "aten.var.dim", "aten.std.dim")
def _torch_var(imp: Importer, call: Call) -> str:
    """The third argument is a number, or says whether the divisor is one less."""
    x, axes, correction, keepdim = call.args[:4]
    divisor = 1.0 if correction is None else float(correction)
    y = _variance(imp, imp.tensor(x), axes, bool(keepdim), divisor)
    return y if "var" in call.target else imp.add("root", [y])


@from_torch("aten.var_mean.correction", "aten.var_mean.dim", "aten.var_mean.default")
@from_torch("aten.std_mean.correction", "aten.std_mean.dim", "aten.std_mean.default")
def _torch_var_mean(imp: Importer, call: Call) -> Sequence[str]:
    x, axes, correction, keepdim = (*call.args, None, False)[:4]
    if "default" in call.target:
        x, correction, axes, keepdim = (*call.args[:2], None, False)
    divisor = 1.0 if correction is None else float(correction)
    y = _variance(imp, imp.tensor(x), axes, bool(keepdim), divisor)
    mean = _mean(imp, imp.tensor(x), axes, bool(keepdim))
    return [y if "var" in call.target else imp.add("root", [y]), mean]


@from_torch("aten.sum.dim_IntList", "aten.sum.default")
def _torch_sum(imp: Importer, call: Call) -> str:
    axes = call.arg(1) if call.target == "aten.sum.dim_IntList" else None
    keepdim = axes is not None and bool(call.arg(2, False))
    return summed(imp, imp.tensor(call.args[0]), axes, keepdim)


@from_torch("aten.expand.default")
def _torch_expand(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    own = imp.shape(x)
    lead = len(call.args[1]) - len(own)
    shape = [own[d - lead] if n == -1 else int(n) for d, n in enumerate(call.args[1])]
    return x if tuple(shape) == own else imp.add("expand", [x], {"shape": tuple(shape)})


def onnx_axes(imp: Importer, call: Call) -> list[int] | None:
    """What to reduce: None for everything, an empty list for nothing."""
    axes: Any = call.attrs.get("axes")  # an operand since opset 13 or 18
    if axes is None and call.arg(1) is not None:
        axes = imp.static(call.args[1])
    chosen = [] if axes is None else [int(axis) for axis in axes]
    return chosen if chosen or call.attrs.get("noop_with_empty_axes", 0) else None


@from_onnx("ReduceMean", "ReduceSum")
def _onnx_reduce(imp: Importer, call: Call) -> str:
    axes = onnx_axes(imp, call)
    x, keepdim = imp.tensor(call.args[0]), bool(call.attrs.get("keepdims", 1))
    if axes == []:
        return x
    if call.target == "ReduceSum":
        return summed(imp, x, axes, keepdim)
    return _mean(imp, x, axes, keepdim)


@from_onnx("Expand")
def _onnx_expand(imp: Importer, call: Call) -> str:
    x = imp.param(call.args[0])
    shape = broadcast(imp.shape(x), tuple(int(n) for n in imp.static(call.args[1])))
    return x if shape == imp.shape(x) else imp.add("expand", [x], {"shape": shape})
