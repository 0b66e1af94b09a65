"""Depthwise convolution with 3 x 3 taps and stride 2: forward and weight gradient.

Every other row of inputs is the middle of one row of outputs; those between are the last of one and
the first of the next, which takes over the registers pixel by pixel. So the loop has two rows, and
one set of registers is enough.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.depthwise.cost import cost as cost
from gradlet.kernels.xpulp.depthwise.depthwise import (
    FIRST,
    KINDS,
    LAST,
    MIDDLE,
    Strip,
    store,
    values,
)

STRIDE = 2


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    last = mode.endswith("_hwc")
    if mode.startswith("weight_grad"):
        return values(mode, [_WeightStrip(*kind, STRIDE, last) for kind in KINDS])
    return values(mode, [_MapStrip(*kind, epilogue, last) for kind in KINDS])


class _StridedStrip(Strip):
    def channel(self) -> None:
        asm = self.asm
        self.begin()
        self.jump("beqz", "above", "top")
        self.row(first=True)
        asm.branch("j", to="begun")
        asm.label("top")
        self.first_row()
        asm.label("begun")
        self.jump("beqz", "turns", "end")
        with asm.loop(0, self.temps[0]):
            self.row(middle=True)
            self.row(last=True, first=True)
        asm.label("end")
        self.row(middle=True)
        self.jump("beqz", "below", "bottom")
        self.row(last=True)
        asm.branch("j", to="done")
        asm.label("bottom")
        self.last_row()
        asm.label("done")
        self.end()
        self.next_channel()

    def rare(self) -> None:
        pass

    @abstractmethod
    def begin(self) -> None:
        """Of a channel."""

    @abstractmethod
    def first_row(self) -> None:
        """Nothing is above."""

    def last_row(self) -> None:
        """Nothing is below."""

    def end(self) -> None:
        """Of a channel."""

    def row(self, *, last: bool = False, middle: bool = False, first: bool = False) -> None:
        """One row of inputs; `last` ends one row of outputs, `first` begins another."""
        for column, here, completed in self.stream():
            for line in [LAST] * last + [MIDDLE] * middle:
                for pixel in self.met(column):
                    self.multiply(line, pixel, column, here)
            for pixel in completed:
                self.turn(pixel, here, last=last, first=first)

    @abstractmethod
    def multiply(self, line: int, pixel: int, column: int, here: dict[int, str]) -> None:
        """One input with one tap."""

    @abstractmethod
    def turn(self, pixel: int, here: dict[int, str], *, last: bool, first: bool) -> None:
        """All inputs of a pixel are there: it is over, or begins, or one after the other."""


class _MapStrip(_StridedStrip):
    def __init__(self, width: int, left: int, right: int, epilogue: str, last: bool) -> None:
        super().__init__(width, left, right, STRIDE, last)
        self.epilogue = epilogue
        self.bias, self.spare = self.inputs.pop(), self.inputs.pop()

    def begin(self) -> None:
        asm, (pointer, step) = self.asm, self.temps
        self.get(pointer, "w")
        self.get(step, "b")
        for register in self.all_taps:
            asm.lw_post(register, pointer, 4)
        self.put_weights(pointer, self.bias)
        self.get(pointer, "b_step")
        asm.lw(self.bias, step)
        asm("add", step, step, pointer)
        self.put(step, "b")

    def first_row(self) -> None:
        for register in self.one:
            self.asm.mv(register, self.bias)

    def last_row(self) -> None:
        for pixel in range(self.width):
            self._store(pixel)

    def multiply(self, line: int, pixel: int, column: int, here: dict[int, str]) -> None:
        total, tap = self.one[pixel], self.taps[line][column - STRIDE * pixel]
        self.asm("fmadd.s", total, here[column], tap, total)

    def turn(self, pixel: int, here: dict[int, str], *, last: bool, first: bool) -> None:
        if last:
            self._store(pixel)
        start = self.bias
        for column in self.around(pixel) if first else ():
            tap = self.taps[FIRST][column - STRIDE * pixel]
            self.asm("fmadd.s", self.one[pixel], here[column], tap, start)
            start = self.one[pixel]

    def _store(self, pixel: int) -> None:
        store(self, self.one[pixel], self.y_after(pixel))


class _WeightStrip(_StridedStrip):
    def begin(self) -> None:
        for register in self.all_taps:
            self.asm.mv(register, "zero")

    def first_row(self) -> None:
        for pixel in range(self.width):
            self._next_gradient(pixel)

    def multiply(self, line: int, pixel: int, column: int, here: dict[int, str]) -> None:
        tap = self.taps[line][column - STRIDE * pixel]
        self.asm("fmadd.s", tap, here[column], self.one[pixel], tap)

    def turn(self, pixel: int, here: dict[int, str], *, last: bool, first: bool) -> None:
        if first:
            self._next_gradient(pixel)
            self.asm("nop")
        for column in self.around(pixel) if first else ():
            self.multiply(FIRST, pixel, column, here)

    def _next_gradient(self, pixel: int) -> None:
        self.asm.lw_post(self.one[pixel], self.y, self.y_after(pixel))

    def end(self) -> None:
        asm, (pointer, value) = self.asm, self.temps
        self.add_old("fresh")
        for register in self.all_taps:
            asm.sw_post(register, pointer, 4)
        self.put_weights(pointer, value)
