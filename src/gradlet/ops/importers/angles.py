"""Sine, cosine and the inverse of the tangent; the other functions of angles and those of the
hyperbola are made of them, of exponentials and of logarithms."""

from __future__ import annotations

import math

import numpy as np

from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.map import Function, define

ANGLES = (
    Function("sin", lambda x, a, b: np.sin(x), lambda x, a, b: np.cos(x), "{x}.sin()", roundings=8),
    Function(
        "cos", lambda x, a, b: np.cos(x), lambda x, a, b: -np.sin(x), "{x}.cos()", roundings=8
    ),
    Function(
        "atan",
        lambda x, a, b: np.arctan(x),
        lambda x, a, b: 1 / (1 + x * x),
        "{x}.atan()",
        roundings=8,
    ),
)
for _row in ANGLES:
    define(_row)

_SPELLED = ("sin", "cos", "atan", "tan", "asin", "acos", "sinh", "cosh", "acosh", "atanh")


@from_torch(*(f"aten.{name}{end}.default" for name in _SPELLED for end in ("", "_")))
@from_torch("aten.arctan.default", "aten.arcsin.default", "aten.arccos.default")
def _torch_angle(imp: Importer, call: Call) -> str:
    name = call.target.split(".")[1].rstrip("_").replace("arc", "a")
    return _made(imp, name, imp.tensor(call.args[0]))


@from_onnx(*(name.capitalize() for name in _SPELLED))
def _onnx_angle(imp: Importer, call: Call) -> str:
    return _made(imp, call.target.lower(), imp.tensor(call.args[0]))


@from_toml(*(row.name for row in ANGLES))
def _toml_angle(imp: Importer, call: Call) -> str:
    return imp.add(call.target, call.args)


def _made(imp: Importer, name: str, x: str) -> str:
    match name:
        case "tan":
            return imp.add("div", [imp.add("sin", [x]), imp.add("cos", [x])])
        case "asin":
            return _arc_sine(imp, x)
        case "acos":
            return affine(imp, _arc_sine(imp, x), -1.0, math.pi / 2)
        case "sinh":
            fall = imp.add("expm1", [imp.add("neg", [x])])
            return affine(imp, imp.add("sub", [imp.add("expm1", [x]), fall]), 0.5)
        case "cosh":
            fall = imp.add("exp", [imp.add("neg", [x])])
            return affine(imp, imp.add("add", [imp.add("exp", [x]), fall]), 0.5)
        case "acosh":
            root = imp.add("sqrt", [_product(imp, affine(imp, x, 1.0, -1.0), _above(imp, x))])
            return imp.add("log", [imp.add("add", [x, root])])
        case "atanh":
            fall = imp.add("log1p", [imp.add("neg", [x])])
            return affine(imp, imp.add("sub", [imp.add("log1p", [x]), fall]), 0.5)
    return imp.add(name, [x])


def _above(imp: Importer, x: str) -> str:
    return affine(imp, x, 1.0, 1.0)


def _product(imp: Importer, one: str, other: str) -> str:
    return imp.add("mul", [one, other])


def _arc_sine(imp: Importer, x: str) -> str:
    """The other side of the triangle is sqrt((1 - x)(1 + x)), which loses nothing near 1."""
    side = imp.add("sqrt", [_product(imp, affine(imp, x, -1.0, 1.0), _above(imp, x))])
    return imp.add("atan", [imp.add("div", [x, side])])
