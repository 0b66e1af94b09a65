"""Functions that are an exponential on one side, or on both: exp, ELU, softplus; quotients, roots.

exp(x) above 0 is made as below, see arithmetic.py; beyond the largest float it is infinite. The
logarithm of 1 + u for u in 0..1 is the series of atanh in u / (2 + u), cut short as a polynomial.
In C they are in growth_xpulp.c.j2, in the same order.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import Map, stretch
from gradlet.kernels.xpulp.elementwise.sigmoids import EXPM1_BELOW, KNOWN, TEXTS, sigmoid
from gradlet.kernels.xpulp.isa.arithmetic import (
    HIGH,
    LOW,
    NEWTON,
    ROOT_SEED,
    SEED,
    Line,
    bits,
    exponential,
    inverse,
    root_inverse,
    unmasked,
)

MORE = {
    "most": "88.7228317",
    "infinite": "inf",
    "q3": "0.139508292",
    "q2": "0.140090719",
    "q1": "0.200105101",
    "q0": "0.333332062",
}
"""most: beyond it 2^n is no float."""
LITERALS = {**KNOWN, **{name: bits(text) for name, text in MORE.items()}}
BELOW: tuple[Line, ...] = (("fsgnjx.s", "z", "x", "x"), ("fsub.s", "z", "zero", "z"))
"""z = -|x|"""
RIGHT: tuple[Line, ...] = (("flt.s", "t", "zero", "x"), ("addi", "t", "t", -1))
"""t is a mask of where x is not positive."""
EXP: tuple[Line, ...] = (
    ("flt.s", "low", "x", "least"),
    ("flt.s", "u", "most", "x"),
    *unmasked("x", "e"),
    ("addi", "low", "low", -1),
    ("and", "e", "e", "low"),
    ("addi", "u", "u", -1),
    *(("xor", "e", "e", "infinite"), ("and", "e", "e", "u"), ("xor", "e", "e", "infinite")),
)


def _chosen(here: str, other: str, mask: str = "t") -> tuple[Line, ...]:
    """`here` becomes `other` where the mask is not set."""
    return (
        ("xor", here, here, other),
        ("and", here, here, mask),
        ("xor", here, here, other),
    )


def _quotient(of: str) -> tuple[Line, ...]:
    """of = 1 / of: by the unit where it is tiny, huge or no number."""
    return (
        ("slli", "t", of, 1),
        ("sub", "t", "t", "low"),
        ("rare", "bgeu", "t", "range", (("fdiv.s", of, "one", of),)),
        *inverse(of, "t", "u"),
        ("addi", of, "t", 0),
        ("back",),
    )


ROOT: tuple[Line, ...] = (
    ("sub", "t", "x", "low"),
    ("rare", "bgeu", "t", "range", (("fsqrt.s", "x", "x"),)),
    *root_inverse("x", "y", "u", "t"),
    ("fmul.s", "u", "x", "y"),
    ("fnmsub.s", "t", "u", "u", "x"),  # what is missing
    ("fmul.s", "y", "y", "half"),
    ("fmadd.s", "x", "t", "y", "u"),
    ("back",),
)
HALVED: tuple[Line, ...] = (
    *_quotient("x"),
    ("fmul.s", "x", "x", "half"),
)
SOFTPLUS: tuple[Line, ...] = (
    ("fmul.s", "v", "a", "x"),
    ("fsgnjx.s", "z", "v", "v"),
    ("fsub.s", "z", "zero", "z"),
    *exponential("z", "e"),
    ("fadd.s", "z", "e", "two"),
    *inverse("z", "s", "r"),
    ("fmul.s", "s", "s", "e"),  # u / (2 + u)
    ("fmul.s", "z", "s", "s"),
    ("fmadd.s", "e", "q3", "z", "q2"),
    ("fmadd.s", "e", "e", "z", "q1"),
    ("fmadd.s", "e", "e", "z", "q0"),
    ("fmul.s", "e", "e", "z"),
    ("fadd.s", "s", "s", "s"),
    ("fmadd.s", "e", "s", "e", "s"),
    ("p.max", "z", "v", "zero"),
    ("fadd.s", "e", "e", "z"),
    ("fmul.s", "e", "e", "back"),
    ("flt.s", "t", "b", "v"),
    ("addi", "t", "t", -1),
    *_chosen("e", "x"),
)
BODIES: dict[str, tuple[tuple[Line, ...], str]] = {
    "exp": (EXP, "e"),
    "expm1_grad": ((*EXP, ("fmul.s", "dy", "dy", "e")), "dy"),
    "elu": ((*BELOW, *EXPM1_BELOW, ("fmul.s", "e", "a", "e"), *RIGHT, *_chosen("e", "x")), "e"),
    "elu_grad": (
        (
            *BELOW,
            *exponential("z", "e"),
            ("fmul.s", "e", "a", "e"),
            *RIGHT,
            *_chosen("e", "one"),
            ("fmul.s", "dy", "dy", "e"),
        ),
        "dy",
    ),
    "softplus": (SOFTPLUS, "e"),
    "softplus_grad": (
        (
            ("fmul.s", "v", "a", "x"),
            *sigmoid("v"),
            ("flt.s", "t", "b", "v"),
            ("addi", "t", "t", -1),
            *_chosen("s", "one"),
            ("fmul.s", "dy", "dy", "s"),
        ),
        "dy",
    ),
    "reciprocal": (_quotient("x"), "x"),
    "log_grad": ((*_quotient("x"), ("fmul.s", "dy", "dy", "x")), "dy"),
    "log1p_grad": (
        (("fadd.s", "x", "x", "one"), *_quotient("x"), ("fmul.s", "dy", "dy", "x")),
        "dy",
    ),
    "sqrt": (ROOT, "x"),
    "root": (ROOT, "x"),
    "sqrt_grad": ((*HALVED, ("fmul.s", "dy", "dy", "x")), "dy"),
    "root_grad": (
        (
            ("feq.s", "v", "x", "zero"),
            ("addi", "v", "v", -1),
            *HALVED,
            ("and", "x", "x", "v"),
            ("fmul.s", "dy", "dy", "x"),
        ),
        "dy",
    ),
}
QUOTIENTS = ("reciprocal", "log_grad", "log1p_grad", "sqrt_grad", "root_grad")
ROOTS = ("sqrt", "root")
HALF = {"half": bits("0.5")}
OF_ROOTS = {**HALF, "root_seed": ROOT_SEED, "low": LOW, "range": HIGH - LOW}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    body, result = BODIES[mode]
    used = {word for line in body for word in line[1:]} | {"one"}
    constants = tuple(name for name in ("a", "b", "back") if name in used)
    known = {**NEWTON, **HALF} if mode in QUOTIENTS else OF_ROOTS if mode in ROOTS else LITERALS
    literals = {name: value for name, value in known.items() if name in used}
    inputs = ("dy", "x") if mode.endswith("_grad") else ("x",)
    item = Map(inputs, body, result, constants, literals=literals, at_once=1)
    numbers = {"a": "s->a", "b": "s->b", "back": "1.0f / s->a"}
    texts = {name: f"{text}f" for name, text in {**TEXTS, **MORE}.items()}
    limits = {"lowest": known["low"], "range": known["range"]} if "range" in known else {}
    if mode in ROOTS:
        limits["root_seed"] = ROOT_SEED
    return {
        "stretch": stretch("stretch", item, params["element"]),
        "numbers": "".join(f", {numbers[name]}" for name in constants),
        "constants": "".join(f", float {name}" for name in constants),
        "given": constants,
        **texts,
        **limits,
        "seed": SEED,
    }
