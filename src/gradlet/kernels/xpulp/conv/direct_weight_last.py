"""Gradient of convolution weights with channels last: units as in direct_weight.py, whose pixels
and taps are far apart. The two gradients of a pixel lie side by side. A column of inputs is always
read downwards, and the last load of it goes to the top of the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.conv.direct_row import Row
from gradlet.kernels.xpulp.conv.direct_weight import FIELDS, Unit, units


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    made, facts = units(LastUnit, epilogue, params)
    return {**facts, **made, "last": True}


class LastUnit(Unit):
    """`back` is what leads from the last input of a column to the first of the next."""

    fields = (*FIELDS, "next", "d_step", "tap", "w_back")

    def row_of(self, lines: range) -> Row:
        return LastRow(self, lines)

    def _steps(self) -> None:
        self._get(self.line, "line")
        self._get(self.back, "next")

    def _begin_unit(self) -> None:
        pointer, step = self.d
        self._get(pointer, "d0")
        self._get(step, "d_step")
        self._get(self.x, "x")
        for _, register in self.places:
            self.asm.mv(register, "zero")
        self.asm("addi", pointer, pointer, 4)  # at the second one: the first is wanted sooner

    def _row_loop(self, count: str, lines: range, name: str) -> None:
        fewer = self.lines - len(lines)
        for _ in range(fewer):
            self.asm("add", self.back, self.back, self.line)
        super()._row_loop(count, lines, name)
        for _ in range(fewer):
            self.asm("sub", self.back, self.back, self.line)

    def _store(self) -> None:
        asm, (at, step) = self.asm, self.temps
        second, back = self.inputs[0], self.x
        self._get(at, "w0")
        self._get(second, "w_apart")
        self._get(step, "tap")
        self._get(back, "w_back")
        asm("add", second, second, at)
        for first_sum, second_sum in self.taps:
            asm.sw_post(first_sum, at, step)
            asm.sw_post(second_sum, second, step)
        asm("add", at, at, back)
        self._put(at, "w0")

    def _update(self) -> None:
        """The weights of the one unit that is kept."""
        asm, free = self.asm, [*(register for _, register in self.places), *self.inputs]
        source, w0, w1, tap, back, rate, decay, *work = free[:11]
        asm("addi", source, "sp", 4 * len(self.fields))
        for register, field in ((w0, "w0"), (w1, "w_apart"), (tap, "tap"), (back, "w_back")):
            self._get(register, field)
        self._put(source, "slot")
        if self.epilogue == "sgd":
            self._get(rate, "rate")
            self._get(decay, "decay")
        asm("add", w1, w1, w0)
        with asm.loop(0, len(self.taps)):
            self._update_taps(source, (w0, w1), tap, (rate, decay), work)
        asm("add", w0, w0, back)
        self._put(w0, "w0")


class LastRow(Row):
    def end_of(self, tail: int) -> int:
        return 0

    def _load_gradients(self, step: int) -> None:
        asm, (pointer, apart) = self.unit.asm, self.unit.d
        first, second = self.unit.gradients[step % self.unit.held]
        asm.lw(first, pointer, -4)
        asm.lw_post(second, pointer, apart)

    def _load_column(self, column: int, following: int) -> None:
        unit = self.unit
        self.columns[column] = {line: self.free.pop(0) for line in self.lines}
        for line, register in self.columns[column].items():
            step = unit.back if line == self.lines[-1] else unit.line
            unit.asm.lw_post(register, unit.x, step)
