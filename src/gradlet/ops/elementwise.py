"""Element-wise arithmetic of two operands with broadcasting."""

from __future__ import annotations

from functools import reduce
from typing import Any, ClassVar

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Arrays, Lowering, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.lib.pointwise import Broadcast


class Binary(Broadcast):
    inputs = ("a", "b")
    overwrites = ("a", "b")
    compute: ClassVar[Any]  # numpy's function of two arrays
    spelling: ClassVar[str]

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (type(self).compute(*ins),)

    def lower(self, site: Site) -> Lowering:
        return Lowering("binary", self.name, self.walked(site))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return self.spelling.format(*ins)

    def partial(self, emit: Emitter, site: Site, grad: str, slot: str) -> str:
        """The gradient of one operand, as large as the result."""
        raise GradletError(f"{self.name} cannot be differentiated")

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        shapes = {"a": site.ins[0].shape, "b": site.ins[1].shape}
        return {
            slot: reduce_to(emit, self.partial(emit, site, grads[0], slot), shapes[slot])
            for slot in wanted
        }


@register
class Add(Binary):
    name = "add"
    counts = True
    linear = True
    compute = np.add
    spelling = "{} + {}"

    def partial(self, emit: Emitter, site: Site, grad: str, slot: str) -> str:
        return grad


@register
class Sub(Binary):
    name = "sub"
    counts = True
    compute = np.subtract
    spelling = "{} - {}"

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        return (np.abs(ins[0]) + np.abs(ins[1]),)

    def partial(self, emit: Emitter, site: Site, grad: str, slot: str) -> str:
        return grad if slot == "a" else emit.add("neg", [grad])


@register
class Mul(Binary):
    name = "mul"
    counts = True
    compute = np.multiply
    spelling = "{} * {}"

    def partial(self, emit: Emitter, site: Site, grad: str, slot: str) -> str:
        a, b = site.node.inputs
        return emit.add("mul", [grad, b if slot == "a" else a])


@register
class Div(Binary):
    name = "div"
    counts = True
    compute = np.divide
    spelling = "{} / {}"

    def partial(self, emit: Emitter, site: Site, grad: str, slot: str) -> str:
        b = site.node.inputs[1]
        share = emit.add("div", [grad, b])
        if slot == "a":
            return share
        return emit.add("neg", [emit.add("mul", [share, site.node.outputs[0]])])


@register
class Wins(Binary):
    """1 where a is larger, 0 where b is, half where they tie: whom a maximum's gradient goes to."""

    name = "wins"
    exact = True
    compute = staticmethod(lambda a, b: np.where(a == b, 0.5, np.where(a > b, 1.0, 0.0)))
    spelling = ""  # only gradients use it


class _Extreme(Binary):
    exact = True

    def partial(self, emit: Emitter, site: Site, grad: str, slot: str) -> str:
        a, b = site.node.inputs
        first = (slot == "a") == (self.name == "maximum")
        return emit.add("mul", [grad, emit.add("wins", [a, b] if first else [b, a])])


@register
class Maximum(_Extreme):
    name = "maximum"
    compute = np.maximum
    spelling = "torch.maximum({}, {})"


@register
class Minimum(_Extreme):
    name = "minimum"
    compute = np.minimum
    spelling = "torch.minimum({}, {})"


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


def affine(imp: Importer, x: str, slope: float, offset: float = 0.0) -> str:
    """slope * x + offset with numbers: no operand, and exact where the capture is checked."""
    if (slope, offset) == (1.0, 0.0):
        return x
    return imp.add("affine", [x], {"slope": float(slope), "offset": float(offset)})


def operand(imp: Importer, value: object) -> str:
    """A tensor, or a number as a constant."""
    if isinstance(value, int | float):
        return imp.constant(np.asarray(value, dtype=np.float32))
    return imp.tensor(value)


@from_torch("aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor", "aten.sub_.Tensor")
@from_torch("aten.add.Scalar", "aten.sub.Scalar", "aten.rsub.Scalar", "aten.rsub.Tensor")
def _torch_sum(imp: Importer, call: Call) -> str:
    name, alpha = call.target.split(".")[1].rstrip("_"), float(call.arg(2, 1))
    a, b = call.args[:2]
    if name == "add" and {imp.kind(a), imp.kind(b)} == {"bool"}:
        return imp.add("maximum", [operand(imp, a), operand(imp, b)])
    if isinstance(b, int | float):
        shift = alpha * float(b)
        if name == "rsub":
            return affine(imp, imp.tensor(a), -alpha, float(b))
        return affine(imp, imp.tensor(a), 1.0, shift if name == "add" else -shift)
    if name == "rsub":
        a, b, name = b, a, "sub"
    return imp.add(name, [operand(imp, a), affine(imp, imp.tensor(b), alpha)])


_TORCH_NAMES = {
    "aten.mul.Tensor": "mul",
    "aten.mul_.Tensor": "mul",
    "aten.mul.Scalar": "mul",
    "aten.div.Tensor": "div",
    "aten.div_.Tensor": "div",
    "aten.div.Scalar": "div",
    "aten.true_divide.Tensor": "div",
    "aten.multiply.Tensor": "mul",
    "aten.divide.Tensor": "div",
    "aten.maximum.default": "maximum",
    "aten.max.other": "maximum",
    "aten.minimum.default": "minimum",
    "aten.min.other": "minimum",
}


@from_torch(*_TORCH_NAMES)
def _torch_binary(imp: Importer, call: Call) -> str:
    op, (a, b) = _TORCH_NAMES[call.target], call.args[:2]
    if isinstance(b, int | float) and op in ("mul", "div"):
        if op == "div" and float(b).is_integer():
            return imp.add("div", [imp.tensor(a), imp.constant(np.asarray(b, np.float64))])
        return affine(imp, imp.tensor(a), float(b) if op == "mul" else 1 / float(b))
    return imp.add(op, [operand(imp, a), operand(imp, b)])


_ONNX_NAMES = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Max": "maximum",
    "Min": "minimum",
    "Sum": "add",
}


@from_onnx(*_ONNX_NAMES)
def _onnx_binary(imp: Importer, call: Call) -> str:
    """Max, Min and Sum take any number of operands; a quotient of integers has no fraction."""
    operands = [imp.param(value) for value in call.args]
    y = reduce(lambda a, b: imp.add(_ONNX_NAMES[call.target], [a, b]), operands)
    whole = call.target == "Div" and imp.kind(call.args[0]) == "int"
    return imp.add("trunc", [y]) if whole else y


@from_toml("add", "sub", "mul", "div", "maximum", "minimum")
def _toml_binary(imp: Importer, call: Call) -> str:
    return imp.add(call.target, call.args)
