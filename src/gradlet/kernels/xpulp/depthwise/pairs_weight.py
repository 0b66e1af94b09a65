"""Depthwise convolution with 3 x 3 taps and channels in pairs: the gradient of its weights, one
channel of a pair after the other.

As in weight.py; of the output gradients the other channel is taken away, so that a product of words
is that of one channel. Sums are added to those in memory, which C makes weights of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradlet.kernels.xpulp.conv.direct_pair import halves_of
from gradlet.kernels.xpulp.depthwise.depthwise import KINDS, values
from gradlet.kernels.xpulp.depthwise.pairs import TwoRows
from gradlet.kernels.xpulp.depthwise.weight import WeightStrip
from gradlet.kernels.xpulp.isa.narrow import Narrow


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    halves = halves_of(params["element"])
    return values(mode, [PairWeightStrip(*kind, halves) for kind in KINDS])


class PairWeightStrip(TwoRows, WeightStrip):
    """The field `fresh` is a mask that leaves a half of a word."""

    def __init__(self, width: int, left: int, right: int, halves: Narrow) -> None:
        WeightStrip.__init__(self, width, left, right, False, False)
        self.halves, self.mask = halves, self.inputs.pop()

    def before(self) -> None:
        self.get(self.mask, "fresh")
        super().before()

    def load_taps(self) -> None:
        for register in self.all_taps:
            self.asm.mv(register, "zero")

    def begin_row(self, now: Sequence[str]) -> None:
        self._load_row(now)
        for register in now:
            self._loaded(register)

    def finish(self) -> None:
        self._row(last=self.one, middle=self.two)
        self.jump("bnez", "below", "below")
        self.asm.label("done")
        self._add_sums()

    def row_below(self) -> None:
        self._row(last=self.two)

    def _row(
        self, last: Sequence[str] = (), middle: Sequence[str] = (), first: Sequence[str] = ()
    ) -> None:
        WeightStrip._row(self, last, middle, first)

    def _loaded(self, register: str) -> None:
        self.asm("and", register, register, self.mask)

    def _multiply(
        self, line: int, row: Sequence[str], pairs: list[tuple[int, int]], here: dict[int, str]
    ) -> None:
        for pixel, column in pairs:
            total = self.taps[line][column - pixel]
            self.halves.dot(self.asm, total, here[column], row[pixel])

    def _add_sums(self) -> None:
        asm, pointer = self.asm, self.inputs[0]
        others = [*self.one, *self.two, *self.inputs[1:]]
        self.get(pointer, "w")
        asm("nop")
        for place, there in enumerate(others[: len(self.all_taps)]):
            asm.lw(there, pointer, 4 * place)
        for place, (total, there) in enumerate(zip(self.all_taps, others, strict=False)):
            asm("fadd.s", total, there, total)
            asm.sw(total, pointer, 4 * place)
