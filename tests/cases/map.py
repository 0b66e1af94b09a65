"""Functions of one variable: wide ranges, both signs, odd sizes."""

from __future__ import annotations

from gradlet.ir.graph import Attrs
from tests.cases.base import Case

SHAPES = ((1,), (7,), (2, 3, 5), (9, 37))
SIGNED = (
    "neg",
    "abs",
    "sigmoid",
    "tanh",
    "erf",
    "gelu",
    "gelu_tanh",
    "silu",
    "hardswish",
    "exp",
    "expm1",
    "sin",
    "cos",
    "atan",
)
STEPS = ("floor", "ceil", "round", "trunc", "sign")
POSITIVE = ("log", "sqrt", "reciprocal", "root", "log1p")


def rows(op: str, attrs: Attrs, *, scale: float = 3.0, positive: bool = False) -> list[Case]:
    return [Case(op, (shape,), attrs, scale=scale, positive=positive) for shape in SHAPES]


ROWS: tuple[Case, ...] = (
    *(row for op in SIGNED for row in rows(op, {})),
    *(row for op in POSITIVE for row in rows(op, {}, positive=True)),
    *(row for op in STEPS for row in rows(op, {})),
    *rows("hardshrink", {"edge": 0.5}),
    *rows("threshold", {"threshold": 0.1, "fill": -0.3}),
    *rows("log1p", {}, scale=0.2),
    *rows("clamp", {"low": -1.5, "high": 2.0}),
    *rows("clamp", {"low": float("-inf"), "high": 0.1}),
    *rows("hardtanh", {"low": 0.0, "high": 6.0}, scale=6.0),
    *rows("leaky_relu", {"slope": 0.01}),
    *rows("hardsigmoid", {"slope": 1 / 6, "offset": 0.5}),
    *rows("affine", {"slope": -1.7, "offset": 0.3}),
    *rows("elu", {"alpha": 1.0}),
    *rows("elu", {"alpha": 0.3}),
    *rows("softplus", {"beta": 1.0, "threshold": 20.0}, scale=12.0),
    *rows("softplus", {"beta": 2.5, "threshold": 3.0}),
    *(row for exponent in (0, 2, 3, -2) for row in rows("pow", {"exponent": float(exponent)})),
    *(row for power in (0.5, 1.7, -0.3) for row in rows("pow", {"exponent": power}, positive=True)),
)
