"""Adam's step of one element: 37 instructions, none of which divides."""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import Map, stretch
from gradlet.kernels.xpulp.isa.arithmetic import (
    INVERSE,
    ROOT_SEED,
    SEED,
    Line,
    bits,
    inverse,
    root_inverse,
)

NUMBERS = ("rate", "decay", "beta1", "rest1", "beta2", "rest2", "root", "epsilon")
"""rate is negative, and so is the decay of adamw."""
LOW, HIGH = bits("9.31322575e-10"), bits("1.15292150e18")
"""2^-30, beside which the root of the smallest normal number is nothing, and 2^60."""
LITERALS = {
    **INVERSE,
    "half": bits("0.5"),
    "root_seed": ROOT_SEED,
    "low": LOW,
    "range": HIGH - LOW,
}
DECAY = {
    "adam": ("fmadd.s", "g", "decay", "w", "g"),
    "adamw": ("fmadd.s", "w", "decay", "w", "w"),
}
MOMENTS: tuple[Line, ...] = (
    ("fmul.s", "t", "rest1", "g"),
    ("fmadd.s", "m", "beta1", "m", "t"),
    ("fmul.s", "t", "rest2", "g"),
    ("fmul.s", "t", "t", "g"),
    ("fmadd.s", "v", "beta2", "v", "t"),
)
EXACT: tuple[Line, ...] = (
    ("fsqrt.s", "d", "v"),
    ("fmadd.s", "d", "d", "root", "epsilon"),
    ("fdiv.s", "y", "m", "d"),
)
STEP: tuple[Line, ...] = (
    *root_inverse("v", "y", "d", "t"),
    ("fmul.s", "d", "v", "y"),
    ("fmadd.s", "d", "d", "root", "epsilon"),
    ("sub", "t", "d", "low"),
    ("rare", "bgeu", "t", "range", EXACT),
    *inverse("d", "y", "t"),
    ("fmul.s", "y", "m", "y"),
    ("back",),
    ("fmadd.s", "w", "rate", "y", "w"),
)


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    item = Map(
        ("w", "g", "m", "v"),
        (DECAY[mode], *MOMENTS, *STEP),
        "w",
        NUMBERS,
        packed=True,
        literals=LITERALS,
        more=(("m_next", "m"), ("v_next", "v")),
        at_once=1,
    )
    return {
        "stretch": stretch("stretch", item),
        "seed": SEED,
        "root_seed": ROOT_SEED,
        "low": LOW,
        "range": HIGH - LOW,
    }
