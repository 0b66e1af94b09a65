"""Functions of one variable, element by element: a table of facts, and the two ops that each makes.

A row gives a function, its slope, and how many roundings either takes. The slope is a function of
the input, or of the output where that is cheaper, so that the input's memory can be taken over.
The C expressions stand in the template of the `map` family, under the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import Arrays, Lowering, number, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.pointwise import Pointwise

Formula = Callable[[Array, float, float], Array]
"""Of the variable and of up to two numbers, a and b, which are attributes of the op."""


@dataclass(frozen=True)
class Function:
    """`value_size` and `slope_size` are the sizes of the terms where they may cancel.

    The gradient of a `straight` line is the line through 0, for which nothing has to be kept, and
    that of a `flat` one, which jumps from one constant to the next, is 0.
    """

    name: str
    value: Formula
    slope: Formula
    torch: str
    of: str = "x"  # what the slope is a function of
    numbers: tuple[str, ...] = ()
    roundings: int = 4
    exact: bool = False
    straight: bool = False
    flat: bool = False
    value_size: Formula | None = None
    slope_size: Formula | None = None


def _numbers(row: Function, attrs: Attrs) -> tuple[float, float]:
    a, b = ([number(attrs, name) for name in row.numbers] + [0.0, 0.0])[:2]
    return a, b


class _Map(Pointwise):
    row: ClassVar[Function]

    def lower(self, site: Site) -> Lowering:
        a, b = _numbers(self.row, site.attrs)
        return Lowering("map", self.name, {"count": site.outs[0].elements, "a": a, "b": b})


class _Forward(_Map):
    inputs = ("x",)
    overwrites = ("x",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (self.row.value(ins[0], *_numbers(self.row, attrs)),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        size = self.row.value_size
        return (size(ins[0], *_numbers(self.row, attrs)),) if size else results

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        if self.row.flat:
            return {"x": emit.add("affine", [grads[0]], {"slope": 0.0, "offset": 0.0})}
        if self.row.straight:
            offset = {"offset": 0.0} if "offset" in site.attrs else {}
            return {"x": emit.add(self.name, [grads[0]], {**site.attrs, **offset})}
        kept = site.node.outputs[0] if self.row.of == "y" else site.node.inputs[0]
        return {"x": emit.add(f"{self.name}_grad", [grads[0], kept], site.attrs)}

    def torch(self, attrs: Attrs, *ins: str) -> str:
        a, b = (f"float('{value}')" for value in _numbers(self.row, attrs))
        return self.row.torch.format(x=ins[0], a=a, b=b)


class _Gradient(_Map):
    outputs = ("dx",)
    overwrites = ("dy",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0] * self.row.slope(ins[1], *_numbers(self.row, attrs)),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        size = self.row.slope_size
        return (ins[0] * size(ins[1], *_numbers(self.row, attrs)),) if size else results


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _normal(x: Array) -> Array:
    result: Array = 0.5 * _erfc(-np.asarray(x) / math.sqrt(2))
    return result


def _bell(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _inner(x: Array) -> Array:
    """GELU by tanh is x * sigmoid of this."""
    return math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)


def _inner_slope(x: Array) -> Array:
    return math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * x * x)


def _gelu_tanh_slope(x: Array, sign: float = 1.0) -> Array:
    """With sign -1 the sum of the sizes of its terms, grown as the sigmoid's argument is lost."""
    s: Array = _sigmoid(_inner(x))
    rise: Array = s * (1 - s) * _inner_slope(x)
    size: Array = (s + np.abs(x) * rise) * (1 + np.abs(_inner(x)))
    exact: Array = s + x * rise
    return exact if sign > 0 else size


def _power(x: Array, exponent: float) -> Array:
    return np.power(x, int(exponent)) if exponent == int(exponent) >= 0 else np.power(x, exponent)


def _power_slope(x: Array, exponent: float) -> Array:
    return np.zeros_like(x) if exponent == 0 else exponent * _power(x, exponent - 1)


def _power_loss(x: Array, exponent: float) -> Array:
    """exp(a log x) turns the rounding of its argument into a relative error; of 0 there is none."""
    if exponent == int(exponent):
        return np.full_like(x, 1 + abs(exponent) / 4)
    return 1 + np.abs(exponent * np.log(np.where(x == 0, 1.0, x)))


