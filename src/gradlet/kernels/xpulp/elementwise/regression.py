"""Losses of outputs against targets: the sum over a stretch, and the slopes.

Within delta of the target a loss is a parabola, beyond it a line; `near` and `far` are factors of
the two. Of mse there is the one only, of l1 the other.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import Map, stretch
from gradlet.kernels.xpulp.isa.arithmetic import Line
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, SCRATCH, Asm

SIGN: tuple[Line, ...] = (
    ("flt.s", "t", "zero", "x"),
    ("flt.s", "u", "x", "zero"),
    ("sub", "t", "t", "u"),
    ("fcvt.s.w", "t", "t"),
    ("fmul.s", "t", "t", "far"),
)
WITHIN: tuple[Line, ...] = (
    ("fsgnjx.s", "v", "x", "x"),
    ("flt.s", "u", "v", "delta"),
    ("sub", "u", "zero", "u"),
)
"""The mask u is set where the distance v is below delta."""


def _near_or(other: str) -> tuple[Line, ...]:
    """x takes the place of the other where the mask is set."""
    return (("xor", "x", "x", other), ("and", "x", "x", "u"), ("xor", other, other, "x"))


BOTH: tuple[Line, ...] = (*SIGN, *WITHIN, ("fmul.s", "x", "x", "near"), *_near_or("t"))
SLOPES: dict[str, tuple[tuple[Line, ...], tuple[str, ...]]] = {
    "mse": ((("fmul.s", "t", "x", "near"),), ("near",)),
    "l1": (SIGN, ("far",)),
    "huber": (BOTH, ("near", "far", "delta")),
    "smooth_l1": (BOTH, ("near", "far", "delta")),
}
"""Lines that make t of x, the way from the target; and their constants."""
PIECES: tuple[Line, ...] = (
    *WITHIN,
    ("fmul.s", "x", "x", "x"),
    ("fmul.s", "x", "x", "near"),
    ("fsub.s", "v", "v", "middle"),
    ("fmul.s", "v", "v", "far"),
    *_near_or("v"),
    ("fadd.s", "total", "total", "v"),
)
VALUES: dict[str, tuple[Line, ...]] = {
    "mse": (("fmadd.s", "total", "x", "x", "total"),),
    "l1": (("fsgnjx.s", "x", "x", "x"), ("fadd.s", "total", "total", "x")),
    "huber": PIECES,
    "smooth_l1": PIECES,
}
"""Lines that add to the total; middle is half of delta."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    name = mode.removesuffix("_grad")
    if mode == name:
        return {"sum": _sum(VALUES[name])}
    body, constants = SLOPES[name]
    away = ("fsub.s", "x", "x", "target")
    item = Map(("x", "target"), (away, *body), "t", constants)
    return {"stretch": stretch("stretch", item), "constants": constants}


def _sum(lines: tuple[Line, ...]) -> str:
    """One chain over all elements; each is added while the next one is loaded."""
    asm = Asm("sum")
    known = ("x_from", "target_from", "count", "near", "far", "delta", "middle")
    regs = dict(zip(known, ARGUMENTS, strict=False))
    own = ("total", "x", "t", "u", "v", "next", "target")
    regs |= dict(zip(own, SCRATCH, strict=True))

    def add() -> None:
        for op, *operands in lines:
            asm(op, *(str(regs.get(name, name)) for name in operands))

    asm.mv(regs["total"], "zero")
    asm.mv(regs["x"], "zero")
    with asm.loop(0, regs["count"]):
        asm.lw_post(regs["next"], regs["x_from"], 4)
        asm.lw_post(regs["target"], regs["target_from"], 4)
        add()
        asm("fsub.s", regs["x"], regs["next"], regs["target"])
    add()
    asm.mv("a0", regs["total"])
    asm("ret")
    pointers = "const float *x, const float *target, int count"
    return asm.function(
        f"{pointers}, float near, float far, float delta, float middle", result="float"
    )
