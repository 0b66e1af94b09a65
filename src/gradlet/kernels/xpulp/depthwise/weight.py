"""Depthwise convolution with 3 x 3 taps: the gradient of its weights.

As in depthwise.py with other roles: rows of dy lie where the outputs were, the sums where the
weights were. There nothing moves for free, so the two sets of registers change roles, and the loop
has two rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradlet.kernels.xpulp.depthwise.depthwise import (
    FIRST,
    KERNEL,
    KINDS,
    LAST,
    MIDDLE,
    Strip,
    values,
)
from gradlet.kernels.xpulp.isa.asm import AssemblyError


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    last = mode.endswith("_hwc")
    return values(mode, [WeightStrip(*kind, epilogue == "sgd", last) for kind in KINDS])


class WeightStrip(Strip):
    """Sums of the weights; `odd` says that the loop is entered in its middle. Channels are special
    if there are rows above or below, if they do not lie one behind the other, or if sums go on from
    what is there."""

    def __init__(self, width: int, left: int, right: int, updates: bool, last: bool) -> None:
        super().__init__(width, left, right, last=last)
        self.updates = updates
        self.begun = set(self.all_taps)

    def before(self) -> None:
        self.bound_loop()

    def channel(self) -> None:
        asm, one, two, (count, flag, odd) = self.asm, self.one, self.two, self.inputs[:3]
        self.get(count, "turns")
        if not self.pixel:
            self.get(flag, "special")
            self.get(odd, "odd")
        for register in self.taps[LAST]:
            asm.mv(register, "zero")
        asm.iterations(0, count)
        if self.pixel:
            asm.branch("j", to="special")
        else:
            self._usual_rows(flag, odd)
        asm.label("enter")
        self.jump("beqz", "turns", "end")
        asm.label("loop")
        start = asm.count
        self._row(last=one, middle=two, first=one)
        asm.label("half")
        self._row(last=two, middle=one, first=two)
        asm.close("loop_end", start)
        asm.compressed(True)
        asm.label("end")
        self._row(last=one, middle=two)
        if self.pixel:
            asm.branch("j", to="special_end")
        else:
            self._usual_end()
        asm.label("done")

    def _usual_rows(self, flag: str, odd: str) -> None:
        """The first ones."""
        asm = self.asm
        asm.branch("bnez", flag, to="special")
        asm.branch("beqz", odd, to="even")
        self._first_rows(self.two, self.one)
        asm.branch("j", to="half")
        asm.label("even")
        self._first_rows(self.one, self.two)

    def _usual_end(self) -> None:
        asm, (pointer, flag) = self.asm, self.temps
        self.get(flag, "special")
        self.get(pointer, "w")
        asm.branch("bnez", flag, to="special_end")
        if self.updates:
            self._update(pointer)
        else:
            self._store(pointer)
        self.put(pointer, "w")
        self.get(flag, "count")
        asm("nop")
        asm("addi", flag, flag, -1)
        self.put(flag, "count")

    def _store(self, pointer: str) -> None:
        for register in self.all_taps:
            self.asm.sw_post(register, pointer, 4)

    def _update(self, pointer: str) -> None:
        """One step of SGD, three weights at a time so that no load is waited for."""
        asm, (rate, decay, *old) = self.asm, (*self.one, *self.two)[: 2 + KERNEL]
        self.get(rate, "rate")
        self.get(decay, "decay")
        for line in self.taps:
            for place, there in enumerate(old):
                asm.lw(there, pointer, 4 * place)
            for register, there in zip(line, old, strict=True):
                asm("fmadd.s", register, decay, there, register)
            for register, there in zip(line, old, strict=True):
                asm("fnmsub.s", register, rate, register, there)
            for register in line:
                asm.sw_post(register, pointer, 4)

    def rare(self) -> None:
        asm, one, two = self.asm, self.one, self.two
        asm.label("special")
        for register in (*self.taps[FIRST], *self.taps[MIDDLE]):
            asm.mv(register, "zero")
        self.jump("beqz", "odd", "special_even")
        self._special_rows("odd", two, one)
        asm.branch("j", to="half")
        asm.label("special_even")
        self._special_rows("even", one, two)
        asm.branch("j", to="enter")
        asm.label("special_end")
        self.jump("beqz", "below", "no_below")
        self._row(last=two)
        asm.label("no_below")
        pointer, value = self.temps
        self.add_old("all_fresh")
        if self.updates:
            self.get(value, "update")
            asm("nop")
            asm.branch("beqz", value, to="only_store")
            self._update(pointer)
            asm.branch("j", to="special_done")
            asm.label("only_store")
        self._store(pointer)
        asm.label("special_done")
        self.put_weights(pointer, value)
        self.next_channel()
        asm.branch("j", to="done")

    def _special_rows(self, name: str, a: Sequence[str], b: Sequence[str]) -> None:
        self.jump("beqz", "above", f"{name}_top")
        self._row(first=a)
        self.asm.branch("j", to=f"{name}_next")
        self.asm.label(f"{name}_top")
        self._load_row(a)
        self.asm.label(f"{name}_next")
        self._row(middle=a, first=b)

    def _first_rows(self, a: Sequence[str], b: Sequence[str]) -> None:
        """Nothing above: the sums of the first and the middle row of the kernel begin here."""
        self._load_row(a)
        self.begun = set(self.taps[LAST])
        self._row(middle=a, first=b)
        if self.begun != set(self.all_taps):
            raise AssemblyError("a tap is not met by the first row")

    def _load_row(self, row: Sequence[str]) -> None:
        for pixel, register in enumerate(row):
            self.asm.lw_post(register, self.y, self.y_after(pixel))

    def _row(
        self,
        last: Sequence[str] = (),
        middle: Sequence[str] = (),
        first: Sequence[str] = (),
    ) -> None:
        """One row of inputs, with up to three rows of dy; the first is loaded into `first`."""
        for column, here, completed in self.stream():
            if last:
                self._multiply(LAST, last, [(p, column) for p in self.met(column)], here)
            for pixel in completed if first else ():
                self.asm.lw_post(first[pixel], self.y, self.y_after(pixel))
            if middle:
                self._multiply(MIDDLE, middle, [(p, column) for p in self.met(column)], here)
            for pixel in completed if first else ():
                self._loaded(first[pixel])
                self._multiply(FIRST, first, [(pixel, c) for c in self.around(pixel)], here)

    def _loaded(self, register: str) -> None:
        """An output gradient is in this register now."""

    def _multiply(
        self, line: int, row: Sequence[str], pairs: list[tuple[int, int]], here: dict[int, str]
    ) -> None:
        for pixel, column in pairs:
            tap = self.taps[line][column - pixel]
            self.asm("fmadd.s", tap, here[column], row[pixel], tap if self._known(tap) else "zero")

    def _known(self, tap: str) -> bool:
        """Whether a sum has begun; it has from now on."""
        known = tap in self.begun
        self.begun.add(tap)
        return known
