"""The way back through a linear layer behind a ReLU, which makes zeros of about half of its inputs.

Such an input gets no gradient, and its weights do not change unless they decay: the column is left
out. A core has every eighth column, so that neighbours meet other banks and zeros are everybody's.
It looks for four that count, and takes all rows of these: load, two multiply-adds, store. If fewer
are left, the first is there several times; all of a row is loaded before any is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SAVED, Asm

TEAM = 8
STEP = 4 * TEAM
"""Bytes from a column of the core to the next."""
WIDTH = 4
ONE, NEVER = 0x3F800000, 0x80000000
ID, CORES, RESULT, WEIGHTS, SLOPES, INPUTS, HYPER, SIZES = ARGUMENTS
SLOPE, END, AWAY, SCALE, HEIGHT = ID, CORES, WEIGHTS, HYPER, SIZES
"""What their registers hold later. AWAY: from behind an input to the first of its weights."""
N4, KEEP, LEAST, BACK, ROW = (f"t{i}" for i in range(5))
"""LEAST: inputs below it, as integers, are left out. BACK: from a column's end to its result."""
FLOW = ("t5", "t6", *IDLE)
HELD, SUMS, COLUMNS = (SAVED[i : i + WIDTH] for i in range(0, 12, WIDTH))


@dataclass(frozen=True)
class Rows:
    """Registers: how many rows, where the slopes of rows are, that of a row, bytes from row to row;
    of each column a weight in flight, the place of the next one, the update's factor, its sum."""

    count: str
    slopes: str
    slope: str
    pitch: str
    flow: Sequence[str]
    columns: Sequence[str]
    held: Sequence[str]
    sums: Sequence[str]


def down_the_rows(asm: Asm, of: Rows, *, summed: bool = True, keep: str = "") -> None:
    """Each weight is loaded, summed up, and updated. keep: the factor of what is left of it."""
    with asm.loop(0, of.count):
        asm.lw_post(of.slope, of.slopes, 4)
        for value, column in zip(of.flow, of.columns, strict=True):
            asm.lw(value, column)
        for total, value in zip(of.sums, of.flow, strict=True) if summed else ():
            asm("fmadd.s", total, of.slope, value, total)
        for value in of.flow if keep else ():
            asm("fmul.s", value, value, keep)
        for value, held in zip(of.flow, of.held, strict=True):
            asm("fmadd.s", value, of.slope, held, value)
        for value, column in zip(of.flow, of.columns, strict=True):
            asm.sw_post(value, column, of.pitch)


REGISTERS = Rows(HEIGHT, ROW, SLOPE, N4, FLOW, COLUMNS, HELD, SUMS)


class Kernel:
    """Results and inputs move on to the next column as they are looked at."""

    def __init__(self) -> None:
        self.asm = Asm("back")

    def text(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.bne_imm(CORES, TEAM, to="rare")
        asm.entry("one_group")
        asm.push(SAVED)
        self._begin()
        asm.label("next")
        for place in range(WIDTH):
            self._find(place)
        asm.label("found")
        for total in SUMS:
            asm.mv(total, "zero")
        asm.mv(ROW, SLOPES)
        asm.branch("bltz", LEAST, to="decaying")
        down_the_rows(asm, REGISTERS)
        for column, total in zip(COLUMNS, SUMS, strict=True):
            asm("sub", column, column, BACK)
            asm.sw(total, column)
        asm.branch("j", to="next")
        for place in range(1, WIDTH):
            asm.label(f"only{place}")
            asm.mv(COLUMNS[place], COLUMNS[0])
            asm.mv(HELD[place], HELD[0])
        asm.branch("j", to="found")
        asm.label("only0")
        asm.pop(SAVED)
        self._decaying()
        asm.label("rare")
        asm("j", "otherwise")
        return asm.body()

    def _begin(self) -> None:
        asm = self.asm
        asm("slli", ID, ID, 2)
        asm.lw("t4", HYPER, 4)  # the decay
        asm.lw(SCALE, HYPER)
        asm.lw(N4, SIZES)
        asm.lw(HEIGHT, SIZES, 4)
        asm.li("t5", ONE)
        asm("fsgnjn.s", SCALE, SCALE, SCALE)
        asm("slli", N4, N4, 2)
        asm("fmadd.s", KEEP, SCALE, "t4", "t5")
        asm("sub", BACK, WEIGHTS, RESULT)
        asm.mac(BACK, HEIGHT, N4)
        asm("add", END, INPUTS, N4)
        asm("sub", AWAY, WEIGHTS, INPUTS)
        asm("addi", AWAY, AWAY, -STEP)
        asm("add", INPUTS, INPUTS, ID)
        asm("add", RESULT, RESULT, ID)
        asm("addi", LEAST, "zero", 1)
        asm.branch("beq", KEEP, "t5", to="next")
        asm.li(LEAST, NEVER)

    def _find(self, place: int) -> None:
        asm, value = self.asm, FLOW[0]
        look = asm.label()
        asm.branch("bgeu", INPUTS, END, to=f"only{place}")
        asm.lw_post(value, INPUTS, STEP)
        asm.sw_post("zero", RESULT, STEP)
        asm.branch("blt", value, LEAST, to=look)
        asm("add", COLUMNS[place], INPUTS, AWAY)
        asm("fmul.s", HELD[place], value, SCALE)

    def _decaying(self) -> None:
        """All columns count; only here inputs are looked at once more."""
        asm = self.asm
        asm.label("decaying")
        down_the_rows(asm, REGISTERS, keep=KEEP)
        asm("sub", ROW, INPUTS, RESULT)
        for column, total, value in zip(COLUMNS, SUMS, FLOW, strict=True):
            asm("sub", column, column, BACK)
            asm.lw_indexed(value, column, ROW)
            asm("slt", value, "zero", value)
            asm("mul", total, total, value)
            asm.sw(total, column)
        asm.branch("j", to="next")
