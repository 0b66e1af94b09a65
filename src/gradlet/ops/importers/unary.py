"""How the front ends spell functions of one variable; some are made of several nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.ir.graph import Attrs
from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.map import FUNCTIONS

SELU = (1.6732632423543772, 1.0507009873554805)  # alpha and scale, as both front ends have them
HARDSIGMOID: Attrs = {"slope": 1 / 6, "offset": 0.5}

_PLAIN = {row.name for row in FUNCTIONS if not row.numbers} - {"gelu_tanh", "gelu", "root"}
_OVERLOADS = ("aten.{}.default", "aten.{}_.default")


def _both(*names: str) -> list[str]:
    """The overloads that return a new tensor and those that claim to work in place."""
    return [overload.format(name) for name in names for overload in _OVERLOADS]


@from_torch(*_both(*_PLAIN))
def _torch_plain(imp: Importer, call: Call) -> str:
    return imp.add(call.target.split(".")[1].rstrip("_"), [imp.tensor(call.args[0])])


@from_torch("aten.hardshrink.default", "aten.threshold.default", "aten.threshold_.default")
def _torch_edges(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    if "hardshrink" in call.target:
        return imp.add("hardshrink", [x], {"edge": float(call.arg(1, 0.5))})
    numbers = {"threshold": float(call.args[1]), "fill": float(call.args[2])}
    return imp.add("threshold", [x], numbers)


@from_onnx("Neg", "Abs", "Sigmoid", "Tanh", "Erf", "HardSwish", "Exp", "Log", "Sqrt", "Reciprocal")
def _onnx_plain(imp: Importer, call: Call) -> str:
    return imp.add(call.target.lower(), [imp.tensor(call.args[0])])


@from_toml(*_PLAIN, "gelu", "gelu_tanh")
def _toml_plain(imp: Importer, call: Call) -> str:
    return imp.add(call.target, call.args)


@from_toml("relu6", "leaky_relu", "elu", "softplus", "hardsigmoid", "pow")
def _toml_with_numbers(imp: Importer, call: Call) -> str:
    defaults: dict[str, Attrs] = {
        "relu6": {"low": 0.0, "high": 6.0},
        "leaky_relu": {"slope": float(call.attrs.get("slope", 0.01))},
        "elu": {"alpha": float(call.attrs.get("alpha", 1.0))},
        "softplus": {"beta": 1.0, "threshold": 20.0},
        "hardsigmoid": HARDSIGMOID,
        "pow": {"exponent": float(call.attrs.get("exponent", 2.0))},
    }
    return imp.add(
        "hardtanh" if call.target == "relu6" else call.target, call.args, defaults[call.target]
    )


def _clamp(imp: Importer, x: str, low: Any, high: Any, op: str = "clamp") -> str:
    limits = {
        "low": float("-inf") if low is None else float(low),
        "high": float("inf") if high is None else float(high),
    }
    return imp.add(op, [x], limits)


@from_torch(*_both("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6"))
def _torch_clamp(imp: Importer, call: Call) -> str:
    x, name = imp.tensor(call.args[0]), call.target.split(".")[1].rstrip("_")
    if name in ("relu6", "hardtanh"):
        low, high = (0.0, 6.0) if name == "relu6" else call.args[1:3]
        return _clamp(imp, x, low, high, "hardtanh")
    low = call.arg(1) if name != "clamp_max" else None
    high = call.arg(1) if name == "clamp_max" else call.arg(2)
    return _clamp(imp, x, low, high)


@from_onnx("Clip")
def _onnx_clip(imp: Importer, call: Call) -> str:
    """ReLU6 as PyTorch exports it is a clip of 0..6, through whose ends nothing passes."""
    low, high = (None if call.arg(i) is None else float(imp.static(call.args[i])) for i in (1, 2))
    op = "hardtanh" if (low, high) == (0.0, 6.0) else "clamp"
    return _clamp(imp, imp.tensor(call.args[0]), low, high, op)


@from_torch(*_both("leaky_relu", "hardsigmoid", "elu", "selu", "celu", "softplus", "gelu"))
def _torch_with_numbers(imp: Importer, call: Call) -> str:
    x, name = imp.tensor(call.args[0]), call.target.split(".")[1].rstrip("_")
    match name:
        case "leaky_relu":
            return imp.add(name, [x], {"slope": float(call.arg(1, 0.01))})
        case "hardsigmoid":
            return imp.add(name, [x], HARDSIGMOID)
        case "elu":
            return _elu(imp, x, *(float(call.arg(i, 1.0)) for i in (1, 2, 3)))
        case "selu":
            return _elu(imp, x, *SELU)
        case "celu":
            alpha = float(call.arg(1, 1.0))
            return _elu(imp, x, alpha, 1.0, 1 / alpha)
        case "softplus":
            numbers = {"beta": float(call.arg(1, 1)), "threshold": float(call.arg(2, 20))}
            return imp.add(name, [x], numbers)
    return imp.add("gelu_tanh" if call.arg(1, "none") == "tanh" else "gelu", [x])


def _elu(imp: Importer, x: str, alpha: float, scale: float, inner: float = 1.0) -> str:
    """scale * (x or alpha * (exp(inner * x) - 1)); elu(inner * x) also scales what is positive."""
    if inner == 1.0:
        return affine(imp, imp.add("elu", [x], {"alpha": alpha}), scale)
    y = imp.add("elu", [affine(imp, x, inner)], {"alpha": alpha * inner})
    return affine(imp, y, scale / inner)


@from_onnx("LeakyRelu", "HardSigmoid", "Elu", "Selu", "Celu", "Softplus", "Gelu")
def _onnx_with_numbers(imp: Importer, call: Call) -> str:
    x, alpha = imp.tensor(call.args[0]), call.attrs.get("alpha")
    match call.target:
        case "LeakyRelu":
            return imp.add("leaky_relu", [x], {"slope": 0.01 if alpha is None else float(alpha)})
        case "HardSigmoid":
            slope, offset = alpha or 0.2, call.attrs.get("beta", 0.5)
            return imp.add("hardsigmoid", [x], {"slope": float(slope), "offset": float(offset)})
        case "Elu":
            return _elu(imp, x, 1.0 if alpha is None else float(alpha), 1.0)
        case "Selu":
            scale = call.attrs.get("gamma", SELU[1])
            return _elu(imp, x, SELU[0] if alpha is None else float(alpha), float(scale))
        case "Celu":
            alpha = 1.0 if alpha is None else float(alpha)
            return _elu(imp, x, alpha, 1.0, 1 / alpha)
        case "Softplus":  # no threshold: beyond 20 both are x in single precision
            return imp.add("softplus", [x], {"beta": 1.0, "threshold": 40.0})
    tanh = call.attrs.get("approximate", "none") == "tanh"
    return imp.add("gelu_tanh" if tanh else "gelu", [x])


def power_of(imp: Importer, x: str, exponent: float) -> str:
    simple = {0.5: "sqrt", -1.0: "reciprocal"}.get(exponent)
    if exponent == 1:
        return x
    return imp.add(simple, [x]) if simple else imp.add("pow", [x], {"exponent": exponent})


@from_torch("aten.pow.Tensor_Scalar", "aten.pow_.Scalar", *_both("square", "rsqrt"))
def _torch_pow(imp: Importer, call: Call) -> str:
    x, name = imp.tensor(call.args[0]), call.target.split(".")[1].rstrip("_")
    if name == "rsqrt":
        return imp.add("reciprocal", [imp.add("sqrt", [x])])
    return power_of(imp, x, 2.0 if name == "square" else float(call.args[1]))


@from_torch("aten.prelu.default")
def _torch_prelu(imp: Importer, call: Call) -> str:
    x, slope = (imp.tensor(value) for value in call.args[:2])
    shape, count = imp.shape(x), int(np.prod(imp.shape(slope)))
    if count > 1 and len(shape) > 2:  # one slope per channel
        slope = imp.add("reshape", [slope], {"shape": (count, *(1,) * (len(shape) - 2))})
    return _prelu(imp, x, slope)


@from_onnx("PRelu")
def _onnx_prelu(imp: Importer, call: Call) -> str:
    return _prelu(imp, imp.tensor(call.args[0]), imp.param(call.args[1]))


def _prelu(imp: Importer, x: str, slope: str) -> str:
    negative = imp.add("mul", [_clamp(imp, x, None, 0.0), slope])
    return imp.add("add", [imp.add("relu", [x]), negative])


@from_torch(*_both("mish", "log_sigmoid"))
@from_onnx("Mish", "Softsign")
def _composed(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    numbers: Attrs = {"beta": 1.0, "threshold": 20.0}
    if "mish" in call.target.lower():
        return imp.add("mul", [x, imp.add("tanh", [imp.add("softplus", [x], numbers)])])
    if call.target == "Softsign":
        one = imp.constant(np.ones((), np.float32))
        return imp.add("div", [x, imp.add("add", [imp.add("abs", [x]), one])])
    return imp.add(
        "neg", [imp.add("softplus", [imp.add("neg", [x])], {**numbers, "threshold": 40.0})]
    )
