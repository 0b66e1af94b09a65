"""Depthwise convolution with 3 x 3 taps and channels in pairs: the strips of depthwise.py, one
channel of a pair after the other.

The weight of the other channel is zero, so that a product of words is that of one channel, and sums
are single precision; results are stored as halves. Nothing moves for free here, so the two sets of
sums change roles, and the loop has two rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gradlet.kernels.xpulp.conv.direct_pair import halves_of
from gradlet.kernels.xpulp.depthwise.depthwise import FIRST, KINDS, LAST, MIDDLE, Strip, values
from gradlet.kernels.xpulp.isa.narrow import Narrow, load_half, store_half_post


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    halves = halves_of(params["element"])
    back = mode.startswith("input_grad")
    strips = [PairStrip(*kind, back, epilogue, halves) for kind in KINDS]
    return {**values(mode, strips), "back": back}


class TwoRows(Strip):
    """A loop over two rows, which is entered in its middle where `odd` says so."""

    def before(self) -> None:
        self.bound_loop()

    def channel(self) -> None:
        """The last row of the loop of a map begins one row of outputs too many; nobody uses it."""
        asm, one, two, (flag, count) = self.asm, self.one, self.two, self.temps
        self.load_taps()
        self.get(count, "turns")
        self.get(flag, "odd")
        asm.iterations(0, count)
        asm.branch("bnez", flag, to="odd")
        self.first_rows("even", one, two)
        self.jump("beqz", "turns", "end")
        asm.label("loop")
        start = asm.count
        self._row(last=one, middle=two, first=one)
        asm.label("half")
        self._row(last=two, middle=one, first=two)
        asm.close("loop_end", start)
        asm.label("end")
        self.finish()
        self.next_channel()

    def rare(self) -> None:
        asm = self.asm
        asm.label("odd")
        self.first_rows("odd", self.two, self.one)
        asm.branch("j", to="half")
        asm.label("below")
        self.row_below()
        asm.branch("j", to="done")

    def first_rows(self, name: str, now: Sequence[str], following: Sequence[str]) -> None:
        self.jump("bnez", "above", f"above_{name}")
        self.begin_row(now)
        self.asm.branch("j", to=f"begun_{name}")
        self.asm.label(f"above_{name}")
        self._row(first=now)
        self.asm.label(f"begun_{name}")
        self._row(middle=now, first=following)

    @abstractmethod
    def load_taps(self) -> None:
        """What lies in the registers of the taps."""

    @abstractmethod
    def begin_row(self, now: Sequence[str]) -> None:
        """The first row of these, where no row of inputs is above it."""

    @abstractmethod
    def finish(self) -> None:
        """The last rows, with the label `done`; a branch to `below` where there is one."""

    @abstractmethod
    def row_below(self) -> None: ...

    @abstractmethod
    def _row(
        self, last: Sequence[str] = (), middle: Sequence[str] = (), first: Sequence[str] = ()
    ) -> None:
        """One row of inputs, with up to three rows of outputs."""


class PairStrip(TwoRows):
    """Outputs, or gradients of inputs with the kernel turned round, of one channel of each pair.
    The field `fresh` is a mask that leaves its half of a word."""

    def __init__(
        self, width: int, left: int, right: int, back: bool, epilogue: str, halves: Narrow
    ) -> None:
        super().__init__(width, left, right)
        self.back, self.epilogue, self.halves = back, epilogue, halves
        self.bias = "zero" if back else self.inputs.pop()
        self.spare = self.inputs.pop() if epilogue == "sum" else ""

    def finish(self) -> None:
        self.jump("bnez", "below", "below")
        for pixel in range(self.width):
            self._store(self.one, pixel)
        self.asm.label("done")

    def row_below(self) -> None:
        self._row(last=self.one)

    def begin_row(self, now: Sequence[str]) -> None:
        for register in now:
            self.asm.mv(register, self.bias)

    def load_taps(self) -> None:
        asm, (pointer, mask) = self.asm, self.temps
        self.get(pointer, "w")
        self.get(mask, "fresh")
        taps = self.all_taps
        for register in reversed(taps) if self.back else taps:
            asm.lw_post(register, pointer, 4)
        for register in taps:
            asm("and", register, register, mask)
        self.put(pointer, "w")
        if not self.back:
            place, step = self.temps
            self.get(place, "b")
            self.get(step, "b_step")
            load_half(asm, self.bias, place)
            asm("add", place, place, step)
            self.put(place, "b")
            self.halves.widen(asm, self.bias, self.bias)

    def _row(
        self, last: Sequence[str] = (), middle: Sequence[str] = (), first: Sequence[str] = ()
    ) -> None:
        """One row of inputs, column by column, into up to three rows of outputs."""
        for column, here, completed in self.stream():
            for pixel in self.met(column) if last else ():
                self._multiply(LAST, last[pixel], pixel, here, [column])
            for pixel in completed:
                if last:
                    self._store(last, pixel)
                if middle:
                    self._multiply(MIDDLE, middle[pixel], pixel, here, self.around(pixel))
                if first:
                    self.asm.mv(first[pixel], self.bias)
                    self._multiply(FIRST, first[pixel], pixel, here, self.around(pixel))

    def _multiply(
        self, line: int, total: str, pixel: int, here: Mapping[int, str], columns: Sequence[int]
    ) -> None:
        for column in columns:
            self.halves.dot(self.asm, total, here[column], self.taps[line][column - pixel])

    def _store(self, sums: Sequence[str], pixel: int) -> None:
        asm, register = self.asm, sums[pixel]
        if self.epilogue == "sum":
            load_half(asm, self.spare, self.y)
            asm("nop")
            self.halves.widen(asm, self.spare, self.spare)
            asm("fadd.s", register, self.spare, register)
        elif self.epilogue == "relu":
            asm.max(register, register, "zero")  # as integers: the FPU makes no negative NaN
        self.halves.join(asm, register, register, register)
        store_half_post(asm, register, self.y, self.y_after(pixel))
