"""The largest element over any set of dimensions. Ties: all share the gradient, or the first wins.

PyTorch has both: `amax` shares, `max` over a dimension gives all to the first. Minima are maxima
of the negated tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ints, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.reduce import free_axes, keepdims, onnx_axes, reduced_shape, reduction_sizes


def _kept(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(1 if dim in axes else n for dim, n in enumerate(shape))


@register
class Max(Op):
    name = "max"
    inputs = ("x",)
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (reduced_shape(attrs, ins[0]),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.asarray(ins[0].max(axis=ints(attrs, "axes"))),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add("max_grad", [grads[0], site.node.inputs[0]], site.attrs)}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return free_axes(site.attrs, site.ins[0].shape, ("x",), "y")

    def lower(self, site: Site) -> Lowering:
        return Lowering(
            "extreme", "max", {**reduction_sizes(site.ins[0].shape, site.attrs), "first": 0}
        )

    def torch(self, attrs: Attrs, *ins: str) -> str:
        axes = ints(attrs, "axes")
        if not attrs["first"]:
            return f"{ins[0]}.amax({axes})"
        return f"{ins[0]}.max({axes[0]})[0]"


@register
class MaxGrad(Op):
    name = "max_grad"
    inputs = ("dy", "x")
    outputs = ("dx",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[1],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, x = ins
        axes = ints(attrs, "axes")
        winners = (x == x.max(axis=axes, keepdims=True)).astype(x.dtype)
        if attrs["first"]:
            winners *= np.cumsum(winners, axis=axes[0]) == 1
        share = winners / winners.sum(axis=axes, keepdims=True)
        return (share * dy.reshape(_kept(x.shape, axes)),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return free_axes(site.attrs, site.ins[1].shape, ("x", "dx"), "dy")

    def lower(self, site: Site) -> Lowering:
        sizes = reduction_sizes(site.ins[1].shape, site.attrs)
        return Lowering("extreme", "max_grad", {**sizes, "first": int(bool(site.attrs["first"]))})


def largest(
    imp: Importer, x: str, axes: Sequence[int], keepdim: bool, *, first: bool, least: bool
) -> str:
    rank = len(imp.shape(x))
    chosen = tuple(sorted(axis % rank for axis in axes)) or tuple(range(rank))
    source = imp.add("neg", [x]) if least else x
    y = imp.add("max", [source], {"axes": chosen, "first": first})
    y = imp.add("neg", [y]) if least else y
    return keepdims(imp, y, imp.shape(x), chosen) if keepdim else y


@from_torch("aten.amax.default", "aten.amin.default")
def _torch_amax(imp: Importer, call: Call) -> str:
    x, least = imp.tensor(call.args[0]), "amin" in call.target
    return largest(imp, x, call.arg(1, ()), bool(call.arg(2, False)), first=False, least=least)


@from_torch("aten.max.default", "aten.min.default")
def _torch_max(imp: Importer, call: Call) -> str:
    x, least = imp.tensor(call.args[0]), "min" in call.target
    return largest(imp, x, (), False, first=False, least=least)


@from_onnx("ReduceMax", "ReduceMin")
def _onnx_reduce_max(imp: Importer, call: Call) -> str:
    axes = onnx_axes(imp, call)
    x, keepdim = imp.tensor(call.args[0]), bool(call.attrs.get("keepdims", 1))
    if axes == []:
        return x
    least = call.target == "ReduceMin"
    return largest(imp, x, axes or (), keepdim, first=False, least=least)
