"""Depthwise convolution with 3 x 3 taps: rows roll through registers, each input is loaded once.

A row of inputs is the last of one row of outputs, the middle of the next and the first of the one
after that. When an output is stored, the one below moves into its register with the first
multiply-add of its middle row, and the one below that begins. The weight gradient is the same with
other roles: rows of dy lie where the outputs were, the sums where the weights were. There nothing
moves for free, so the two sets of registers change roles from row to row, and the loop has two rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradlet.xpulp.asm import SAVED, Asm

WIDTHS = range(3, 6)
KERNEL = 3
FIELDS = (
    *("x", "y", "w", "b", "b_step", "turns", "odd", "above", "below", "count"),
    *("x_step", "y_step", "x_next", "y_next", "fresh"),
)
"""Of the struct that a strip is called with, a word each."""
RUN = "a0"
REGISTERS = (
    *(f"s{i}" for i in range(12)),
    *("ra", "gp", "tp", *(f"t{i}" for i in range(7)), *(f"a{i}" for i in range(1, 8))),
)
LAST, MIDDLE, FIRST = 2, 1, 0
"""Which row of the kernel meets a row of inputs."""


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [(width, left, right) for width in WIDTHS for left in (0, 1) for right in (0, 1)]
    strips: list[_Strip] = []
    for kind in kinds:
        if mode == "weight_grad":
            strips.append(_WeightStrip(*kind))
        else:
            strips.append(_MapStrip(*kind, mode == "input_grad", epilogue == "sum"))
    return {
        "functions": "\n\n".join(strip.function() for strip in strips),
        "table": ", ".join(strip.name for strip in strips),
        "narrowest": WIDTHS[0],
        "widest": WIDTHS[-1],
    }


class _Strip:
    """One function: some channels, some rows of each, `width` pixels of a row."""

    def __init__(self, width: int, left: int, right: int) -> None:
        self.name = f"strip_{width}_{left}_{right}"
        self.width = width
        self.columns = range(left, width + KERNEL - 1 - right)
        self.asm = Asm(self.name)
        names = iter(REGISTERS)
        self.one, self.two = ([next(names) for _ in range(width)] for _ in range(2))
        self.taps = [[next(names) for _ in range(KERNEL)] for _ in range(KERNEL)]
        self.x, self.y, self.x_step, self.y_step = (next(names) for _ in range(4))
        self.inputs = list(names)
        self.temps = self.inputs[0], self.inputs[1]

    def function(self) -> str:
        asm = self.asm
        saved = ["ra", *SAVED]
        asm.push(saved)
        for register, field in (
            *((self.x, "x"), (self.y, "y")),
            *((self.x_step, "x_step"), (self.y_step, "y_step")),
        ):
            self.get(register, field)
        asm.label("channel")
        self.channel()
        one, two = self.temps
        self.get(two, "count")
        self.get(one, "x_next")
        asm("addi", two, two, -1)
        self.put(two, "count")
        asm("add", self.x, self.x, one)
        self.get(one, "y_next")
        asm("nop")
        asm("add", self.y, self.y, one)
        asm.branch("bnez", two, to="channel")
        asm.pop(saved)
        self.rare()
        return asm.function("struct run *run")

    def channel(self) -> None:
        raise NotImplementedError

    def rare(self) -> None:
        """What planes that are not cut do not need: out of the way of the instruction cache."""
        raise NotImplementedError

    def get(self, register: str, field: str) -> None:
        self.asm.lw(register, RUN, 4 * FIELDS.index(field))

    def put(self, register: str, field: str) -> None:
        self.asm.sw(register, RUN, 4 * FIELDS.index(field))

    def jump(self, op: str, field: str, to: str) -> None:
        """beqz or bnez of a field."""
        self.get(self.temps[0], field)
        self.asm("nop")
        self.asm.branch(op, self.temps[0], to=to)

    @property
    def all_taps(self) -> list[str]:
        return [register for line in self.taps for register in line]

    def y_after(self, pixel: int) -> int | str:
        """How far it is from a pixel to the next that is stored or loaded."""
        return self.y_step if pixel == self.width - 1 else 4

    def stream(self) -> Iterator[tuple[int, dict[int, str], range]]:
        """Loads a row of inputs: each column, those in registers, the pixels that it completes."""
        free, here = list(self.inputs), dict[int, str]()
        done = 0
        self._load(free, here, self.columns[0])
        for column in self.columns:
            if column + 1 in self.columns:
                self._load(free, here, column + 1)
            over = self.width if column == self.columns[-1] else max(0, column - KERNEL + 2)
            yield column, here, range(done, over)
            done = over
            for old in [c for c in here if c < over]:
                free.append(here.pop(old))

    def _load(self, free: list[str], here: dict[int, str], column: int) -> None:
        here[column] = free.pop(0)
        last = column == self.columns[-1]
        self.asm.lw_post(here[column], self.x, self.x_step if last else 4)

    def met(self, column: int) -> list[int]:
        """The pixels that a column of inputs contributes to."""
        return [p for p in range(column - KERNEL + 1, column + 1) if 0 <= p < self.width]

    def around(self, pixel: int) -> list[int]:
        return [c for c in range(pixel, pixel + KERNEL) if c in self.columns]


class _MapStrip(_Strip):
    """Outputs, or gradients of inputs with the kernel turned round."""

    def __init__(self, width: int, left: int, right: int, back: bool, added: bool) -> None:
        super().__init__(width, left, right)
        self.back, self.added = back, added
        self.bias = "zero" if back else self.inputs.pop()
        self.spare = self.inputs.pop() if added else ""

    def channel(self) -> None:
        """The last row of the loop begins one row of outputs too many; nobody uses it."""
        asm = self.asm
        self._load_taps()
        self.jump("bnez", "above", "above")
        for register in self.two:
            asm.mv(register, self.bias)
        asm.label("begun")
        self._row(middle=True, first=True)
        self.jump("beqz", "turns", "end")
        with asm.loop(0, self.temps[0]):
            self._row(last=True, middle=True, first=True)
        asm.label("end")
        self.jump("bnez", "below", "below")
        for pixel in range(self.width):
            self._store(pixel)
        asm.label("done")

    def rare(self) -> None:
        self.asm.label("above")
        self._row(first=True)
        self.asm.branch("j", to="begun")
        self.asm.label("below")
        self._row(last=True)
        self.asm.branch("j", to="done")

    def _load_taps(self) -> None:
        asm, (pointer, step) = self.asm, self.temps
        self.get(pointer, "w")
        if not self.back:
            self.get(step, "b")
        taps = self.all_taps
        for register in reversed(taps) if self.back else taps:
            asm.lw_post(register, pointer, 4)
        self.put(pointer, "w")
        if not self.back:
            self.get(pointer, "b_step")
            asm.lw(self.bias, step)
            asm("add", step, step, pointer)
            self.put(step, "b")

    def _row(self, last: bool = False, middle: bool = False, first: bool = False) -> None:
        """One row of inputs, column by column, into up to three rows of outputs."""
        one, two = self.one, self.two
        for column, here, completed in self.stream():
            for pixel in self.met(column) if last else ():
                tap = self.taps[LAST][column - pixel]
                self.asm("fmadd.s", one[pixel], here[column], tap, one[pixel])
            for pixel in completed:
                if last:
                    self._store(pixel)
                if middle:
                    self._sum(MIDDLE, one[pixel], two[pixel], pixel, here)
                if first:
                    self._sum(FIRST, two[pixel], self.bias, pixel, here)

    def _sum(self, line: int, to: str, start: str, pixel: int, here: dict[int, str]) -> None:
        for column in self.around(pixel):
            self.asm("fmadd.s", to, here[column], self.taps[line][column - pixel], start)
            start = to

    def _store(self, pixel: int) -> None:
        register = self.one[pixel]
        if self.added:
            self.asm.lw(self.spare, self.y)
            self.asm("nop")
            self.asm("fadd.s", register, self.spare, register)
        self.asm.sw_post(register, self.y, self.y_after(pixel))


class _WeightStrip(_Strip):
    """Sums of the weights; `odd` says that the loop is entered in its middle."""

    def channel(self) -> None:
        asm, one, two = self.asm, self.one, self.two
        for register in self.all_taps:
            asm.mv(register, "zero")
        asm.bounds(0, "loop", "loop_end")
        self.get(self.temps[0], "turns")
        self.get(self.temps[1], "odd")
        asm.iterations(0, self.temps[0])
        asm.branch("beqz", self.temps[1], to="even")
        self._first_rows("odd", two, one)
        asm.branch("j", to="half")
        asm.label("even")
        self._first_rows("even", one, two)
        self.jump("beqz", "turns", "end")
        asm.label("loop")
        start = asm.count
        self._row(last=one, middle=two, first=one)
        asm.label("half")
        self._row(last=two, middle=one, first=two)
        asm.close("loop_end", start)
        asm.label("end")
        self._row(last=one, middle=two)
        self.jump("bnez", "below", "below")
        asm.label("done")
        pointer, fresh = self.temps
        self.get(fresh, "fresh")
        self.get(pointer, "w")
        asm.branch("beqz", fresh, to="add")
        asm.label("store")
        for register in self.all_taps:
            asm.sw_post(register, pointer, 4)
        self.put(pointer, "w")

    def rare(self) -> None:
        """Rows above and below, and sums that go on from what is there."""
        asm = self.asm
        for name, row in (("odd", self.two), ("even", self.one)):
            asm.label(f"{name}_above")
            self._row(first=row)
            asm.branch("j", to=f"{name}_next")
        asm.label("below")
        self._row(last=self.two)
        asm.branch("j", to="done")
        asm.label("add")
        pointer, value = self.temps
        for index, register in enumerate(self.all_taps):
            asm.lw(value, pointer, 4 * index)
            asm("nop")
            asm("fadd.s", register, value, register)
        asm.branch("j", to="store")

    def _first_rows(self, name: str, a: Sequence[str], b: Sequence[str]) -> None:
        self.jump("bnez", "above", f"{name}_above")
        for pixel, register in enumerate(a):
            self.asm.lw_post(register, self.y, self.y_after(pixel))
        self.asm.label(f"{name}_next")
        self._row(middle=a, first=b)

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
                self._multiply(FIRST, first, [(pixel, c) for c in self.around(pixel)], here)

    def _multiply(
        self, line: int, row: Sequence[str], pairs: list[tuple[int, int]], here: dict[int, str]
    ) -> None:
        for pixel, column in pairs:
            tap = self.taps[line][column - pixel]
            self.asm("fmadd.s", tap, here[column], row[pixel], tap)
