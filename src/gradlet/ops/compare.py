"""Comparisons of numbers, and what is made of their results: and, or, not, any, all.

A mask is a tensor of ones and zeros in floating point, so that whatever moves numbers moves masks,
and a mask counts as a number wherever the model uses it as one. No gradient passes a comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ops.base import register
from gradlet.ops.elementwise import Binary, affine, operand
from gradlet.ops.extreme import largest
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.mask import BLOCKED

LARGEST = F32.largest


class _Comparison(Binary):
    exact = True
    stops = True


@register
class Greater(_Comparison):
    name = "gt"
    compute = staticmethod(lambda a, b: np.where(a > b, 1.0, 0.0))
    spelling = "({0} > {1}).to({0}.dtype)"


@register
class GreaterOrEqual(_Comparison):
    name = "ge"
    compute = staticmethod(lambda a, b: np.where(a >= b, 1.0, 0.0))
    spelling = "({0} >= {1}).to({0}.dtype)"


@register
class Equal(_Comparison):
    name = "eq"
    compute = staticmethod(lambda a, b: np.where(a == b, 1.0, 0.0))
    spelling = "({0} == {1}).to({0}.dtype)"


@register
class NotEqual(_Comparison):
    name = "ne"
    compute = staticmethod(lambda a, b: np.where(a != b, 1.0, 0.0))
    spelling = "({0} != {1}).to({0}.dtype)"


_TURNED = {"lt": "gt", "le": "ge"}  # a < b is b > a, also of what is no number


def compared(imp: Importer, name: str, a: str, b: str) -> str:
    """1 where the comparison holds, else 0."""
    return imp.add(_TURNED[name], [b, a]) if name in _TURNED else imp.add(name, [a, b])


def above(imp: Importer, a: str, number: float) -> str:
    return imp.add("gt", [a, operand(imp, number)])


def truth(imp: Importer, value: Any) -> str:
    """A mask: as it is, or of all that is not 0."""
    x = operand(imp, value)
    return x if imp.kind(value) == "bool" else imp.add("ne", [x, operand(imp, 0.0)])


def inverted(imp: Importer, mask: str) -> str:
    return affine(imp, mask, -1.0, 1.0)


_NAMES = {
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    **{name: name for name in ("gt", "ge", "lt", "le", "eq", "ne")},
}


@from_torch(*(f"aten.{name}.{kind}" for name in _NAMES for kind in ("Tensor", "Scalar")))
def _torch_comparison(imp: Importer, call: Call) -> str:
    name, (a, b) = _NAMES[call.target.split(".")[1]], call.args[:2]
    return _comparison(imp, name, a, b)


@from_onnx("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def _onnx_comparison(imp: Importer, call: Call) -> str:
    names = {"Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt"}
    return _comparison(imp, names.get(call.target, "le"), *call.args[:2])


def _comparison(imp: Importer, name: str, a: Any, b: Any) -> str:
    for value, other in ((b, a), (a, b)):
        known = imp.fixed(value)
        if known is not None and known.dtype.kind == "f" and np.isinf(known).any():
            return _with_infinity(imp, name, operand(imp, other), known)
    return compared(imp, name, operand(imp, a), operand(imp, b))


def _with_infinity(imp: Importer, name: str, x: str, known: Any) -> str:
    """Minus infinity is stored as a very low number; what is beyond float32 is infinity."""
    if name not in ("eq", "ne") or not (known == known.reshape(-1)[0]).all():
        raise imp.unsupported("a comparison with infinity, other than whether it is one")
    if known.reshape(-1)[0] > 0:
        mask = above(imp, x, LARGEST)
    else:
        mask = imp.add("ge", [operand(imp, BLOCKED), x])
    return mask if name == "eq" else inverted(imp, mask)


_BOTH = {"and": "mul", "or": "maximum", "xor": "ne"}


def _combined(imp: Importer, name: str, a: Any, b: Any) -> str:
    return imp.add(_BOTH[name], [truth(imp, a), truth(imp, b)])


@from_torch(*(f"aten.logical_{name}.default" for name in _BOTH))
@from_torch(*(f"aten.logical_{name}_.default" for name in _BOTH))
def _torch_logical(imp: Importer, call: Call) -> str:
    name = call.target.split(".")[1].removeprefix("logical_").rstrip("_")
    return _combined(imp, name, *call.args[:2])


@from_torch(*(f"aten.bitwise_{name}.{kind}" for name in _BOTH for kind in ("Tensor", "Scalar")))
@from_torch(*(f"aten.bitwise_{name}_.{kind}" for name in _BOTH for kind in ("Tensor", "Scalar")))
@from_torch(*(f"aten.__{name}__.{kind}" for name in _BOTH for kind in ("Tensor", "Scalar")))
@from_torch(*(f"aten.__i{name}__.{kind}" for name in _BOTH for kind in ("Tensor", "Scalar")))
def _torch_bitwise(imp: Importer, call: Call) -> str:
    name = call.target.split(".")[1].removeprefix("bitwise_").strip("_").removeprefix("i")
    if {imp.kind(value) for value in call.args[:2]} != {"bool"}:
        raise imp.unsupported("bits of whole numbers; it is there for booleans")
    return _combined(imp, name, *call.args[:2])


@from_torch("aten.logical_not.default", "aten.logical_not_.default")
@from_torch("aten.bitwise_not.default", "aten.bitwise_not_.default")
@from_onnx("Not")
def _not(imp: Importer, call: Call) -> str:
    if "bitwise" in call.target and imp.kind(call.args[0]) != "bool":
        raise imp.unsupported("bits of whole numbers; it is there for booleans")
    return inverted(imp, truth(imp, call.args[0]))


@from_onnx("And", "Or", "Xor")
def _onnx_logical(imp: Importer, call: Call) -> str:
    return _combined(imp, call.target.lower(), *call.args[:2])


@from_torch("aten.isnan.default")
@from_onnx("IsNaN")
def _is_nan(imp: Importer, call: Call) -> str:
    x = operand(imp, call.args[0])
    return imp.add("ne", [x, x])


def infinite(imp: Importer, x: str) -> str:
    return above(imp, imp.add("abs", [x]), LARGEST)


@from_torch("aten.isinf.default", "aten.isfinite.default")
@from_torch("aten.isposinf.default", "aten.isneginf.default")
def _torch_is_infinite(imp: Importer, call: Call) -> str:
    x = operand(imp, call.args[0])
    match call.target.split(".")[1]:
        case "isinf":
            return infinite(imp, x)
        case "isfinite":
            return imp.add("ge", [operand(imp, LARGEST), imp.add("abs", [x])])
        case "isposinf":
            return above(imp, x, LARGEST)
    return above(imp, imp.add("neg", [x]), LARGEST)


@from_onnx("IsInf")
def _onnx_is_infinite(imp: Importer, call: Call) -> str:
    x = operand(imp, call.args[0])
    negative, positive = (
        bool(call.attrs.get(f"detect_{sign}", 1)) for sign in ("negative", "positive")
    )
    if positive and negative:
        return infinite(imp, x)
    if not positive and not negative:
        return affine(imp, imp.add("ne", [x, x]), 0.0)
    return above(imp, x if positive else imp.add("neg", [x]), LARGEST)


@from_torch("aten.any.default", "aten.any.dim", "aten.any.dims")
@from_torch("aten.all.default", "aten.all.dim", "aten.all.dims")
def _torch_any(imp: Importer, call: Call) -> str:
    x, least = truth(imp, call.args[0]), ".all." in call.target
    dims = call.arg(1, ()) if not call.target.endswith("default") else ()
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    keepdim = bool(call.arg(2, False))
    return largest(imp, x, axes, keepdim, first=False, least=least)
