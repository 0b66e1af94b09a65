"""Functions that are made of an exponential and a quotient: sigmoid, tanh, SiLU and GELU.

With e = exp(-|x|) the two sides of a sigmoid are 1 / (1 + e) and e / (1 + e); the sign of x tells
which is which. tanh is -E / (2 + E) of E = exp(-2 |x|) - 1, which keeps what is small. The normal
distribution function of -a is exp(-a^2 / 2) T(a), where T is a polynomial in 1 / (1 + 0.3 a) that
is right to 2 units of 2^-24. Curves are in C in curve_xpulp.c.j2, in the same order.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import Map, stretch
from gradlet.kernels.xpulp.isa.arithmetic import (
    EXPONENT,
    INVERSE,
    SEED,
    Line,
    bits,
    exponential,
    inverse,
    unmasked,
)

TAIL = {
    "t8": "0.0367498435",
    "t7": "-0.153710604",
    "t6": "0.187728614",
    "t5": "-0.0395680219",
    "t4": "0.121799678",
    "t3": "0.103113964",
    "t2": "0.122373357",
    "t1": "0.121513225",
    "away": "-0.3046875",
    "edge": "-13.0",
    "bell": "0.398942280",
}
"""Beyond -13 everything is as it is there: less than 1e-38."""
EXPM1 = {
    "b6": "1.39467185e-3",
    "b5": "8.36673565e-3",
    "b4": "0.0416662768",
    "b3": "0.16666542",
    "b2": "0.5",
    "two": "2.0",
    "end": "-30.0",
}
INNER = {"inner": "1.59576912", "cubic": "0.044715", "slope": "0.134145"}
"""gelu_tanh is x sigmoid(inner (x + cubic x^3))."""
TEXTS = {**EXPONENT, **TAIL, **EXPM1, **INNER}
KNOWN = {**INVERSE, **{name: bits(text) for name, text in TEXTS.items()}}


def _sides(of: str) -> tuple[Line, ...]:
    """s = 1 / (1 + exp(-|of|)) and e = exp(-|of|) s."""
    return (
        ("fsgnjx.s", "z", of, of),
        ("fsub.s", "z", "zero", "z"),
        *exponential("z", "e"),
        ("fadd.s", "z", "e", "one"),
        *inverse("z", "s", "r"),
        ("fmul.s", "e", "e", "s"),
    )


def _sorted(of: str, e: str = "e", sign: str = "low") -> tuple[Line, ...]:
    """s and e change places where the other one has a sign."""
    return (
        ("srai", sign, of, 31),
        ("xor", "t", "s", e),
        ("and", "t", "t", sign),
        ("xor", "s", "s", "t"),
        ("xor", e, e, "t"),
    )


def sigmoid(of: str) -> tuple[Line, ...]:
    return (*_sides(of), *_sorted(of)[:-1])


ARGUMENT: tuple[Line, ...] = (
    ("fmul.s", "u", "cubic", "x"),
    ("fmul.s", "u", "u", "x"),
    ("fmadd.s", "u", "u", "x", "x"),
    ("fmul.s", "u", "u", "inner"),
)
EXPM1_BELOW: tuple[Line, ...] = (
    ("p.minu", "z", "z", "end"),
    ("fmadd.s", "t", "z", "log2e", "magic"),
    ("fsub.s", "r", "t", "magic"),
    ("fnmsub.s", "r", "r", "ln2", "z"),
    ("slli", "t", "t", 23),
    ("fmadd.s", "e", "b6", "r", "b5"),
    *(("fmadd.s", "e", "e", "r", name) for name in ("b4", "b3", "b2", "one")),
    ("fmul.s", "e", "e", "r"),
    ("add", "t", "t", "one"),  # 2^n
    ("fsub.s", "z", "t", "one"),
    ("fmadd.s", "e", "t", "e", "z"),
)
"""e = exp(z) - 1 for z <= 0"""
TANH: tuple[Line, ...] = (
    ("fsgnjx.s", "z", "x", "x"),
    ("fadd.s", "z", "z", "z"),
    ("fsub.s", "z", "zero", "z"),
    *EXPM1_BELOW,
    ("fadd.s", "z", "e", "two"),
    *inverse("z", "s", "r"),
    ("fmul.s", "e", "e", "s"),
    ("fsgnj.s", "e", "e", "x"),
)
NORMAL: tuple[Line, ...] = (
    ("fsgnjx.s", "a", "x", "x"),
    ("fsub.s", "a", "zero", "a"),
    ("p.minu", "a", "a", "edge"),  # as integers; a NaN has no sign here, and stays
    ("fmadd.s", "z", "a", "away", "one"),
    *inverse("z", "s", "r"),
    ("fmadd.s", "p", "t8", "s", "t7"),
    *(("fmadd.s", "p", "p", "s", f"t{i}") for i in range(6, 0, -1)),
    ("fmul.s", "p", "p", "s"),
    ("fmul.s", "z", "a", "a"),
    ("fmsub.s", "s", "a", "a", "z"),  # what the square loses is put back
    ("lui", "t", bits("-0.5") >> 12),  # there are no registers left
    ("fmul.s", "z", "z", "t"),
    ("fmul.s", "s", "s", "t"),
    ("lui", "t", bits(EXPONENT["log2e"]) >> 12),
    *unmasked("z", "z", "t"),
    ("fmadd.s", "z", "s", "z", "z"),
)
"""a = -|x|, p = T(|x|), z = exp(-x^2 / 2)"""
BODIES: dict[str, tuple[tuple[Line, ...], str]] = {
    "sigmoid": (sigmoid("x"), "s"),
    "tanh": (TANH, "e"),
    "silu": ((*sigmoid("x"), ("fmul.s", "x", "x", "s")), "x"),
    "silu_grad": (
        (
            *_sides("x"),
            *_sorted("x"),
            ("fmadd.s", "e", "x", "e", "one"),
            ("fmul.s", "s", "s", "e"),
            ("fmul.s", "dy", "dy", "s"),
        ),
        "dy",
    ),
    "gelu": (
        (
            *NORMAL,
            ("fmul.s", "z", "z", "p"),
            ("p.max", "x", "x", "zero"),
            ("fmadd.s", "x", "a", "z", "x"),
        ),
        "x",
    ),
    "gelu_grad": (
        (
            *NORMAL,
            ("fmadd.s", "p", "a", "bell", "p"),
            ("fmul.s", "z", "z", "p"),
            ("fsub.s", "s", "one", "z"),
            *_sorted("x", "z", "r")[:-1],
            ("fmul.s", "dy", "dy", "s"),
        ),
        "dy",
    ),
    "gelu_tanh": ((*ARGUMENT, *sigmoid("u"), ("fmul.s", "x", "x", "s")), "x"),
    "gelu_tanh_grad": (
        (
            *ARGUMENT,
            *_sides("u"),
            *_sorted("u"),
            ("fmul.s", "z", "slope", "x"),
            ("fmadd.s", "z", "z", "x", "one"),
            ("fmul.s", "z", "z", "inner"),
            ("fmul.s", "x", "x", "s"),
            ("fmul.s", "x", "x", "e"),
            ("fmadd.s", "s", "x", "z", "s"),
            ("fmul.s", "dy", "dy", "s"),
        ),
        "dy",
    ),
}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    body, result = BODIES[mode]
    used = {word for line in body for word in line[1:]}
    literals = {name: value for name, value in KNOWN.items() if name in used}
    inputs = ("dy", "x") if mode.endswith("_grad") else ("x",)
    item = Map(inputs, body, result, literals=literals, at_once=1)
    texts = {name: f"{text}f" for name, text in TEXTS.items()}
    return {"stretch": stretch("stretch", item, params["element"]), **texts, "seed": SEED}
