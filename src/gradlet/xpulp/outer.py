"""The outer product of two vectors (k is 1), stored or added to what is there.

Columns are held in registers, multiplied by the scale of the update once; then row after row of c
goes by: load, one multiply-add, store.
"""

from __future__ import annotations

from typing import Any

from gradlet.xpulp.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm, Registers

C, A, B, HEIGHT, WIDTH, N4, SCALE, KEEP = ARGUMENTS
ONE = 0x3F800000
AT_ONCE = 2
"""Elements in flight, so that no load is waited for."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    if epilogue in ("momentum", "relu"):
        return {"strip": ""}
    asm = Asm("strip")
    asm.push(SAVED)
    for size in params["held"]:
        again, smaller = asm.label(), asm.fresh()
        asm("addi", "t0", "zero", size)
        asm.branch("blt", WIDTH, "t0", to=smaller)
        _columns(asm, epilogue, size)
        asm("addi", WIDTH, WIDTH, -size)
        asm("addi", C, C, 4 * size)
        if size == params["held"][0]:
            asm.branch("j", to=again)
        asm.label(smaller)
    asm.pop(SAVED)
    parameters = "float *c, const float *a, const float *b, int height, int width, int n4"
    return {"strip": asm.function(f"{parameters}, float scale, float keep")}


def _columns(asm: Asm, epilogue: str, size: int) -> None:
    regs = Registers([*SCRATCH, *IDLE, *SAVED])
    to, row = regs.take("to", "row")
    factor = regs.one("factor")
    held = regs.take(*(f"held{i}" for i in range(size)))
    for value in held:
        asm.lw_post(value, B, 4)
    if epilogue:
        for value in held:
            asm("fmul.s", value, value, SCALE)
    asm.mv(to, C)
    asm.mv(row, A)
    flow = regs.take(*(f"flow{i}" for i in range(min(size, AT_ONCE))))
    if not epilogue:
        with asm.loop(0, HEIGHT):
            _row(asm, epilogue, to, row, factor, held, flow, keep="")
        return
    decays, done = asm.fresh(), asm.fresh()
    asm.li(flow[0], ONE)
    asm.branch("bne", KEEP, flow[0], to=decays)
    with asm.loop(0, HEIGHT):
        _row(asm, epilogue, to, row, factor, held, flow, keep="")
    asm.branch("j", to=done)
    asm.label(decays)
    with asm.loop(0, HEIGHT):
        _row(asm, epilogue, to, row, factor, held, flow, keep=KEEP)
    asm.label(done)


def _row(
    asm: Asm,
    epilogue: str,
    to: str,
    row: str,
    factor: str,
    held: list[str],
    flow: list[str],
    keep: str,
) -> None:
    """The first column comes last: it is at the pointer, which its store moves on."""
    asm.lw_post(factor, row, 4)
    order = [*range(1, len(held)), 0]
    for begin in range(0, len(order), len(flow)):
        part = list(zip(order[begin : begin + len(flow)], flow, strict=False))
        for column, value in part if epilogue else []:
            asm.lw(value, to, 4 * column)
        for _, value in part if keep else []:
            asm("fmul.s", value, value, keep)
        for column, value in part:
            if epilogue:
                asm("fmadd.s", value, factor, held[column], value)
            else:
                asm("fmul.s", value, factor, held[column])
        for column, value in part:
            if column:
                asm.sw(value, to, 4 * column)
            else:
                asm.sw_post(value, to, N4)
