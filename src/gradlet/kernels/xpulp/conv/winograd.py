"""Convolution 3x3 by Winograd's algorithm along rows, F(m, 3): m results of a row from m + 2
products instead of 3 * m. Down the rows it stays direct.

The transformed map has m + 2 phases, each of them a map whose columns are tiles of m results; so a
phase of a tile is a convolution of one dimension down the rows, and the direct register block of 2
channels x up to 8 rows with 6 weights in registers stays as it is. This module writes the blocks;
the transforms of weights and of sums are C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradlet.kernels.xpulp.conv.winograd_lines import ORDERS, REGISTERS, RUN, Lines, bits
from gradlet.kernels.xpulp.conv.winograd_model import CHANNELS, ROWS, TAPS
from gradlet.kernels.xpulp.conv.winograd_model import cost as cost
from gradlet.kernels.xpulp.conv.winograd_model import growth as growth
from gradlet.kernels.xpulp.isa.asm import Asm

FIELDS = (
    *("x", "w", "channels", "x_channel", "x_phase", "y0", "y1", "y_line", "b0", "b1"),
    *("tiles", "x_tile", "caller", "sp"),
)
"""Of the struct that a block is called with, a word each; behind them is room for sums."""
X, W, STEP, KEPT, *INPUTS = tuple(f"a{i}" for i in range(6))
STARTS = ("a6", "a7")
ROOM = 4 * CHANNELS * ROWS
"""Bytes of the sums of a phase."""


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    outputs = params["outputs"]
    lines: list[Lines] = [Lines(outputs, missing) for missing in range(outputs + 1)]
    edges = [(top, bottom) for top in (0, 1) for bottom in (0, 1)]
    keys = [(ROWS, *edge) for edge in edges] + [(rows, 0, 0) for rows in range(1, ROWS)]
    made = [Block(outputs, *key, epilogue) for key in keys]
    return {
        "back": mode == "input_grad",
        "place": ORDERS[outputs].index,
        "functions": "\n\n".join([*(m.function() for m in made), *(m.function() for m in lines)]),
        "block_table": ", ".join(f"(uintptr_t){block.name}" for block in made),
        "line_table": ", ".join(f"(uintptr_t){part.name}" for part in lines),
    }


class Block:
    """One function: the sums of all phases of a tile, over all channels, and its results, for one
    tile after the other. top, bottom: the first or the last of its rows of the map is one of zeros,
    and left out."""

    def __init__(self, outputs: int, rows: int, top: int, bottom: int, epilogue: str) -> None:
        self.outputs, self.rows, self.epilogue = outputs, rows, epilogue
        self.name = f"block_{rows}_{top}_{bottom}"
        self.inputs = list(range(top, rows + TAPS - 1 - bottom))
        self.asm = Asm(self.name)
        names = iter(REGISTERS)
        self.sums = [[next(names) for _ in range(rows)] for _ in range(CHANNELS)]
        self.weights = [[next(names) for _ in range(TAPS)] for _ in range(CHANNELS)]
        self.spare = [register for own in self.weights for register in own]
        self.order = ORDERS[outputs]

    def function(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.enter(4 * FIELDS.index("caller"))
        asm.label("tile")
        for register, field in (
            *((X, "x"), (W, "w"), (STEP, "x_channel")),
            *((STARTS[0], "b0"), (STARTS[1], "b1")),
        ):
            self._word("lw", register, field)
        asm("addi", X, X, 4 * self.inputs[-1])
        asm("addi", W, W, 4 * (CHANNELS * TAPS - 1))
        asm("addi", KEPT, RUN, 4 * len(FIELDS))
        asm("addi", self.spare[0], "zero", len(self.order))
        with asm.loop(1, self.spare[0]):
            self._phase()
        self._results()
        self._next_tile()
        asm.branch("bnez", INPUTS[0], to="tile")
        asm.leave(4 * FIELDS.index("caller"))
        asm.compressed(False)
        return asm.function("struct run *run")

    def _word(self, op: str, register: str, field: str) -> None:
        """Loads or stores one of the struct."""
        self.asm(op, register, f"{4 * FIELDS.index(field)}({RUN})")

    def _next_tile(self) -> None:
        """Leaves the number of tiles to come in the first of the inputs."""
        asm, tiles, step = self.asm, INPUTS[0], INPUTS[1]
        self._word("lw", X, "x")
        self._word("lw", step, "x_tile")
        self._word("lw", tiles, "tiles")
        asm("add", X, X, step)
        asm("addi", tiles, tiles, -1)
        self._word("sw", X, "x")
        self._word("sw", tiles, "tiles")

    def _phase(self) -> None:
        """Its sums over all channels, which are kept."""
        asm, spare = self.asm, self.spare[0]
        self._word("lw", spare, "channels")
        for sums, start in zip(self.sums, STARTS, strict=True):
            for register in sums:
                asm.mv(register, start)
        with asm.loop(0, spare):
            self._body(self.inputs[-1])
        self._word("lw", spare, "x_phase")
        for channel, sums in enumerate(self.sums):
            for row, register in enumerate(sums):
                asm.sw(register, KEPT, 4 * (ROWS * channel + row))
            asm.mv(STARTS[channel], "zero")
        asm("addi", KEPT, KEPT, ROOM)
        asm("add", X, X, spare)

    def _results(self) -> None:
        """Of one row after the other, from the sums of its phases."""
        asm, free = self.asm, iter(REGISTERS)
        first, line, count = next(free), next(free), next(free)
        sums = [next(free) for _ in self.order]
        spare = [next(free) for _ in range(6)]
        asm("addi", first, RUN, 4 * len(FIELDS))
        self._word("lw", line, "y_line")
        constants = [next(free) for _ in range(3)]
        for register, number in zip(constants, (2.0, 4.0, 8.0), strict=True):
            asm.li(register, bits(number))
        for channel in range(CHANNELS):
            self._word("lw", X, f"y{channel}")
            asm("addi", count, X, 4 * self.outputs)
            self._word("sw", count, f"y{channel}")
            if channel:
                asm("addi", first, first, 4 * (ROWS - self.rows))
            asm("addi", count, "zero", self.rows)
            with asm.loop(0, count):
                for place, phase in enumerate(self.order[1:], 1):
                    asm.lw(sums[phase], first, ROOM * place)
                asm.lw_post(sums[self.order[0]], first, 4)
                made = self._combined(sums, spare, constants)
                self._store(made, spare, line)

    def _combined(
        self, sums: Sequence[str], spare: Sequence[str], constants: Sequence[str]
    ) -> Sequence[str]:
        """The registers with the results. With the sums p to s of phases 1 to 4: y0 = p + q + r + s
        + sum of 0, y1 = p - q + 2 * (r - s), y2 = p + q + 4 * (r + s), y3 = p - q + 8 * (r - s)
        + sum of 5. Of two outputs there are p and q, and y1 = p - q + sum of 3."""
        asm, (even, odd, more, less, third, *_) = self.asm, spare
        first, p, q, r, *others = sums
        if self.outputs == 2:
            asm("fadd.s", even, q, p)
            asm("fsub.s", odd, p, q)
            asm("fadd.s", even, even, first)
            asm("fadd.s", odd, odd, r)
            return even, odd
        (s, last), (two, four, eight) = others, constants
        asm("fadd.s", more, r, s)
        asm("fsub.s", less, r, s)
        asm("fadd.s", even, p, q)
        asm("fsub.s", odd, p, q)
        asm("fadd.s", first, first, more)
        asm("fmadd.s", third, more, four, even)
        asm("fmadd.s", last, less, eight, last)
        asm("fmadd.s", p, less, two, odd)
        asm("fadd.s", first, first, even)
        asm("fadd.s", last, last, odd)
        return first, p, third, last

    def _store(self, made: Sequence[str], spare: Sequence[str], line: str) -> None:
        """The first of a row is the last that is stored, and moves on to the next row."""
        asm = self.asm
        if self.epilogue == "sum":
            for column, old in zip(range(len(made)), self._others(made, spare), strict=False):
                asm.lw(old, X, 4 * column)
            for register, old in zip(made, self._others(made, spare), strict=False):
                asm("fadd.s", register, old, register)
        elif self.epilogue == "relu":
            for register in made:
                asm.max(register, register, "zero")  # as integers: the FPU makes no negative NaN
        for column in range(1, len(made)):
            asm.sw(made[column], X, 4 * column)
        asm.sw_post(made[0], X, line)

    def _others(self, made: Sequence[str], spare: Sequence[str]) -> list[str]:
        return [register for register in spare if register not in made]

    def _body(self, last: int) -> None:
        """Each input is loaded while the one before is used; the weights of both channels lie one
        behind the other."""
        asm = self.asm
        self._load(0, last)
        for tap in range(TAPS):
            for channel in range(CHANNELS):
                register, place = self.weights[channel][tap], TAPS * channel + tap
                if place == CHANNELS * TAPS - 1:
                    asm.lw_post(register, W, 4 * CHANNELS * TAPS)
                else:
                    asm.lw(register, W, 4 * (place - CHANNELS * TAPS + 1))
        for index, row in enumerate(self.inputs):
            if index + 1 < len(self.inputs):
                self._load(index + 1, last)
            register = INPUTS[index % 2]
            for tap in range(TAPS):
                if 0 <= row - tap < self.rows:
                    for channel in range(CHANNELS):
                        total = self.sums[channel][row - tap]
                        asm("fmadd.s", total, register, self.weights[channel][tap], total)

    def _load(self, index: int, last: int) -> None:
        register, row = INPUTS[index % 2], self.inputs[index]
        if row == last:
            self.asm.lw_post(register, X, STEP)
        else:
            self.asm.lw(register, X, 4 * (row - last))
