"""Normalisation: the sums over a line of a group, and the line itself.

One chain for each sum, in the order of the C. Statistics are in a struct `numbers`, as there are
more of them than arguments.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import Map, stretch
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SCRATCH, Asm

NUMBERS = ("mean", "rstd", "common", "along")
"""The words of the struct."""
UNIT = (("fsub.s", "x", "x", "mean"), ("fmul.s", "x", "x", "rstd"))
MAPS = {
    "forward": Map(
        ("x", "w", "b"),
        (*UNIT, ("fmadd.s", "x", "x", "w", "b")),
        "x",
        NUMBERS[:2],
        ("step", "w_step"),
        packed=True,
    ),
    "weighted": Map(
        ("x", "w"),
        (*UNIT, ("fmadd.s", "x", "x", "w", "zero")),
        "x",
        NUMBERS[:2],
        ("step", "w_step"),
        packed=True,
    ),
    "input_grad": Map(
        ("dy", "x", "w"),
        (
            ("fmul.s", "dy", "dy", "w"),
            *UNIT,
            ("fsub.s", "dy", "dy", "common"),
            ("fnmsub.s", "dy", "x", "along", "dy"),
            ("fmul.s", "dy", "dy", "rstd"),
        ),
        "dy",
        NUMBERS,
        ("step", "w_step"),
        packed=True,
    ),
}
"""b goes along with w."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    made = {"sum": sum_of_line(), "squares": _squares()}
    if mode == "variance":
        return made
    made["row"] = stretch("row", MAPS[mode])
    if mode == "input_grad":
        return made | {"slopes": _slopes(), "weighted": ""}
    return made | {"slopes": "", "weighted": stretch("weighted", MAPS["weighted"])}


def sum_of_line() -> str:
    asm, single, out = Asm("sum"), "single", "out"
    source, count, step, total, pairs, *values = (*ARGUMENTS[:4], *SCRATCH[:3])
    asm.compressed(True)
    asm("srli", pairs, count, 1)
    asm("andi", count, count, 1)
    asm.branch("beqz", pairs, to=single)
    asm.compressed(False)
    with asm.loop(0, pairs):
        for value in values:
            asm.lw_post(value, source, step)
        for value in values:
            asm("fadd.s", total, total, value)
    asm.compressed(True)
    asm.branch("beqz", count, to=out)
    asm.label(single)
    asm.lw(values[0], source)
    asm("fadd.s", total, total, values[0])
    asm.label(out)
    asm.mv("a0", total)
    asm("ret")
    return asm.function("const float *from, int count, int step, float total", result="float")


def _squares() -> str:
    """Of the distances from the mean. The last one is added while the next is loaded."""
    asm = Asm("squares")
    source, count, step, total, mean, away, value = (*ARGUMENTS[:5], *SCRATCH[:2])
    asm.mv(away, "zero")
    with asm.loop(0, count):
        asm.lw_post(value, source, step)
        asm("fmadd.s", total, away, away, total)
        asm("fsub.s", away, value, mean)
    asm("fmadd.s", "a0", away, away, total)
    asm("ret")
    parameters = "const float *from, int count, int step, float total, float mean"
    return asm.function(parameters, result="float")


def _slopes() -> str:
    """Adds g = dy w to `common`, and g times x normalised to `along`."""
    asm = Asm("slopes")
    dy, x, w, count, numbers, step, w_step, g = ARGUMENTS
    mean, rstd, common, along, value, weight = (*SCRATCH[:4], *IDLE)
    for place, register in enumerate((mean, rstd, common, along)):
        asm.lw(register, numbers, 4 * place)
    with asm.loop(0, count):
        asm.lw_post(g, dy, step)
        asm.lw_post(weight, w, w_step)
        asm.lw_post(value, x, step)
        asm("fmul.s", g, g, weight)
        asm("fsub.s", value, value, mean)
        asm("fmul.s", value, value, rstd)
        asm("fadd.s", common, common, g)
        asm("fmadd.s", along, g, value, along)
    asm.sw(common, numbers, 8)
    asm.sw(along, numbers, 12)
    asm("ret")
    pointers = "const float *dy, const float *x, const float *w"
    return asm.function(f"{pointers}, int count, statistics *numbers, int step, int w_step")
