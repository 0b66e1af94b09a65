"""Gradient of 3 x 3 weights with channels in pairs: two outputs and nine taps in registers.

In maps two channels are side by side, and here two pixels have to be: step 0 copies both maps to
scratch, channel by channel. Of x a word is two neighbours of a row, words that lie below each other
are neighbours, and so one pointer is enough for three rows. Of the output gradients all pairs of
neighbours are there, those that begin at an odd pixel as well: two words meet the left and the
right tap, the one between them meets the middle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradlet.kernels.xpulp.conv.direct_pair import halves_of
from gradlet.kernels.xpulp.isa.asm import IDLE, SAVED, SCRATCH, Asm
from gradlet.kernels.xpulp.isa.narrow import HIGH_HALVES, Narrow, zip_halves

FIELDS = (
    *("x", "d0", "apart", "columns", "step", "back", "top", "full", "bottom"),
    *("sums", "units", "x_next", "caller", "sp"),
)
"""Of the unit's struct, a word each: x, at the row that the middle line of the kernel meets first;
gradients of an output, and bytes to those of the other; columns of a row, bytes from one to the
next, and from the end of a row to the next; rows without the first line, with all, without the
last; where sums go; units, and bytes from the x of one to the next."""
LINES, TAPS, OUTPUTS = 3, 3, 2


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    halves = halves_of(params["element"])
    functions = "\n\n".join([Unit(halves).function(), copy_x(), copy_dy()])
    return {"functions": functions, "join": f".insn r 0x33, {halves.vector}, 0x58, %0, %1, %2"}


class Unit:
    """The function that runs units."""

    def __init__(self, halves: Narrow) -> None:
        self.asm, self.halves = Asm("unit"), halves
        names = iter((*SAVED, *SCRATCH, *IDLE, "ra", *(f"a{n}" for n in range(8))))
        self.sums = [
            [[next(names) for _ in range(OUTPUTS)] for _ in range(TAPS)] for _ in range(LINES)
        ]
        self.inputs = [next(names) for _ in range(LINES)]
        self.even, self.odd = ([next(names) for _ in range(OUTPUTS)] for _ in range(2))
        self.x, self.d0, self.d1, self.step = (next(names) for _ in range(4))

    def get(self, register: str, field: str) -> None:
        self.asm.lw(register, "sp", 4 * FIELDS.index(field))

    def function(self) -> str:
        asm, registers = self.asm, [r for line in self.sums for tap in line for r in tap]
        asm.compressed(True)
        asm.enter(4 * FIELDS.index("caller"))
        self.get(self.step, "step")
        asm.label("unit")
        self.get(self.d0, "d0")
        self.get(self.d1, "apart")
        self.get(self.x, "x")
        for total in registers:
            asm.mv(total, "zero")
        asm("add", self.d1, self.d1, self.d0)
        self.rows("top", range(1, LINES))
        self.rows("full", range(LINES))
        self.rows("bottom", range(LINES - 1))
        _leave_sums(asm, registers, (*self.inputs, *self.even))
        asm.branch("bnez", self.inputs[2], to="unit")
        asm.leave(4 * FIELDS.index("caller"))
        asm.compressed(False)
        return asm.function("struct unit *unit")

    def rows(self, field: str, lines: range) -> None:
        """Those that meet these lines of the kernel."""
        asm, x, count = self.asm, self.x, self.inputs[0]
        self.get(count, field)
        asm("nop")
        asm.branch("beqz", count, to=f"no_{field}")
        if lines.stop == LINES:
            asm("addi", x, x, 4)
        with asm.loop(1, count):
            self.get(count, "columns")
            self.next_gradients(self.even)
            with asm.loop(0, count):
                for line in lines[:-1]:
                    asm.lw(self.inputs[line], x, 4 * (line - lines[-1]))
                asm.lw_post(self.inputs[lines[-1]], x, self.step)
                self.next_gradients(self.odd)
                self.products(2, lines, self.even)
                self.next_gradients(self.even)
                self.products(1, lines, self.odd)
                self.products(0, lines, self.even)
            self.get(count, "back")
            asm("nop")
            asm("add", x, x, count)
        if lines.stop == LINES:
            asm("addi", x, x, -4)
        asm.label(f"no_{field}")

    def next_gradients(self, registers: Sequence[str]) -> None:
        for register, pointer in zip(registers, (self.d0, self.d1), strict=True):
            self.asm.lw_post(register, pointer, 4)

    def products(self, tap: int, lines: Sequence[int], outs: Sequence[str]) -> None:
        for line in lines:
            for total, out in zip(self.sums[line][tap], outs, strict=True):
                self.halves.dot(self.asm, total, self.inputs[line], out)


def _leave_sums(asm: Asm, registers: Sequence[str], spare: Sequence[str]) -> None:
    """And on to the next unit; how many there are is left in the third spare register."""
    pointer, x_next, count, x, _ = spare
    for register, field in ((pointer, "sums"), (x_next, "x_next"), (count, "units"), (x, "x")):
        asm.lw(register, "sp", 4 * FIELDS.index(field))
    for total in registers:
        asm.sw_post(total, pointer, 4)
    asm("add", x, x, x_next)
    asm("addi", count, count, -1)
    for register, field in ((pointer, "sums"), (count, "units"), (x, "x")):
        asm.sw(register, "sp", 4 * FIELDS.index(field))


def copy_x() -> str:
    """Of a pair of channels: some rows, each to columns. Its struct: from, to the first channel, to
    the second, rows, whole pairs of pixels, whether there is one more, bytes from column to column,
    and from behind the last column to the next row."""
    asm = Asm("copy_x")
    given, low, high, rows, pairs, odd, step = (f"t{n}" for n in range(7))
    back, one, other, joined, selector = (f"a{n}" for n in range(1, 6))
    asm.compressed(True)
    for n, register in enumerate((given, low, high, rows, pairs, odd, step, back)):
        asm.lw(register, "a0", 4 * n)
    asm.li(selector, HIGH_HALVES)
    with asm.loop(1, rows):
        with asm.loop(0, pairs):
            asm.lw_post(one, given, 4)
            asm.lw_post(other, given, 4)
            zip_halves(asm, one, other, joined, selector)
            asm.sw_post(joined, low, step)
            asm.sw_post(one, high, step)
        asm.branch("beqz", odd, to="even")
        asm.lw_post(one, given, 4)
        asm("slli", other, one, 16)
        asm("srli", one, one, 16)
        asm("srli", other, other, 16)
        asm.sw_post(other, low, step)
        asm.sw_post(one, high, step)
        asm.label("even")
        asm("add", low, low, back)
        asm("add", high, high, back)
    asm("ret")
    asm.compressed(False)
    return asm.function("const struct copy_x *copy")


def copy_dy() -> str:
    """Of a pair of channels: all pairs of neighbours of some rows, the first and the last pixel
    with nothing beside them as well. Its struct: from, to the first channel, to the second, rows,
    pixels but one, and bytes of a row that are left out."""
    asm = Asm("copy_dy")
    given, low, high, rows, count, skip, one = (f"t{n}" for n in range(7))
    other, joined, selector = "a1", "a2", "a3"
    asm.compressed(True)
    for n, register in enumerate((given, low, high, rows, count, skip)):
        asm.lw(register, "a0", 4 * n)
    asm.li(selector, HIGH_HALVES)
    with asm.loop(1, rows):
        asm.lw_post(one, given, 4)
        asm("srli", other, one, 16)
        asm("slli", joined, one, 16)
        asm("slli", other, other, 16)
        asm.sw_post(joined, low, 4)
        asm.sw_post(other, high, 4)
        with asm.loop(0, count):
            asm.lw_post(other, given, 4)
            zip_halves(asm, one, other, joined, selector)
            asm.sw_post(joined, low, 4)
            asm.sw_post(one, high, 4)
            asm.mv(one, other)
        asm("slli", joined, one, 16)
        asm("srli", one, one, 16)
        asm("srli", joined, joined, 16)
        asm.sw_post(joined, low, 4)
        asm.sw_post(one, high, 4)
        asm("add", low, low, skip)
        asm("add", high, high, skip)
    asm("ret")
    asm.compressed(False)
    return asm.function("const struct copy_dy *copy")
