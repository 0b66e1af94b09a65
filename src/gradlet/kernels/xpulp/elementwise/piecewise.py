"""Functions of one variable that have edges: pieces of lines and of a parabola, chosen by masks.

A comparison gives 1 or 0; less 1 that is a mask of all zeros or ones, and its negative the other
way round. What a comparison with a NaN gives is what it gives in C.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import NUMBERS, Map, stretch
from gradlet.kernels.xpulp.isa.arithmetic import Line, bits

SLOPE: tuple[Line, ...] = (("and", "t", "t", "one"), ("fmul.s", "dy", "dy", "t"))
"""dy times 1 where the mask t is set, else times 0, which is not always 0."""
WITHIN: tuple[Line, ...] = (
    ("flt.s", "t", "zero", "u"),
    ("flt.s", "u", "u", "one"),
    ("and", "t", "t", "u"),
    ("sub", "t", "zero", "t"),
)
"""The mask t is set where u is between 0 and 1."""


def _unit(of: str) -> tuple[Line, ...]:
    """Kept within 0..1."""
    return (
        ("flt.s", "t", of, "zero"),
        ("flt.s", "u", "one", of),
        ("addi", "t", "t", -1),
        ("addi", "u", "u", -1),
        *(("xor", of, of, "one"), ("and", of, of, "u"), ("xor", of, of, "one")),
        ("and", of, of, "t"),
    )


def _literals(**texts: str) -> dict[str, int]:
    return {name: bits(text) for name, text in texts.items()}


def _forward(*body: Line, **texts: str) -> Map:
    return Map(("x",), body, "x", NUMBERS, literals=_literals(**texts))


def _gradient(*body: Line, **texts: str) -> Map:
    return Map(("dy", "x"), body, "dy", NUMBERS, literals=_literals(**texts))


MAPS = {
    "abs_grad": _gradient(
        ("flt.s", "t", "zero", "x"),
        ("flt.s", "u", "x", "zero"),
        ("sub", "t", "t", "u"),
        ("fcvt.s.w", "t", "t"),
        ("fmul.s", "dy", "dy", "t"),
    ),
    "hardsigmoid": _forward(("fmadd.s", "x", "a", "x", "b"), *_unit("x")),
    "hardsigmoid_grad": _gradient(
        ("fmadd.s", "u", "a", "x", "b"),
        *WITHIN,
        ("and", "t", "t", "a"),
        ("fmul.s", "dy", "dy", "t"),
    ),
    "hardswish": _forward(
        ("fadd.s", "v", "x", "three"),
        ("fmul.s", "v", "v", "sixth"),
        ("fmin.s", "v", "v", "one"),  # which loses a NaN, but x still is one
        ("fmax.s", "v", "v", "zero"),
        ("fmul.s", "x", "x", "v"),
        three="3.0",
        sixth="0.166666667",
    ),
    "hardswish_grad": _gradient(
        ("flt.s", "t", "x", "three"),
        ("fle.s", "u", "x", "low"),
        ("fmadd.s", "v", "x", "third", "half"),
        ("addi", "t", "t", -1),
        *(("xor", "x", "v", "one"), ("and", "x", "x", "t"), ("xor", "v", "v", "x")),
        ("addi", "u", "u", -1),
        ("and", "v", "v", "u"),
        ("fmul.s", "dy", "dy", "v"),
        three="3.0",
        low="-3.0",
        third="0.333333333",
        half="0.5",
    ),
    "hardshrink": _forward(
        ("fsgnjx.s", "t", "x", "x"),
        ("fle.s", "t", "t", "a"),
        ("addi", "t", "t", -1),
        ("and", "x", "x", "t"),
    ),
    "hardshrink_grad": _gradient(
        ("fsgnjx.s", "t", "x", "x"),
        ("fle.s", "t", "t", "a"),
        ("addi", "t", "t", -1),
        *SLOPE,
    ),
    "threshold": _forward(
        ("fle.s", "t", "x", "a"),
        ("addi", "t", "t", -1),
        *(("xor", "x", "x", "b"), ("and", "x", "x", "t"), ("xor", "x", "x", "b")),
    ),
    "threshold_grad": _gradient(("fle.s", "t", "x", "a"), ("addi", "t", "t", -1), *SLOPE),
    "reciprocal_grad": Map(
        ("dy", "y"),
        (("fmul.s", "y", "y", "y"), ("fsgnjn.s", "y", "y", "y"), ("fmul.s", "dy", "dy", "y")),
        "dy",
        NUMBERS,
    ),
}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"stretch": stretch("stretch", MAPS[mode], params["element"])}
