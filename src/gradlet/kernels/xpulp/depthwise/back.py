"""Depthwise convolution with 3 x 3 taps, stride 2 and padding 1: the gradient of its input.

A row of dy makes an even row of dx alone, ends the odd row above it and begins the one below. A
strip is `cells` pixels of dy wide, twice that in dx; an odd pixel needs the next dy as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradlet.kernels.xpulp.depthwise.depthwise import KERNEL, REGISTERS, RUN, store
from gradlet.kernels.xpulp.isa.asm import Asm

CELLS = range(1, 5)
INSIDE, EVEN, ODD = 0, 1, 2
"""How a strip ends: with another behind it, or with an image of even or odd width."""
FIELDS = (
    *("x", "y", "w", "turns", "below", "count", "x_step", "y_step"),
    *("pixel", "x_next", "y_next", "w_next", "caller"),
)
"""Those of the line before the last with channels last: how far pixels are apart, and channels."""


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    last = mode.endswith("_hwc")
    strips = [_Strip(c, kind, epilogue, last) for c in CELLS for kind in (INSIDE, EVEN, ODD)]
    return {
        "last": last,
        "functions": "\n\n".join(strip.function() for strip in strips),
        "table": ", ".join(f"(uintptr_t){strip.name}" for strip in strips),
        "widest": CELLS[-1],
    }


class _Strip:
    def __init__(self, cells: int, kind: int, epilogue: str, last: bool) -> None:
        self.name = f"strip_{cells}_{kind}"
        self.asm, self.epilogue = Asm(self.name), epilogue
        self.width = 2 * cells - (kind == ODD)
        names = iter(REGISTERS)
        self.given = [next(names) for _ in range(cells + (kind == INSIDE))]
        self.odd = [next(names) for _ in range(self.width)]
        self.taps = [[next(names) for _ in range(KERNEL)] for _ in range(KERNEL)]
        self.x, self.y, self.x_step, self.y_step = (next(names) for _ in range(4))
        self.even, self.spare = next(names), next(names)
        self.pixel = next(names) if last else ""

    def function(self) -> str:
        asm, count = self.asm, self.even
        asm.compressed(True)
        asm.enter(4 * FIELDS.index("caller"))
        for register, field in (
            *((self.x, "x"), (self.y, "y")),
            *((self.x_step, "x_step"), (self.y_step, "y_step")),
            *([(self.pixel, "pixel")] if self.pixel else []),
        ):
            self._get(register, field)
        asm.label("channel")
        self._load_taps()
        self._row(first=True)
        self._get(count, "turns")
        asm("nop")
        asm.branch("beqz", count, to="end")
        with asm.loop(0, count):
            self._row(first=False)
        asm.label("end")
        self._get(count, "below")
        asm("nop")
        asm.branch("beqz", count, to="done")
        for pixel, register in enumerate(self.odd):
            self._store(register, pixel)
        asm.label("done")
        for pointer, field in ((self.x, "x_next"), (self.y, "y_next")) if self.pixel else ():
            self._get(self.spare, field)
            asm("nop")
            asm("add", pointer, pointer, self.spare)
        self._get(count, "count")
        asm("nop")
        asm("addi", count, count, -1)
        self._put(count, "count")
        asm.branch("bnez", count, to="channel")
        asm.leave(4 * FIELDS.index("caller"))
        asm.compressed(False)
        return asm.function("struct run *run")

    def _get(self, register: str, field: str) -> None:
        self.asm.lw(register, RUN, 4 * FIELDS.index(field))

    def _put(self, register: str, field: str) -> None:
        self.asm.sw(register, RUN, 4 * FIELDS.index(field))

    def _load_taps(self) -> None:
        pointer = self.even
        self._get(pointer, "w")
        self.asm("nop")
        for register in (register for line in self.taps for register in line):
            self.asm.lw_post(register, pointer, 4)
        if self.pixel:
            self._get(self.spare, "w_next")
            self.asm("nop")
            self.asm("add", pointer, pointer, self.spare)
        self._put(pointer, "w")

    def _row(self, *, first: bool) -> None:
        """One row of dy; above the first there is nothing to end."""
        asm = self.asm
        for index, register in enumerate(self.given):
            step = self.x_step if index == len(self.given) - 1 else self.pixel or 4
            asm.lw_post(register, self.x, step)
        if len(self.given) == 1:
            asm("nop")
        for pixel, total in enumerate(self.odd) if not first else ():
            self._sum(0, pixel, total, total)
            self._store(total, pixel)
        for pixel in range(self.width):
            self._sum(1, pixel, self.even, "zero")
            self._store(self.even, pixel)
        for pixel, total in enumerate(self.odd):
            self._sum(2, pixel, total, "zero")

    def _sum(self, line: int, pixel: int, total: str, start: str) -> None:
        for given, tap in self._meets(pixel):
            self.asm("fmadd.s", total, self.given[given], self.taps[line][tap], start)
            start = total

    def _meets(self, pixel: int) -> Iterator[tuple[int, int]]:
        """(dy, tap) of a pixel of dx."""
        cell = pixel // 2
        if pixel % 2 == 0:
            yield cell, 1
            return
        yield cell, 2
        if cell + 1 < len(self.given):
            yield cell + 1, 0

    def _store(self, register: str, pixel: int) -> None:
        store(self, register, self.y_step if pixel == self.width - 1 else self.pixel or 4)
