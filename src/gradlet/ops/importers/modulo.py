"""Whole quotients and what is left over; logarithms to other bases; pairs of reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradlet.ops.elementwise import affine, operand
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch


def _number(imp: Importer, value: object) -> str:
    """A tensor, or a number, whose rounding to float32 is noted."""
    plain = isinstance(value, int | float)
    return imp.constant(np.asarray(value, np.float64)) if plain else operand(imp, value)


def _quotient(imp: Importer, x: object, y: object, how: str) -> str:
    """x / y without its fraction: towards 0 (trunc), or below (floor)."""
    return imp.add(how, [imp.add("div", [_number(imp, x), _number(imp, y)])])


def _left_over(imp: Importer, x: object, y: object, how: str) -> str:
    whole = imp.add("mul", [_quotient(imp, x, y, how), _number(imp, y)])
    return imp.add("sub", [_number(imp, x), whole])


_FORMS = ("Tensor", "Scalar", "Scalar_Tensor")


@from_torch(*(f"aten.{name}.{form}" for name in ("remainder", "fmod") for form in _FORMS[:2]))
@from_torch("aten.remainder.Scalar_Tensor")
def _torch_remainder(imp: Importer, call: Call) -> str:
    how = "trunc" if "fmod" in call.target else "floor"
    return _left_over(imp, call.args[0], call.args[1], how)


@from_torch("aten.div.Tensor_mode", "aten.div.Scalar_mode")
@from_torch("aten.floor_divide.default", "aten.floor_divide.Scalar")
def _torch_whole_division(imp: Importer, call: Call) -> str:
    how = "floor" if "floor_divide" in call.target else call.arg(2)
    if how is None:
        return imp.add("div", [_number(imp, value) for value in call.args[:2]])
    return _quotient(imp, call.args[0], call.args[1], str(how))


@from_onnx("Mod")
def _onnx_mod(imp: Importer, call: Call) -> str:
    how = "trunc" if call.attrs.get("fmod", 0) else "floor"
    if imp.kind(call.args[1]) == "float" and imp.fixed(call.args[1]) is None:
        raise imp.unsupported("a divisor of floats that depends on the data; it must be a constant")
    return _left_over(imp, call.args[0], call.args[1], how)


@from_torch(*(f"aten.{name}{end}.default" for name in ("log2", "log10") for end in ("", "_")))
def _torch_log(imp: Importer, call: Call) -> str:
    base = 2.0 if "log2" in call.target else 10.0
    return affine(imp, imp.add("log", [imp.tensor(call.args[0])]), 1 / math.log(base))


@from_torch("aten.erfc.default", "aten.erfc_.default")
def _torch_erfc(imp: Importer, call: Call) -> str:
    return affine(imp, imp.add("erf", [imp.tensor(call.args[0])]), -1.0, 1.0)


@from_torch("aten.hypot.default")
def _torch_hypot(imp: Importer, call: Call) -> str:
    squares = [imp.add("mul", [x, x]) for x in map(imp.tensor, call.args[:2])]
    return imp.add("root", [imp.add("add", squares)])


@from_torch("aten.meshgrid.indexing", "aten.meshgrid.default")
def _torch_meshgrid(imp: Importer, call: Call) -> Sequence[str]:
    lines = [imp.tensor(value) for value in call.args[0]]
    sizes = [imp.shape(line)[0] if imp.shape(line) else 1 for line in lines]
    order = list(range(len(lines)))
    if call.arg(1, "ij") == "xy" and len(lines) > 1:
        order[:2] = [1, 0]
    whole = tuple(sizes[place] for place in order)
    results = []
    for place, line in enumerate(lines):
        shape = tuple(sizes[place] if at == place else 1 for at in order)
        row = imp.add("reshape", [line], {"shape": shape})
        results.append(imp.add("expand", [row], {"shape": whole}))
    return results
