"""Element-wise arithmetic of two operands with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import (
    Axis,
    Call,
    Emitter,
    Importer,
    Lowering,
    Op,
    from_onnx,
    from_toml,
    from_torch,
    register,
)
from gradlet.ops.pointwise import broadcast, broadcast_axes, broadcast_strides, merge, padded


@register
class Add(Op):
    name = "add"
    inputs = ("a", "b")
    linear = True
    overwrites = ("a", "b")

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (broadcast(*ins),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0] + ins[1],)

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        shapes = {"a": site.ins[0].shape, "b": site.ins[1].shape}
        return {name: reduce_to(emit, grads[0], shapes[name]) for name in wanted}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        shapes = {"a": site.ins[0].shape, "b": site.ins[1].shape}
        return broadcast_axes(site.outs[0].shape, shapes)

    def lower(self, site: Site) -> Lowering:
        result = site.outs[0].shape
        strides = [broadcast_strides(tensor.shape, result) for tensor in site.ins]
        extents, (a, b) = merge(result, strides)
        sizes = {"extent": padded(extents, 1), "a_step": padded(a, 0), "b_step": padded(b, 0)}
        return Lowering("binary", "add", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]} + {ins[1]}"


def reduce_to(emit: Emitter, grad: str, shape: Shape) -> str:
    """Sum a gradient over the dimensions along which its operand was repeated."""
    full = emit.shape(grad)
    if full == shape:
        return grad
    lead = len(full) - len(shape)
    own = (1,) * lead + shape
    axes = tuple(
        dim for dim, extent in enumerate(full) if dim < lead or (own[dim] == 1 and extent != 1)
    )
    summed = emit.add("sum", [grad], {"axes": axes}) if axes else grad
    return (
        summed if emit.shape(summed) == shape else emit.add("reshape", [summed], {"shape": shape})
    )


@from_torch("aten.add.Tensor", "aten.add_.Tensor")
def _torch_add(imp: Importer, call: Call) -> str:
    if call.arg(2, 1) != 1:
        raise imp.unsupported("add with alpha other than 1")
    return imp.add("add", [_operand(imp, value) for value in call.args[:2]])


@from_onnx("Add")
def _onnx_add(imp: Importer, call: Call) -> str:
    return imp.add("add", [imp.param(value) for value in call.args])


@from_toml("add")
def _toml_add(imp: Importer, call: Call) -> str:
    return imp.add("add", call.args)


def _operand(imp: Importer, value: object) -> str:
    if isinstance(value, int | float):
        return imp.constant(np.asarray(value, dtype=np.float32))
    return imp.tensor(value)