def _inside(x: Array, low: float, high: float) -> Array:
    return ((x >= low) & (x <= high)).astype(x.dtype)


def _between(x: Array, low: float, high: float) -> Array:
    return ((x > low) & (x < high)).astype(x.dtype)


def _set(x: Array, low: float, high: float) -> Array:
    """The size of a limit where it takes the place of an element; what is copied loses nothing."""
    return np.where(x < low, abs(low), np.where(x > high, abs(high), 0.0))


def _nothing(x: Array, a: float, b: float) -> Array:
    return np.zeros_like(x)


def _softplus(x: Array, beta: float, threshold: float) -> Array:
    return np.where(x * beta > threshold, x, np.logaddexp(0, beta * x) / beta)


FUNCTIONS = (
    Function(
        "neg",
        lambda x, a, b: -x,
        lambda x, a, b: -np.ones_like(x),
        "-{x}",
        exact=True,
        straight=True,
    ),
    Function("abs", lambda x, a, b: np.abs(x), lambda x, a, b: np.sign(x), "{x}.abs()", exact=True),
    Function(
        "clamp",
        lambda x, a, b: np.minimum(np.maximum(x, a), b),
        _inside,
        "{x}.clamp({a}, {b})",
        numbers=("low", "high"),
        roundings=1,
        value_size=_set,
        slope_size=_nothing,
    ),
    Function(
        "hardtanh",
        lambda x, a, b: np.minimum(np.maximum(x, a), b),
        _between,
        "F.hardtanh({x}, {a}, {b})",
        numbers=("low", "high"),
        roundings=1,
        value_size=_set,
        slope_size=_nothing,
    ),
    Function(
        "affine",
        lambda x, a, b: a * x + b,
        lambda x, a, b: np.full_like(x, a),
        "({a} * {x} + {b})",
        numbers=("slope", "offset"),
        straight=True,
        value_size=lambda x, a, b: np.abs(a * x) + abs(b),
    ),
    Function(
        "leaky_relu",
        lambda x, a, b: np.where(x > 0, x, a * x),
        lambda x, a, b: np.where(x > 0, 1.0, a),
        "F.leaky_relu({x}, {a})",
        numbers=("slope",),
    ),
    Function(
        "hardsigmoid",
        lambda x, a, b: np.clip(a * x + b, 0, 1),
        lambda x, a, b: a * ((a * x + b > 0) & (a * x + b < 1)),
        "({a} * {x} + {b}).clamp(0, 1)",
        numbers=("slope", "offset"),
        value_size=lambda x, a, b: np.abs(a * x) + abs(b),
    ),
    Function(
        "hardswish",
        lambda x, a, b: x * np.clip(x + 3, 0, 6) / 6,
        lambda x, a, b: np.where(x <= -3, 0, np.where(x < 3, x / 3 + 0.5, 1)),
        "F.hardswish({x})",
        value_size=lambda x, a, b: np.abs(x) * (np.abs(x) + 3) / 6,
        slope_size=lambda x, a, b: np.abs(x) / 3 + 0.5,
    ),
    Function(
        "sigmoid",
        lambda x, a, b: _sigmoid(x),
        lambda y, a, b: y * (1 - y),
        "torch.sigmoid({x})",
        of="y",
        roundings=8,
    ),
    Function(
        "tanh",
        lambda x, a, b: np.tanh(x),
        lambda y, a, b: 1 - y * y,
        "torch.tanh({x})",
        of="y",
        roundings=8,
    ),
    Function(
        "erf",
        lambda x, a, b: _erf(x),
        lambda x, a, b: 2 / math.sqrt(math.pi) * np.exp(-x * x),
        "torch.erf({x})",
        roundings=8,
    ),
    Function(
        "gelu",
        lambda x, a, b: x * _normal(x),
        lambda x, a, b: _normal(x) + x * _bell(x),
        "F.gelu({x})",
        roundings=12,
        slope_size=lambda x, a, b: _normal(x) + np.abs(x) * _bell(x),
    ),
    Function(
        "gelu_tanh",
        lambda x, a, b: x * _sigmoid(_inner(x)),
        lambda x, a, b: _gelu_tanh_slope(x),
        "F.gelu({x}, approximate='tanh')",
        roundings=10,
        value_size=lambda x, a, b: x * _sigmoid(_inner(x)) * (1 + np.abs(_inner(x))),
        slope_size=lambda x, a, b: _gelu_tanh_slope(x, -1),
    ),
    Function(
        "silu",
        lambda x, a, b: x * _sigmoid(x),
        lambda x, a, b: _sigmoid(x) * (1 + x * _sigmoid(-x)),
        "F.silu({x})",
        roundings=10,
        slope_size=lambda x, a, b: _sigmoid(x) * (1 + np.abs(x) * _sigmoid(-x)),
    ),
    Function(
        "elu",
        lambda x, a, b: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
        lambda x, a, b: np.where(x > 0, 1, a * np.exp(np.minimum(x, 0))),
        "F.elu({x}, {a})",
        numbers=("alpha",),
        roundings=8,
    ),
    Function(
        "softplus",
        lambda x, a, b: _softplus(x, a, b),
        lambda x, a, b: np.where(x * a > b, 1, _sigmoid(a * x)),
        "F.softplus({x}, {a}, {b})",
        numbers=("beta", "threshold"),
        roundings=12,
        value_size=lambda x, a, b: _softplus(x, a, b) * (1 + np.abs(a * x)),
        slope_size=lambda x, a, b: _sigmoid(a * x) * (1 + np.abs(a * x)),
    ),
    Function("exp", lambda x, a, b: np.exp(x), lambda y, a, b: y, "{x}.exp()", of="y", roundings=8),
    Function("log", lambda x, a, b: np.log(x), lambda x, a, b: 1 / x, "{x}.log()", roundings=8),
    Function("sqrt", lambda x, a, b: np.sqrt(x), lambda y, a, b: 0.5 / y, "{x}.sqrt()", of="y"),
    Function(
        "root",  # as sqrt, but nothing passes at 0: what a length or a deviation is made of
        lambda x, a, b: np.sqrt(x),
        lambda y, a, b: np.where(y == 0, 0, 0.5 / np.where(y == 0, 1, y)),
        "(torch.where({x} == 0, 1.0, {x}).sqrt() * ({x} != 0))",
        of="y",
    ),
    Function(
        "expm1", lambda x, a, b: np.expm1(x), lambda x, a, b: np.exp(x), "{x}.expm1()", roundings=8
    ),
    Function(
        "log1p",
        lambda x, a, b: np.log1p(x),
        lambda x, a, b: 1 / (1 + x),
        "{x}.log1p()",
        roundings=8,
    ),
    Function(
        "hardshrink",
        lambda x, a, b: np.where(np.abs(x) <= a, 0, x),
        lambda x, a, b: np.where(np.abs(x) <= a, 0.0, 1.0),
        "F.hardshrink({x}, {a})",
        numbers=("edge",),
        exact=True,
    ),
    Function(
        "threshold",
        lambda x, a, b: np.where(x <= a, b, x),
        lambda x, a, b: np.where(x <= a, 0.0, 1.0),
        "F.threshold({x}, {a}, {b})",
        numbers=("threshold", "fill"),
        roundings=1,
        value_size=lambda x, a, b: np.where(x <= a, abs(b), 0.0),
        slope_size=_nothing,
    ),
    Function("reciprocal", lambda x, a, b: 1 / x, lambda y, a, b: -y * y, "1 / {x}", of="y"),
    Function(
        "pow",
        lambda x, a, b: _power(x, a),
        lambda x, a, b: _power_slope(x, a),
        "{x}.pow({a})",
        numbers=("exponent",),
        roundings=8,
        value_size=lambda x, a, b: _power(x, a) * _power_loss(x, a),
        slope_size=lambda x, a, b: _power_slope(x, a) * _power_loss(x, a),
    ),
)


def define(row: Function) -> None:
    facts = {
        "row": row,
        "exact": row.exact,
        "counts": row.straight,
        "additions": row.roundings - 1,
        "__doc__": f"{row.name}, element by element.",
    }
    register(type(row.name, (_Forward,), {**facts, "name": row.name}))
    if row.straight or row.flat:
        return
    gradient = {**facts, "name": f"{row.name}_grad", "inputs": ("dy", row.of)}
    register(type(f"{row.name}_grad", (_Gradient,), gradient))


for _row in FUNCTIONS:
    define(_row)
