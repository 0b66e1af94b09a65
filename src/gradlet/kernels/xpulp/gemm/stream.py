"""What a core does with a piece of weights of a fully connected layer, which it has fetched itself.

Forward it adds products of rows with the input to their sums. On the way back it takes four columns
at a time down the rows: each weight is multiplied by the gradient of its row, summed up, and
updated. Sums are in memory from piece to piece, so it does not matter for the bits how long one is.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.gemm.linear_backward_relu import Rows, down_the_rows
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm
from gradlet.kernels.xpulp.recurrent.recurrent import lines

WIDTH = 4
QUADS, WEIGHTS, SLOPES, ROWS, PITCH, LEFT, KEEP = ARGUMENTS[:7]
ROW, SLOPE = "a7", "t0"
FLOW = (*SCRATCH[1:5],)
COLUMNS, HELD, SUMS = (SAVED[i : i + WIDTH] for i in range(0, 12, WIDTH))
ONE = IDLE[0]
REGISTERS = Rows(ROWS, ROW, SLOPE, PITCH, FLOW, COLUMNS, HELD, SUMS)
PARAMETERS = "quad *quads, float *w, const float *dy, int rows, int pitch, int left, float keep"


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    if mode == "nt":
        return {"lines": lines(inside=True)}
    return {"columns": _columns(summed=mode != "tn")}


def _columns(*, summed: bool) -> str:
    """Quads of columns go down the rows of a piece. A column may be in a quad more than once: all
    of a row is loaded before any is stored."""
    asm = Asm("columns")
    asm.compressed(True)
    asm.push(SAVED)
    asm.li(ONE, 0x3F800000)
    again, decaying, behind = asm.label(), asm.fresh(), asm.fresh()
    for place, column in enumerate(COLUMNS):
        asm.lw(column, QUADS, 4 * place)
    for place, held in enumerate(HELD):
        asm.lw(held, QUADS, 4 * (WIDTH + place))
    for place, total in enumerate(SUMS if summed else ()):
        asm.lw(total, QUADS, 4 * (2 * WIDTH + place))
    for column in COLUMNS:
        asm("add", column, column, WEIGHTS)
    asm.mv(ROW, SLOPES)
    asm.branch("bne", KEEP, ONE, to=decaying)
    down_the_rows(asm, REGISTERS, summed=summed)
    asm.label(behind)
    for place, total in enumerate(SUMS if summed else ()):
        asm.sw(total, QUADS, 4 * (2 * WIDTH + place))
    asm("addi", QUADS, QUADS, 4 * 3 * WIDTH)
    asm("addi", LEFT, LEFT, -1)
    asm.branch("bnez", LEFT, to=again)
    asm.pop(SAVED)
    asm.label(decaying)
    down_the_rows(asm, REGISTERS, summed=summed, keep=KEEP)
    asm.branch("j", to=behind)
    return asm.function(PARAMETERS)
