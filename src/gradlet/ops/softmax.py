"""Softmax and its logarithm over one dimension; the gradients read the output."""

from __future__ import annotations

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Arrays, Axis, Lowering, Op, ShapeError, Work, integer, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.lib.pointwise import same_index_axes, split_at


class _Softmax(Op):
    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if not 0 <= integer(attrs, "axis") < len(ins[0]):
            raise ShapeError(f"there is no dimension {attrs['axis']}")
        if any(shape != ins[0] for shape in ins):
            raise ShapeError("gradient and output differ in shape")
        return super().shape(attrs, *ins)

    def roundings(self, site: Site, out: Tensor) -> float:
        return 8 + out.shape[integer(site.attrs, "axis")]

    def work(self, site: Site) -> Work:
        return Work(site.outs[0].elements, site.moved_bytes, 2 * site.outs[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        slots = (*self.inputs, *self.outputs)
        return same_index_axes(site.outs[0].shape, slots, (integer(site.attrs, "axis"),))

    def lower(self, site: Site) -> Lowering:
        shape, axis = site.outs[0].shape, integer(site.attrs, "axis")
        return Lowering("softmax", self.name, split_at(shape, axis, count=shape[axis]))


class _Forward(_Softmax):
    inputs = ("x",)
    overwrites = ("x",)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add(f"{self.name}_grad", [grads[0], site.node.outputs[0]], site.attrs)}


class _Gradient(_Softmax):
    inputs = ("dy", "y")
    outputs = ("dx",)
    overwrites = ("dy",)


@register
class Softmax(_Forward):
    name = "softmax"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        axis = integer(attrs, "axis")
        shifted = np.exp(ins[0] - ins[0].max(axis=axis, keepdims=True))
        return (shifted / shifted.sum(axis=axis, keepdims=True),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """What the difference to the largest loses becomes a relative error."""
        top = ins[0].max(axis=integer(attrs, "axis"), keepdims=True)
        return (results[0] * (1 + np.abs(ins[0] - top)),)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"F.softmax({ins[0]}, {attrs['axis']})"


@register
class SoftmaxGrad(_Gradient):
    name = "softmax_grad"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, y = ins
        return (y * (dy - (dy * y).sum(axis=integer(attrs, "axis"), keepdims=True)),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        dy, y = np.abs(ins[0]), ins[1]
        return (y * (dy + (dy * y).sum(axis=integer(attrs, "axis"), keepdims=True)),)


@register
class LogSoftmax(_Forward):
    name = "log_softmax"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        axis = integer(attrs, "axis")
        shifted = ins[0] - ins[0].max(axis=axis, keepdims=True)
        return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """The logarithm of the sum is at least 0 and has the error of a sum near 1."""
        return (np.abs(results[0]) + 1,)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"F.log_softmax({ins[0]}, {attrs['axis']})"


@register
class LogSoftmaxGrad(_Gradient):
    name = "log_softmax_grad"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, y = ins
        return (dy - np.exp(y) * dy.sum(axis=integer(attrs, "axis"), keepdims=True),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        dy, y = np.abs(ins[0]), ins[1]
        return (dy + np.exp(y) * dy.sum(axis=integer(attrs, "axis"), keepdims=True),)


@from_torch("aten.softmax.int", "aten._softmax.default")
@from_torch("aten.log_softmax.int", "aten._log_softmax.default")
def _torch_softmax(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    op = "log_softmax" if "log_softmax" in call.target else "softmax"
    return imp.add(op, [x], {"axis": int(call.args[1]) % len(imp.shape(x))})


@from_onnx("Softmax", "LogSoftmax")
def _onnx_softmax(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    op = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[call.target]
    return imp.add(op, [x], {"axis": int(call.attrs.get("axis", -1)) % len(imp.shape(x))})


@from_toml("softmax", "log_softmax")
def _toml_softmax(imp: Importer, call: Call) -> str:
    rank = len(imp.shape(call.args[0]))
    return imp.add(call.target, call.args, {"axis": int(call.attrs.get("axis", -1)) % rank})
