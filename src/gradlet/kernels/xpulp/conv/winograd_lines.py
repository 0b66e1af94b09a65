"""The transforms of maps for convolutions by Winograd's algorithm: lines, tile after tile."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from gradlet.kernels.xpulp.conv.winograd_model import TAPS
from gradlet.kernels.xpulp.isa.asm import SAVED, Asm

REGISTERS = ("ra", "gp", "tp", *(f"t{i}" for i in range(7)), *SAVED)
RUN = "sp"
ORDERS = {2: (1, 2, 0, 3), 4: (1, 2, 3, 4, 0, 5)}
"""In which phases lie in memory and are summed up, by the number of outputs: first the one that all
outputs have a part of, so that its sums can begin with the bias."""


def bits(number: float) -> int:
    """Of a number in single precision."""
    return int.from_bytes(struct.pack("<f", number), "little")


LINE_FIELDS = ("x", "to", "lines", "width", "tiles", "tile", "left", "phase", "caller", "sp")


class Lines:
    """One function: the transform of some lines of a map. A tile begins with the last two columns
    of the one before; of the last one so many columns are missing, and zero."""

    kind = "lines"

    def __init__(self, outputs: int, missing: int) -> None:
        self.outputs, self.missing = outputs, missing
        self.phases = outputs + TAPS - 1
        self.name = f"{self.kind}_{missing}"
        self.asm = Asm(self.name)
        pool = iter((*(f"a{i}" for i in range(8)), *REGISTERS))
        self.x, self.line, self.width, self.left, self.tiles, self.tile, self.back = (
            next(pool) for _ in range(7)
        )
        self.to = [next(pool) for _ in range(self.phases)]
        self.columns = [next(pool) for _ in range(self.phases)]
        self.made = [next(pool) for _ in range(4)]
        self.two, self.four, self.five = (next(pool) for _ in range(3))

    def function(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.enter(4 * LINE_FIELDS.index("caller"))
        lines = self.made[0]
        self._begin(lines)
        with asm.loop(1, lines):
            asm.mv(self.x, self.line)
            self._first()
            if self.missing:
                asm.branch("beqz", self.tiles, to="last")
            with asm.loop(0, self.tiles):
                self._tile(0)
            asm.label("last")
            if self.missing:
                self._tile(self.missing)
            for pointer in self.to:
                asm("add", pointer, pointer, self.back)
            asm("add", self.line, self.line, self.width)
        asm.leave(4 * LINE_FIELDS.index("caller"))
        asm.compressed(False)
        return asm.function("struct lines *run")

    def _first(self) -> None:
        """The two columns that the first tile has before its own; so many of them are zeros."""
        asm, (first, second, *_) = self.asm, self.columns
        asm.mv(first, "zero")
        asm.mv(second, "zero")
        asm.branch("bnez", self.left, to="second")
        asm.lw_post(first, self.x, 4)
        asm.label("second")
        asm.beq_imm(self.left, 2, to="begun")
        asm.lw_post(second, self.x, 4)
        asm.label("begun")

    def _begin(self, lines: str) -> None:
        asm = self.asm
        for register, field in (
            *((self.line, "x"), (self.width, "width"), (self.left, "left"), (self.tile, "tile")),
            *((self.tiles, "tiles"), (self.to[0], "to"), (lines, "lines")),
        ):
            self.asm.lw(register, RUN, 4 * LINE_FIELDS.index(field))
        phase = self.made[1]
        asm.lw(phase, RUN, 4 * LINE_FIELDS.index("phase"))
        for before, pointer in zip(self.to, self.to[1:], strict=False):
            asm("add", pointer, before, phase)
        asm("mul", self.back, self.tiles, self.tile)
        asm("addi", self.back, self.back, -4)
        asm("sub", self.back, "zero", self.back)
        if self.missing:
            asm("addi", self.tiles, self.tiles, -1)
        for register, number in ((self.two, 2.0), (self.four, 4.0), (self.five, 5.0)):
            asm.li(register, bits(number))

    def _tile(self, missing: int) -> None:
        asm, known = self.asm, self.phases - missing
        for register in self.columns[2:known]:
            asm.lw_post(register, self.x, 4)
        if known <= 3:
            asm("nop")  # what was loaded last is used at once
        d = [*self.columns[:known], *["zero"] * missing]
        if self.outputs == 2:
            self._two(d)
        else:
            self._four(d)
        if not missing:
            for at, register in enumerate(self.columns[:2]):
                asm.mv(register, self.columns[self.outputs + at])

    def _put(self, made: Mapping[int, str]) -> None:
        for phase, register in made.items():
            pointer = self.to[ORDERS[self.outputs].index(phase)]
            self.asm.sw_post(register, pointer, self.tile)

    def _two(self, d: list[str]) -> None:
        asm, made = self.asm, self.made
        asm("fsub.s", made[0], d[0], d[2])
        asm("fadd.s", made[1], d[1], d[2])
        asm("fsub.s", made[2], d[2], d[1])
        asm("fsub.s", made[3], d[3], d[1])
        self._put(dict(enumerate(made)))

    def _four(self, d: list[str]) -> None:
        asm, (one, other, even, odd) = self.asm, self.made
        asm("fnmsub.s", even, d[2], self.four, d[4])
        asm("fnmsub.s", odd, d[1], self.four, d[3])
        asm("fadd.s", one, even, odd)
        asm("fsub.s", other, even, odd)
        self._put({1: one, 2: other})
        asm("fsub.s", even, d[4], d[2])
        asm("fsub.s", odd, d[3], d[1])
        asm("fmadd.s", one, odd, self.two, even)
        asm("fnmsub.s", other, odd, self.two, even)
        self._put({3: one, 4: other})
        asm("fnmsub.s", one, d[2], self.five, d[4])
        asm("fnmsub.s", other, d[3], self.five, d[5])
        asm("fmadd.s", one, d[0], self.four, one)
        asm("fmadd.s", other, d[1], self.four, other)
        self._put({0: one, 5: other})


class GradientLines(Lines):
    """The same of the gradient of a result, whose tiles do not overlap."""

    kind = "gradient_lines"

    def _first(self) -> None:
        pass

    def _tile(self, missing: int) -> None:
        known = self.outputs - missing
        for register in self.columns[:known]:
            self.asm.lw_post(register, self.x, 4)
        if known == 1:
            self.asm("nop")  # what was loaded last is used at once
        d = [*self.columns[:known], *["zero"] * missing]
        if self.outputs == 2:
            self._two(d)
        else:
            self._four(d)

    def _two(self, d: list[str]) -> None:
        (one, other, *_) = self.made
        self.asm("fadd.s", one, d[0], d[1])
        self.asm("fsub.s", other, d[0], d[1])
        self._put({0: d[0], 1: one, 2: other, 3: d[1]})

    def _four(self, d: list[str]) -> None:
        asm, (one, other, even, odd) = self.asm, self.made
        asm("fadd.s", even, d[0], d[2])
        asm("fadd.s", odd, d[1], d[3])
        asm("fadd.s", one, even, odd)
        asm("fsub.s", other, even, odd)
        self._put({0: d[0], 5: d[3], 1: one, 2: other})
        asm("fmadd.s", even, d[2], self.four, d[0])
        asm("fmadd.s", odd, d[3], self.four, d[1])
        asm("fmadd.s", one, odd, self.two, even)
        asm("fnmsub.s", other, odd, self.two, even)
        self._put({3: one, 4: other})
