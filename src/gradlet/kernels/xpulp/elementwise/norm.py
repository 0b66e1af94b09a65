"""The sum of squares of every 16th element: each part of a norm lies in one bank of L1."""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, SCRATCH, Asm

PARTS = 16


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    """squares(from, count), count may be 0; one chain, the loads of two elements before it."""
    asm, single, out = Asm("squares"), "single", "out"
    source, count, pairs, total, *values = (*ARGUMENTS[:2], *SCRATCH[:4])
    asm.sum_in_pairs(total, count, pairs, single)
    with asm.loop(0, pairs):
        for value in values:
            asm.lw_post(value, source, 4 * PARTS)
        for value in values:
            asm("fmadd.s", total, value, value, total)
    asm.compressed(True)
    asm.label(single)
    asm.branch("beqz", count, to=out)
    asm.lw(values[0], source)
    asm("fmadd.s", total, values[0], values[0], total)
    asm.label(out)
    asm.mv("a0", total)
    asm("ret")
    return {"squares": asm.function("const float *from, int count", result="float")}
