"""A row of the image for the gradient of convolution weights, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradlet.kernels.xpulp.conv.direct_weight import Unit


class Row:
    """Writes the steps of a row; knows whether the pointer is at the first or at the last line."""

    def __init__(self, unit: Unit, lines: range) -> None:
        self.unit, self.lines = unit, lines
        self.low = False
        self.free = list(unit.inputs)
        self.columns: dict[int, dict[int, str]] = {}  # the registers of a column by line
        self.fetched = ""  # the register with the field that a step was to fetch

    @property
    def end(self) -> int:
        """Where the pointer is left: at the first line, at the last but one, at the last."""
        return self._place(self.low)

    def end_of(self, tail: int) -> int:
        """The same behind a step of the tail that is still to come."""
        columns = {column for _, column, _ in self._pairs(0, False, tail)}
        return self._place(self.low ^ (len(columns) % 2 == 1))

    def _place(self, low: bool) -> int:
        if not low or len(self.lines) == 1:
            return 0
        return 2 if len(self.lines) == self.unit.lines else 1

    def step(self, step: int, *, body: bool = False, tail: int = 0, fetch: str = "") -> None:
        """tail: so many steps behind the last gradient. Any other step has a new one. fetch: a
        field that is wanted behind the step, into a register that is not needed until its end."""
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
                if fetch and index == len(pairs) - 1 and not self.fetched:
                    self.fetched = unit._load_into(register, fetch)
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
