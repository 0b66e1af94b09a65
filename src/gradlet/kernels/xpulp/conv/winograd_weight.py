"""The gradient of the weights of a convolution 3x3 by Winograd's algorithm along rows, F(3, m): of
m gradients of a row and m + 2 inputs. Down the rows it stays direct.

A block has the sums of 2 x 2 channels and 3 lines of the window in registers, and goes down a
column of a phase: three rows of the map roll through registers, so that each is loaded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.conv.winograd_lines import (
    ORDERS,
    REGISTERS,
    RUN,
    GradientLines,
    Lines,
)
from gradlet.kernels.xpulp.conv.winograd_model import CHANNELS, TAPS
from gradlet.kernels.xpulp.conv.winograd_model import growth as growth
from gradlet.kernels.xpulp.conv.winograd_model import weight_cost as cost
from gradlet.kernels.xpulp.isa.asm import Asm

__all__ = ["cost", "generate", "growth"]

FIELDS = ("x0", "x1", "d0", "d1", "columns", "threes", "x_phase", "d_phase", "caller", "sp")
"""Of the struct that a block is called with, a word each; behind them is room for sums."""
SUMS = CHANNELS * CHANNELS * TAPS


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    del mode, epilogue  # the last step is C
    outputs = params["outputs"]
    lines = [Lines(outputs, missing) for missing in range(outputs + 1)]
    gradients = [GradientLines(outputs, missing) for missing in range(outputs)]
    made = [Block(outputs, rest, short) for short in (False, True) for rest in range(TAPS)]
    parts = [*(m.function() for m in made), *(m.function() for m in (*lines, *gradients))]
    return {
        "place": ORDERS[outputs].index,
        "functions": "\n\n".join(parts),
        "block_table": ", ".join(f"(uintptr_t){block.name}" for block in made),
        "line_table": ", ".join(f"(uintptr_t){part.name}" for part in lines),
        "gradient_table": ", ".join(f"(uintptr_t){part.name}" for part in gradients),
    }


class Block:
    """One function: the sums of all phases. rest: so many rows are left over from threes; short:
    there are no others."""

    def __init__(self, outputs: int, rest: int, short: bool) -> None:
        self.phases, self.rest, self.short = outputs + TAPS - 1, rest, short
        self.name = f"block_{rest}_{int(short)}"
        self.asm = Asm(self.name)
        names = iter((*(f"a{i}" for i in range(8)), *REGISTERS))
        self.x = [next(names) for _ in range(CHANNELS)]
        self.d = [next(names) for _ in range(CHANNELS)]
        self.kept, self.count, self.columns, self.threes = (next(names) for _ in range(4))
        self.rows = [[next(names) for _ in range(CHANNELS)] for _ in range(TAPS)]
        self.gradients = [next(names) for _ in range(CHANNELS)]
        self.sums = [next(names) for _ in range(SUMS)]

    def function(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.enter(4 * FIELDS.index("caller"))
        pointers = zip((*self.x, *self.d), FIELDS, strict=False)
        for register, field in (
            *pointers,
            *((self.columns, "columns"), (self.threes, "threes")),
        ):
            asm.lw(register, RUN, 4 * FIELDS.index(field))
        asm("addi", self.kept, RUN, 4 * len(FIELDS))
        asm("addi", self.count, "zero", self.phases)
        asm.label("phase")
        for register in self.sums:
            asm.mv(register, "zero")
        with asm.loop(1, self.columns):
            self._column()
        self._next_phase()
        asm.branch("bnez", self.count, to="phase")
        asm.leave(4 * FIELDS.index("caller"))
        asm.compressed(False)
        return asm.function("struct run *run")

    def _next_phase(self) -> None:
        asm, (x_step, d_step) = self.asm, self.gradients
        asm.lw(x_step, RUN, 4 * FIELDS.index("x_phase"))
        asm.lw(d_step, RUN, 4 * FIELDS.index("d_phase"))
        for register in self.sums:
            asm.sw_post(register, self.kept, 4)
        for pointer in self.x:
            asm("add", pointer, pointer, x_step)
        for pointer in self.d:
            asm("add", pointer, pointer, d_step)
        asm("addi", self.count, self.count, -1)

    def _column(self) -> None:
        for row in range(TAPS - 1):
            self._load(row)
        if not self.short:
            with self.asm.loop(0, self.threes):
                for row in range(TAPS):
                    self._row(row)
        for row in range(self.rest):
            self._row(row)
        if not self.rest:
            self.asm("nop")  # two loops do not end with the same instruction

    def _load(self, row: int) -> None:
        for register, pointer in zip(self.rows[row % TAPS], self.x, strict=True):
            self.asm.lw_post(register, pointer, 4)

    def _row(self, row: int) -> None:
        """A row of gradients, with the last of the rows of the map that it meets."""
        for register, pointer in zip(self.gradients, self.d, strict=True):
            self.asm.lw_post(register, pointer, 4)
        self._load(row + TAPS - 1)
        for line in range(TAPS):
            for c, value in enumerate(self.rows[(row + line) % TAPS]):
                for o, gradient in enumerate(self.gradients):
                    total = self.sums[(CHANNELS * o + c) * TAPS + line]
                    self.asm("fmadd.s", total, value, gradient, total)
