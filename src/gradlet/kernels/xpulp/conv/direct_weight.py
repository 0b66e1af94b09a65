"""Gradient of convolution weights: 2 output channels and several rows of taps in registers.

All sums of a unit (2 channels, `lines` rows of the kernel, or as many input channels where the
kernel is a single tap) stay in registers while the image goes by, row by row. In a row, each input
and each output gradient is loaded once: a step takes `stride` new columns of inputs and one new
gradient per channel, which replaces the oldest one.

Rows at the top and at the bottom of the image lack the first or the last line. Both run the same
code, for all lines but the last: sums of the rows at the top, the first of all, move down by a line
behind them. The private cache is small, and code that a unit does not have is not fetched again. So
sums that update weights are kept until there are several units of them, for a loop that is short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.conv.direct_row import Row
from gradlet.kernels.xpulp.conv.direct_usual import Usual
from gradlet.kernels.xpulp.isa.asm import Asm

CHANNELS = 2
REGISTERS = (
    *(f"s{i}" for i in range(12)),
    *("ra", "gp", "tp", *(f"t{i}" for i in range(7)), *(f"a{i}" for i in range(8))),
)
FIELDS = (
    *("back0", "back1", "back2", "top", "full", "bottom", "turns", "below"),
    *("line", "x", "d0", "d_apart", "w0", "w_apart", "x_next", "count"),
    *("more", "inputs", "x_first", "d_next", "last", "slot", "kept", "rate", "decay"),
    *("caller", "sp"),
)
"""A word each; behind them the sums of one unit or some, of each channel by channel."""
UPDATES = ("sgd", "sum")
KEPT = 2
"""Units whose sums are kept for these in the usual case; a power of 2. They are on the stack,
which is small."""


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    made, facts = units(Unit, epilogue, params)
    room = 4 * (len(FIELDS) + CHANNELS * facts["kept"] * facts["taps"])
    usual = Usual(FIELDS, room, epilogue, {**params, **facts})
    return {**facts, **made, "usual": usual.body(), "last": False}


def units(
    kind: type[Unit], epilogue: str, params: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """For the template: a function for each side that sticks out and what is left over of a row;
    and what is to know about them."""
    shape = params["kernel"], params["stride"], params["lines"]
    sides = [(left, right) for left in (0, params["edge"]) for right in (0, params["edge"])]
    some = kind(*shape, 0, 0, 0, epilogue)
    keys = [(*side, rest) for rest in range(some.period) for side in sides]
    made = {key: kind(*shape, *key, epilogue) for key in keys}
    over = params["kernel"] - params["stride"]
    facts = {
        "taps": len(some.taps),
        "kept": KEPT if epilogue in UPDATES else 1,
        "period": some.period,
        "head": some.window - 1,
        "tails": [max(0, -(-(over - right) // params["stride"])) for right in (0, params["edge"])],
    }
    return {
        "functions": "\n\n".join(unit.function() for unit in made.values()),
        "table": ", ".join(f"(uintptr_t){made[key].name}" for key in keys),
    }, facts


class Unit:
    """One function: some units one after the other, of each all rows; `rest` steps come before
    those that the loop takes by the period."""

    fields: tuple[str, ...] = FIELDS

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
    def bordered(self) -> bool:
        """There are rows that lack a line but not all of them."""
        return self.kernel > 1 and self.lines > 1

    @property
    def taps(self) -> list[list[str]]:
        """The registers of each, by channel."""
        return [tap for line in self.sums for tap in line]

    @property
    def places(self) -> list[tuple[int, str]]:
        """Where the sums of a unit are kept, from the place of its first one on; by channel."""
        registers = [tap[channel] for channel in range(CHANNELS) for tap in self.taps]
        return [(4 * index, register) for index, register in enumerate(registers)]

    def function(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.enter(self._place("caller"))
        self._steps()
        asm.label("unit")
        self._begin_unit()
        count = self.temps[0]
        if self.bordered:
            self._get(count, "top")
            asm.branch("bnez", count, to="top")
            asm.label("inside")
        self._get(count, "full")
        asm.branch("beqz", count, to="no_rows")
        self._row_loop(count, range(self.lines), "full")
        asm.label("no_rows")
        if self.bordered:
            self._get(count, "bottom")
            asm.mv(self.temps[1], count)
            asm.branch("bnez", count, to="bottom")
        asm.label("whole")
        self._end_unit()
        self._next_pair()
        asm.label("out")
        asm.leave(self._place("caller"))
        if self.bordered:
            self._border()
        self._keep()
        asm.compressed(False)
        return asm.function("struct unit *unit")

    def _steps(self) -> None:
        """Up and down in a column of inputs."""
        self._get(self.line, "line")
        self.asm("sub", self.back, "zero", self.line)

    def _get(self, register: str, field: str) -> None:
        self.asm.lw(register, "sp", self._place(field))

    def _put(self, register: str, field: str) -> None:
        self.asm.sw(register, "sp", self._place(field))

    def _place(self, field: str) -> int:
        return 4 * self.fields.index(field)

    def _begin_unit(self) -> None:
        asm, (first, second) = self.asm, self.d
        self._get(first, "d0")
        self._get(second, "d_apart")
        self._get(self.x, "x")
        for _, register in self.places:
            asm.mv(register, "zero")
        asm("add", second, second, first)

    def _border(self) -> None:
        """Rows at the top, from where it goes on inside; or at the bottom, the last of a unit."""
        asm, (count, below) = self.asm, self.temps
        asm.label("top")
        asm.mv(below, "zero")
        asm.label("bottom")
        self._put(below, "below")
        self._row_loop(count, range(self.lines - 1), "border")
        self._get(below, "below")
        asm.branch("bnez", below, to="whole")
        asm("sub", self.x, self.x, self.line)
        for line in reversed(range(self.lines)):
            for tap in range(self.kernel):
                for channel in range(CHANNELS):
                    above = self.sums[line - 1][tap][channel] if line else "zero"
                    asm.mv(self.sums[line][tap][channel], above)
        asm.branch("j", to="inside")

    def _row_loop(self, count: str, lines: range, name: str) -> None:
        asm, first = self.asm, self.window - 1 + self.rest
        with asm.loop(1, count):
            row = self.row_of(lines)
            for step in range(first):
                row.step(step, fetch="turns" if step == first - 1 else "")
            turns = row.fetched or self._load_into(count, "turns")
            asm.branch("beqz", turns, to=f"few_{name}")
            with asm.loop(0, turns):
                for step in range(first, first + self.period):
                    row.step(step, body=True)
            asm.label(f"few_{name}")
            row.fetched = ""
            for step in range(self.window - 1):
                back = f"back{row.end_of(step + 1)}" if step == self.window - 2 else ""
                row.step(first + step, tail=step + 1, fetch=back)
            back = row.fetched or self._load_into(count, f"back{row.end}")
            asm("add", self.x, self.x, back)

    def row_of(self, lines: range) -> Row:
        return Row(self, lines)

    def _load_into(self, register: str, field: str) -> str:
        self._get(register, field)
        return register

    def _end_unit(self) -> None:
        """The sums go where they belong, unless C wants them; then the next input channel."""
        asm, (last, count) = self.asm, self.d
        self._get(last, "last")
        self._get(self.x, "x")
        asm.branch("beqz", last, to="keep")
        self._get(self.temps[0], "x_next")
        self._get(count, "count")
        asm("add", self.x, self.x, self.temps[0])
        self._put(self.x, "x")
        asm("addi", count, count, -1)
        self._put(count, "count")
        if self.epilogue in UPDATES:
            self._leave_sums()
            self._get(self.temps[0], "kept")
            asm("and", self.temps[0], self.temps[0], count)
            asm.branch("bnez", self.temps[0], to="unit")
            self._update()
        else:
            self._store()
        asm.branch("bnez", count, to="unit")

    def _leave_sums(self) -> None:
        """The stack pointer points at the slot: what is near it takes the shortest instructions."""
        asm, unit, slot = self.asm, self.x, self.temps[0]
        self._get(slot, "slot")
        asm.mv(unit, "sp")
        asm.mv("sp", slot)
        for place, register in self.places:
            asm.sw(register, "sp", place)
        asm.mv("sp", unit)
        asm("addi", slot, slot, 4 * len(self.places))
        self._put(slot, "slot")

    def _store(self) -> None:
        asm, unit, (at, apart) = self.asm, self.x, self.temps
        self._get(at, "w0")
        self._get(apart, "w_apart")
        asm.mv(unit, "sp")
        asm.mv("sp", at)
        for channel in range(CHANNELS):
            for index, tap in enumerate(self.taps):
                asm.sw(tap[channel], "sp", 4 * index)
            if channel == 0:
                asm("add", "sp", "sp", apart)
        asm.mv("sp", unit)
        asm("addi", at, at, 4 * len(self.taps))
        self._put(at, "w0")

    def _update(self) -> None:
        """The weights of all units that are kept; two at a time, of both channels."""
        asm, kept = self.asm, 4 * len(self.fields)
        free = [*(register for _, register in self.places), *self.inputs]
        source, w0, w1, rate, decay, *work = free[:9]
        end = self.x
        self._get(end, "slot")
        asm("addi", source, "sp", kept)
        self._get(w0, "w0")
        self._get(w1, "w_apart")
        self._put(source, "slot")
        if self.epilogue == "sgd":
            self._get(rate, "rate")
            self._get(decay, "decay")
        asm("add", w1, w1, w0)
        asm.label("update")
        with asm.loop(0, len(self.taps)):
            self._update_taps(source, (w0, w1), 4, (rate, decay), work)
        asm("addi", source, source, 4 * len(self.taps))
        asm.branch("bne", source, end, to="update")
        self._put(w0, "w0")

    def _update_taps(
        self,
        source: str,
        pointers: tuple[str, str],
        step: int | str,
        settings: tuple[str, str],
        work: list[str],
    ) -> None:
        """The next tap of both channels."""
        asm, (w0, w1), (rate, decay) = self.asm, pointers, settings
        first, second, old, other = work
        asm.lw(second, source, 4 * len(self.taps))
        asm.lw(old, w0)
        asm.lw_post(first, source, 4)
        asm.lw(other, w1)
        for value, there in ((first, old), (second, other)):
            if self.epilogue == "sgd":
                asm("fmadd.s", value, decay, there, value)
            else:
                asm("fadd.s", value, there, value)
        for value, there in ((first, old), (second, other)):
            if self.epilogue == "sgd":
                asm("fnmsub.s", value, rate, value, there)
        asm.sw_post(first, w0, step)
        asm.sw_post(second, w1, step)

    def _next_pair(self) -> None:
        """Of output channels, if there are units left."""
        asm, more, (count, step) = self.asm, self.x, self.temps
        first, at = self.d[0], self.inputs[0]
        self._get(more, "more")
        self._get(count, "inputs")
        asm.branch("beqz", more, to="out")
        asm.min(count, count, more)
        asm("sub", more, more, count)
        self._put(count, "count")
        self._put(more, "more")
        self._get(first, "x_first")
        self._put(first, "x")
        for field, change in (("d0", "d_next"), ("w0", "w_apart")):
            self._get(at, field)
            self._get(step, change)
            asm("add", at, at, step)
            self._put(at, field)
        asm.branch("j", to="unit")

    def _keep(self) -> None:
        """Sums that are left for C, which adds up images."""
        asm, (old, _) = self.asm, self.temps
        asm.label("keep")
        for place, register in self.places:
            asm.lw(old, "sp", 4 * len(self.fields) + place)
            asm("fadd.s", register, old, register)
            asm.sw(register, "sp", 4 * len(self.fields) + place)
        asm.branch("j", to="out")
