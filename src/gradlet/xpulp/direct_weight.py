"""Gradient of convolution weights: 2 output channels and several rows of taps in registers.

All sums of a unit (2 channels, `lines` rows of the kernel, or as many input channels where the
kernel is a single tap) stay in registers while the image goes by, row by row. In a row, each input
and each output gradient is loaded once: a step takes `stride` new columns of inputs and one new
gradient per channel, which replaces the oldest one. Rows at the top and at the bottom of the image
lack the first or the last line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradlet.xpulp.asm import Asm

CHANNELS = 2
REGISTERS = (
    *(f"s{i}" for i in range(12)),
    *("ra", "gp", "tp", *(f"t{i}" for i in range(7)), *(f"a{i}" for i in range(8))),
)
FIELDS = (
    *("back0", "back1", "back2", "top", "full", "bottom", "turns"),
    *("line", "x", "d0", "d1", "x_next", "w0", "w1", "w_next", "count", "fresh", "last"),
    *("rate", "decay", "caller"),
)
"""All fields behind the sums, a word each."""


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    shape = params["kernel"], params["stride"], params["lines"]
    sides = [(left, right) for left in (0, params["edge"]) for right in (0, params["edge"])]
    period = _Unit(*shape, 0, 0, 0, epilogue).period
    keys = [(*side, rest) for rest in range(period) for side in sides]
    units = {key: _Unit(*shape, *key, epilogue) for key in keys}
    some = units[keys[0]]
    over = params["kernel"] - params["stride"]
    return {
        "sums": len(some.all_sums),
        "period": period,
        "head": some.window - 1,
        "tails": [max(0, -(-(over - right) // params["stride"])) for right in (0, params["edge"])],
        "functions": "\n\n".join(unit.function() for unit in units.values()),
        "table": ", ".join(units[key].name for key in keys),
    }


class _Unit:
    """One function: some units one after the other, of each all rows; `rest` steps come before
    those that the loop takes by the period."""

    def __init__(
        self,
        kernel: int,
        stride: int,
        lines: int,
        left: int,
        right: int,
        rest: int,
        epilogue: str,
    ) -> None:
        self.epilogue = epilogue
        self.name = f"unit_{left}_{right}_{rest}"
        self.kernel, self.stride, self.lines, self.rest = kernel, stride, lines, rest
        self.left, self.right = left, right
        self.asm = Asm(self.name)
        self.window = -(-kernel // stride)
        self.held = max(1, self.window - 1)
        columns = min(kernel, stride)
        self.period = self.held * (2 if self.held * columns % 2 else 1)
        names = iter(REGISTERS)
        self.sums = [
            [[next(names) for _ in range(CHANNELS)] for _ in range(kernel)] for _ in range(lines)
        ]
        self.x, self.line, self.back, *self.d = (next(names) for _ in range(5))
        self.gradients = [[next(names) for _ in range(CHANNELS)] for _ in range(self.held)]
        self.inputs = list(names)
        self.temps = (self.inputs[-2], self.inputs[-1])

    @property
    def all_sums(self) -> list[str]:
        return [register for line in self.sums for tap in line for register in tap]

    def function(self) -> str:
        asm = self.asm
        asm.compressed(True)
        self._begin()
        asm.label("unit")
        self._begin_unit()
        if self.kernel > 1:
            self._rows("top", range(1, self.lines))
        self._rows("full", range(self.lines))
        if self.kernel > 1:
            self._rows("bottom", range(self.lines - 1))
        self._end_unit()
        asm.branch("bnez", self.temps[0], to="unit")
        asm.label("out")
        asm.leave(self._place("caller"))
        self._rare()
        asm.compressed(False)
        return asm.function("struct unit *unit")

    def _get(self, register: str, field: str) -> None:
        self.asm.lw(register, "sp", self._place(field))

    def _put(self, register: str, field: str) -> None:
        self.asm.sw(register, "sp", self._place(field))

    def _place(self, field: str) -> int:
        return 4 * (len(self.all_sums) + FIELDS.index(field))

    def _begin(self) -> None:
        self.asm.enter(self._place("caller"))
        self._get(self.line, "line")
        self.asm("nop")
        self.asm("sub", self.back, "zero", self.line)

    def _begin_unit(self) -> None:
        asm = self.asm
        self._get(self.d[0], "fresh")
        self._get(self.x, "x")
        asm.branch("beqz", self.d[0], to="old")
        for register in self.all_sums:
            asm.mv(register, "zero")
        asm.label("begun")
        for register, field in zip(self.d, ("d0", "d1"), strict=True):
            self._get(register, field)

    def _end_unit(self) -> None:
        """The sums go where they belong, unless C wants them; then the next input channel."""
        asm = self.asm
        last, step = self.d
        self._get(last, "last")
        self._get(step, "x_next")
        asm.branch("beqz", last, to="keep")
        self._get(self.x, "x")
        pointers = self.inputs[:2]
        asm("add", self.x, self.x, step)
        self._put(self.x, "x")
        for pointer, field in zip(pointers, ("w0", "w1"), strict=True):
            self._get(pointer, field)
        self._store(pointers)
        self._get(step, "w_next")
        self._get(self.x, "count")
        for pointer, field in zip(pointers, ("w0", "w1"), strict=True):
            asm("add", pointer, pointer, step)
            self._put(pointer, field)
        asm("addi", self.temps[0], self.x, -1)
        self._put(self.temps[0], "count")

    def _store(self, pointers: Sequence[str]) -> None:
        asm, old = self.asm, self.d
        rate, decay = self.gradients[0]
        if self.epilogue == "sgd":
            self._get(rate, "rate")
            self._get(decay, "decay")
        for values in (tap for line in self.sums for tap in line):
            pairs = list(zip(values, old, pointers, strict=True))
            for _, there, pointer in pairs if self.epilogue else ():
                asm.lw(there, pointer)
            for value, there, _ in pairs if self.epilogue else ():
                if self.epilogue == "sgd":
                    asm("fmadd.s", value, decay, there, value)
                else:
                    asm("fadd.s", value, there, value)
            for value, there, _ in pairs if self.epilogue == "sgd" else ():
                asm("fnmsub.s", value, rate, value, there)
            for value, _, pointer in pairs:
                asm.sw_post(value, pointer, 4)

    def _rare(self) -> None:
        """Sums that come from the image before, or are left for the next one or for C."""
        asm = self.asm
        asm.label("old")
        for index, register in enumerate(self.all_sums):
            asm.lw(register, "sp", 4 * index)
        asm.branch("j", to="begun")
        asm.label("keep")
        for index, register in enumerate(self.all_sums):
            asm.sw(register, "sp", 4 * index)
        asm.branch("j", to="out")

    def _rows(self, field: str, lines: range) -> None:
        """As many rows as that field says, with these lines of the kernel."""
        if not lines:
            return
        asm, (count, _) = self.asm, self.temps
        self._get(count, field)
        asm("nop")
        asm.branch("beqz", count, to=f"no_{field}")
        with asm.loop(1, count):
            row = _Row(self, lines)
            first = self.window - 1 + self.rest
            for step in range(first):
                row.step(step)
            self._get(count, "turns")
            asm("nop")
            asm.branch("beqz", count, to=f"few_{field}")
            with asm.loop(0, count):
                for step in range(first, first + self.period):
                    row.step(step, body=True)
            asm.label(f"few_{field}")
            for step in range(self.window - 1):
                row.step(first + step, tail=step + 1)
            self._get(count, f"back{row.end}")
            asm("nop")
            asm("add", self.x, self.x, count)
        if field == "top":
            asm("add", self.x, self.x, self.back)
        asm.label(f"no_{field}")


class _Row:
    """Writes the steps of a row; knows whether the pointer is at the first or at the last line."""

    def __init__(self, unit: _Unit, lines: range) -> None:
        self.unit, self.lines = unit, lines
        self.low = False
        self.free = list(unit.inputs)
        self.columns: dict[int, dict[int, str]] = {}  # the registers of a column by line

    @property
    def end(self) -> int:
        """Where the pointer is left: at the first line, at the last but one, at the last."""
        if not self.low or len(self.lines) == 1:
            return 0
        return 2 if len(self.lines) == self.unit.lines else 1

    def step(self, step: int, *, body: bool = False, tail: int = 0) -> None:
        """tail: so many steps behind the last gradient. Any other step has a new one."""
        unit = self.unit
        pairs = sorted(self._pairs(step, body, tail))
        places = sorted({column for _, column, _ in pairs})
        loaded = bool(tail)
        for index, (pixel, column, tap) in enumerate(pairs):
            if pixel == step and not loaded:
                self._load_gradients(step)
                loaded = True
            if column not in self.columns:
                self._load_column(column, next((c for c in places if c > column), unit.stride))
            values = unit.gradients[pixel % unit.held]
            for line, register in self.columns[column].items():
                for total, value in zip(unit.sums[line][tap], values, strict=True):
                    unit.asm("fmadd.s", total, register, value, total)
            if all(later != column for _, later, _ in pairs[index + 1 :]):
                self.free += self.columns.pop(column).values()
        if not loaded:
            self._load_gradients(step)

    def _pairs(self, step: int, body: bool, tail: int) -> Iterator[tuple[int, int, int]]:
        """(pixel, column, tap) of the columns that are new in this step, oldest pixel first."""
        unit = self.unit
        for column in range(unit.stride):
            if tail:
                behind = unit.kernel - 1 - unit.stride - unit.right
                there = (tail - 1) * unit.stride + column <= behind
            else:
                there = body or step * unit.stride + column >= unit.left
            for age in range(tail, unit.window if body or tail else min(unit.window, step + 1)):
                tap = age * unit.stride + column
                if there and tap < unit.kernel:
                    yield step - age, column, tap

    def _load_gradients(self, step: int) -> None:
        registers = self.unit.gradients[step % self.unit.held]
        for register, pointer in zip(registers, self.unit.d, strict=True):
            self.unit.asm.lw_post(register, pointer, 4)

    def _load_column(self, column: int, following: int) -> None:
        """Down and up in turn; the last load of a column goes on to the one that follows."""
        unit, order = self.unit, list(reversed(self.lines)) if self.low else list(self.lines)
        self.columns[column] = {line: self.free.pop(0) for line in order}
        for line, register in self.columns[column].items():
            step: int | str = unit.back if self.low else unit.line
            if line == order[-1]:
                step = 4 * (following - column)
            unit.asm.lw_post(register, unit.x, step)
        if len(order) > 1:
            self.low = not self.low
