"""Normalisation: each group of elements to mean 0 and variance 1, then weight and bias.

Batch, layer, group, instance and RMS norm are one op: `axes` are the dimensions that make up a
group, and weight and bias are broadcast. The gradients compute the statistics again from the
input, which is the only large tensor that has to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import (
    Arrays,
    Axis,
    Lowering,
    Op,
    ShapeError,
    Span,
    Work,
    ints,
    number,
    register,
)
from gradlet.ops.elementwise import reduce_to
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.pointwise import broadcast, broadcast_strides, merge, padded, row_major
from gradlet.ops.reduce import free_axes, reduced_shape, reduction_sizes


def _statistics(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    """Mean (0 if not centred) and 1 / deviation of each group, with the reduced dimensions."""
    axes = ints(attrs, "axes")
    mean = x.mean(axis=axes, keepdims=True) if attrs["center"] else np.zeros(1)
    square = np.square(x - mean).mean(axis=axes, keepdims=True)
    return mean, 1 / np.sqrt(square + number(attrs, "eps"))


def _group(attrs: Attrs, x: Tensor) -> int:
    return int(np.prod([x.shape[axis] for axis in ints(attrs, "axes")], dtype=int))


def _sizes(site: Site, x: Shape, weight: Shape) -> dict[str, int | float | tuple[int, ...]]:
    """Extents of the groups and inside them, with the steps of x and of weight and bias."""
    reduced = ints(site.attrs, "axes")
    steps = (row_major(x), broadcast_strides(weight, x))
    sizes: dict[str, int | float | tuple[int, ...]] = {}
    for part, inside in (("keep", False), ("sum", True)):
        dims = [d for d in range(len(x)) if (d in reduced) == inside]
        extents, strides = merge(
            tuple(x[d] for d in dims), [tuple(step[d] for d in dims) for step in steps]
        )
        sizes[f"{part}_extent"] = padded(extents, 1)
        sizes[f"{part}_step"] = padded(strides[0], 0)
        sizes[f"{part}_w"] = padded(strides[1], 0)
    eps = number(site.attrs, "eps")
    return {**sizes, "center": int(bool(site.attrs["center"])), "eps": eps}


def _free_axes(
    site: Site, x: Shape, names: Sequence[str], affine: Sequence[str], weight: Shape
) -> tuple[Axis, ...]:
    """Dimensions outside the groups; weight and bias only have a part of theirs."""
    axes, lead = [], len(x) - len(weight)
    for dim, extent in enumerate(x):
        if dim in ints(site.attrs, "axes"):
            continue
        spans = [Span(name, dim) for name in names]
        if dim >= lead and weight[dim - lead] == extent:
            spans += [Span(name, dim - lead) for name in affine]
        axes.append(Axis(f"dim{dim}", extent, tuple(spans)))
    return tuple(axes)


class _Normalize(Op):
    def roundings(self, site: Site, out: Tensor) -> float:
        return 8 + _group(site.attrs, out)

    def work(self, site: Site) -> Work:
        return Work(3 * site.outs[0].elements, site.moved_bytes, 3 * site.outs[0].elements)


@register
class Normalize(_Normalize):
    name = "normalize"
    inputs = ("x", "w?", "b?")

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        reduced_shape(attrs, ins[0])
        if broadcast(*ins) != ins[0] or len(set(ins[1:])) > 1:
            raise ShapeError("weight and bias do not fit the tensor or each other")
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        mean, rstd = _statistics(attrs, ins[0])
        y = (ins[0] - mean) * rstd
        y = y * ins[1] if len(ins) > 1 else y
        return (y + ins[2] if len(ins) > 2 else y,)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        mean, rstd = _statistics(attrs, ins[0])
        size = (np.abs(ins[0]) + np.abs(mean)) * rstd
        size = size * np.abs(ins[1]) if len(ins) > 1 else size
        return (size + np.abs(ins[2]) if len(ins) > 2 else size,)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        (grad,), result = grads, {}
        x, *affine = site.node.inputs
        if "w" in wanted:
            plain = emit.add("normalize", [x], site.attrs)
            product = emit.add("mul", [plain, grad])
            result["w"] = reduce_to(emit, product, site.ins[1].shape)
        if "b" in wanted:
            result["b"] = reduce_to(emit, grad, site.ins[2].shape)
        if "x" in wanted:
            result["x"] = emit.add("normalize_grad", [grad, x, *affine[:1]], site.attrs)
        return result

    def axes(self, site: Site) -> tuple[Axis, ...]:
        weight = site.ins[1].shape if len(site.ins) > 1 else ()
        return _free_axes(
            site, site.ins[0].shape, ("x", "y"), ("w", "b")[: len(site.ins) - 1], weight
        )

    def lower(self, site: Site) -> Lowering:
        weight = site.ins[1].shape if len(site.ins) > 1 else ()
        return Lowering("normalize", "forward", _sizes(site, site.ins[0].shape, weight))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        axes, x = ints(attrs, "axes"), ins[0]
        away = f"({x} - {x}.mean({axes}, True))" if attrs["center"] else x
        text = f"{away} * ({away}.square().mean({axes}, True) + {attrs['eps']}).rsqrt()"
        text = f"{text} * {ins[1]}" if len(ins) > 1 else text
        return f"{text} + {ins[2]}" if len(ins) > 2 else text


@register
class NormalizeGrad(_Normalize):
    name = "normalize_grad"
    inputs = ("dy", "x", "w?")
    outputs = ("dx",)
    overwrites = ("dy",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[0] != ins[1]:
            raise ShapeError("gradient and input differ in shape")
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        axes = ints(attrs, "axes")
        mean, rstd = _statistics(attrs, ins[1])
        unit = (ins[1] - mean) * rstd
        g = ins[0] * ins[2] if len(ins) > 2 else ins[0]
        along = unit * (g * unit).mean(axis=axes, keepdims=True)
        common = g.mean(axis=axes, keepdims=True) if attrs["center"] else 0.0
        return (rstd * (g - common - along),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        axes = ints(attrs, "axes")
        mean, rstd = _statistics(attrs, ins[1])
        unit = (np.abs(ins[1]) + np.abs(mean)) * rstd
        g = np.abs(ins[0] * ins[2] if len(ins) > 2 else ins[0])
        along = unit * (g * unit).mean(axis=axes, keepdims=True)
        return (rstd * (g + g.mean(axis=axes, keepdims=True) + along),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        weight = site.ins[2].shape if len(site.ins) > 2 else ()
        return _free_axes(site, site.ins[1].shape, ("dy", "x", "dx"), ("w",), weight)

    def lower(self, site: Site) -> Lowering:
        weight = site.ins[2].shape if len(site.ins) > 2 else ()
        return Lowering("normalize", "input_grad", _sizes(site, site.ins[1].shape, weight))


@register
class Variance(Op):
    """Mean square distance from the mean of each group; only running statistics ask for it."""

    name = "variance"
    inputs = ("x",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (reduced_shape(attrs, ins[0]),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.asarray(ins[0].var(axis=ints(attrs, "axes"))),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        return (np.asarray(np.square(ins[0]).mean(axis=ints(attrs, "axes"))),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        """2 / n * (x - mean) * dy, by the ops that there are."""
        shape, axes = site.ins[0].shape, ints(site.attrs, "axes")
        kept = {"shape": tuple(1 if dim in axes else n for dim, n in enumerate(shape))}
        count = _group(site.attrs, site.ins[0])
        total = emit.add("reshape", [emit.add("sum", site.node.inputs, {"axes": axes})], kept)
        mean = emit.add("affine", [total], {"slope": 1 / count, "offset": 0.0})
        column = emit.add("reshape", [grads[0]], kept)
        scaled = emit.add("affine", [column], {"slope": 2 / count, "offset": 0.0})
        away = emit.add("sub", [site.node.inputs[0], mean])
        return {"x": emit.add("mul", [away, scaled])}

    def work(self, site: Site) -> Work:
        return Work(site.ins[0].elements, site.moved_bytes, 2 * site.ins[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return free_axes(site.attrs, site.ins[0].shape, ("x",), "y")

    def lower(self, site: Site) -> Lowering:
        return Lowering("reduce", "variance", reduction_sizes(site.ins[0].shape, site.attrs))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.var({ints(attrs, 'axes')}, correction=0)"
