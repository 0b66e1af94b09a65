"""Functions that jump from one constant to the next: their gradient is 0, as PyTorch has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.ir.graph import Array
from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.map import Function, define

STEPS = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sign": np.sign,
}


def _row(name: str, function: Any) -> Function:
    def value(x: Array, a: float, b: float) -> Array:
        result: Array = function(x)
        return result

    def slope(x: Array, a: float, b: float) -> Array:
        return np.zeros_like(x)

    return Function(name, value, slope, f"{{x}}.{name}()", exact=True, flat=True)


for _name, _function in STEPS.items():
    define(_row(_name, _function))


@from_torch(*(f"aten.{name}{end}.default" for name in STEPS for end in ("", "_")))
@from_torch("aten.fix.default", "aten.fix_.default", "aten.sgn.default")
def _torch_step(imp: Importer, call: Call) -> str:
    name = call.target.split(".")[1].rstrip("_")
    return imp.add({"fix": "trunc", "sgn": "sign"}.get(name, name), [imp.tensor(call.args[0])])


@from_torch("aten.round.decimals", "aten.round_.decimals")
def _torch_round_decimals(imp: Importer, call: Call) -> str:
    scale = 10.0 ** int(call.args[1])
    return affine(imp, imp.add("round", [affine(imp, imp.tensor(call.args[0]), scale)]), 1 / scale)


@from_onnx("Floor", "Ceil", "Round", "Sign")
def _onnx_step(imp: Importer, call: Call) -> str:
    return imp.add(call.target.lower(), [imp.tensor(call.args[0])])


@from_toml(*STEPS)
def _toml_step(imp: Importer, call: Call) -> str:
    return imp.add(call.target, call.args)


@from_torch("aten.frac.default")
def _torch_frac(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    return imp.add("sub", [x, imp.add("trunc", [x])])
