"""Activations. The gradient reads the output, so that the input's memory can be taken over."""

from __future__ import annotations

import numpy as np

from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.lib.pointwise import Pointwise


@register
class Relu(Pointwise):
    name = "relu"
    inputs = ("x",)
    exact = True
    overwrites = ("x",)
    kernel = ("unary", "relu")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.maximum(ins[0], 0),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add("relu_grad", [grads[0], site.node.outputs[0]])}

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"F.relu({ins[0]})"


@register
class ReluGrad(Pointwise):
    name = "relu_grad"
    inputs = ("dy", "y")
    outputs = ("dx",)
    exact = True
    overwrites = ("dy",)
    kernel = ("unary", "relu_grad")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.where(ins[1] > 0, ins[0], 0),)


@from_torch("aten.relu.default", "aten.relu_.default")
@from_onnx("Relu")
def _relu(imp: Importer, call: Call) -> str:
    return imp.add("relu", [imp.tensor(call.args[0])])


@from_toml("relu")
def _toml_relu(imp: Importer, call: Call) -> str:
    return imp.add("relu", call.args)
