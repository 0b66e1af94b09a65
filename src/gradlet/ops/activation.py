"""Activations. The gradient reads the output, so that the input's memory can be taken over."""

from __future__ import annotations

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Emitter, Gradients, Lowering, Names, Op, ShapeError, register
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.lib.pointwise import same_index_axes


@register
class Relu(Op):
    name = "relu"
    inputs = ("x",)
    exact = True
    overwrites = ("x",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.maximum(ins[0], 0),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add("relu_grad", [grads[0], site.node.outputs[0]])}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("x", "y"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("unary", "relu", {"count": site.outs[0].elements})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"F.relu({ins[0]})"


@register
class ReluGrad(Op):
    name = "relu_grad"
    inputs = ("dy", "y")
    outputs = ("dx",)
    exact = True
    overwrites = ("dy",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[0] != ins[1]:
            raise ShapeError("gradient and output differ in shape")
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.where(ins[1] > 0, ins[0], 0),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("dy", "y", "dx"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("unary", "relu_grad", {"count": site.outs[0].elements})


@from_torch("aten.relu.default", "aten.relu_.default")
@from_onnx("Relu")
def _relu(imp: Importer, call: Call) -> str:
    return imp.add("relu", [imp.tensor(call.args[0])])


@from_toml("relu")
def _toml_relu(imp: Importer, call: Call) -> str:
    return imp.add("relu", call.args)
