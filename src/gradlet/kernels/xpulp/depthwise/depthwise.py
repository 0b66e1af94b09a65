"""Depthwise convolution with 3 x 3 taps: rows roll through registers, each input is loaded once.

A row of inputs is the last of one row of outputs, the middle of the next and the first of the one
after that. When an output is stored, the one below moves into its register with the first
multiply-add of its middle row, and the one below that begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from gradlet.kernels.xpulp.depthwise.cost import cost as cost
from gradlet.kernels.xpulp.isa.asm import Asm

WIDTHS = range(3, 6)
KERNEL = 3
FIELDS = (
    *("x", "y", "w", "b", "b_step", "turns", "odd", "above", "below", "count"),
    *("x_step", "y_step", "x_next", "y_next", "fresh", "special", "update", "rate", "decay"),
    *("pixel", "w_next", "caller"),
)
"""Of the struct that a strip is called with, a word each; pixel and w_next with channels last."""
RUN = "sp"
REGISTERS = (
    *(f"s{i}" for i in range(12)),
    *("ra", "gp", "tp", *(f"t{i}" for i in range(7)), *(f"a{i}" for i in range(8))),
)
LAST, MIDDLE, FIRST = 2, 1, 0
"""Which row of the kernel meets a row of inputs."""


KINDS = [(width, left, right) for width in WIDTHS for left in (0, 1) for right in (0, 1)]


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    back, last = mode.startswith("input_grad"), mode.endswith("_hwc")
    return values(mode, [_MapStrip(*kind, back, epilogue, last) for kind in KINDS])


def values(mode: str, strips: Sequence[Strip]) -> dict[str, Any]:
    """For the template, which takes the strips in the order of KINDS."""
    return {
        "step": mode.removesuffix("_hwc"),
        "last": mode.endswith("_hwc"),
        "stride": strips[0].stride,
        "functions": "\n\n".join(strip.function() for strip in strips),
        "table": ", ".join(f"(uintptr_t){strip.name}" for strip in strips),
        "narrowest": WIDTHS[0],
        "widest": WIDTHS[-1],
    }


class Strip(ABC):
    """One function: some channels, some rows of each, `width` pixels of a row. last: channels are,
    so that pixels are further apart than a word, and weights of the next channel elsewhere."""

    def __init__(
        self, width: int, left: int, right: int, stride: int = 1, last: bool = False
    ) -> None:
        self.name = f"strip_{width}_{left}_{right}"
        self.width, self.stride = width, stride
        self.columns = range(left, (width - 1) * stride + KERNEL - right)
        self.asm = Asm(self.name)
        names = iter(REGISTERS)
        self.one = [next(names) for _ in range(width)]
        self.two = [next(names) for _ in range(width)] if stride == 1 else []
        self.taps = [[next(names) for _ in range(KERNEL)] for _ in range(KERNEL)]
        self.x, self.y, self.x_step, self.y_step = (next(names) for _ in range(4))
        self.pixel = next(names) if last else ""
        self.inputs = list(names)
        self.temps = self.inputs[0], self.inputs[1]

    def function(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.enter(4 * FIELDS.index("caller"))
        for register, field in (
            *((self.x, "x"), (self.y, "y")),
            *((self.x_step, "x_step"), (self.y_step, "y_step")),
            *([(self.pixel, "pixel")] if self.pixel else []),
        ):
            self.get(register, field)
        self.before()
        asm.label("channel")
        self.channel()
        asm.branch("bnez", self.temps[1], to="channel")
        asm.leave(4 * FIELDS.index("caller"))
        self.rare()
        asm.compressed(False)
        return asm.function("struct run *run")

    def before(self) -> None:  # noqa: B027 - most strips have nothing of the kind
        """What is the same for all channels."""

    def bound_loop(self) -> None:
        """For all channels, of a loop that is entered in its middle."""
        self.asm.compressed(False)
        self.asm.bounds(0, "loop", "loop_end")

    @abstractmethod
    def channel(self) -> None:
        """Leaves the number of channels to come in the second of `temps`."""

    def next_channel(self) -> None:
        asm, (step, count) = self.asm, self.temps
        self.get(count, "count")
        self.get(step, "x_next")
        asm("addi", count, count, -1)
        self.put(count, "count")
        asm("add", self.x, self.x, step)
        self.get(step, "y_next")
        asm("nop")
        asm("add", self.y, self.y, step)

    @abstractmethod
    def rare(self) -> None:
        """What planes that are not cut do not need: out of the way of the instruction cache."""

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
        return self.y_step if pixel == self.width - 1 else self.pixel or 4

    def put_weights(self, pointer: str, spare: str) -> None:
        """The pointer is behind the weights of a channel."""
        if self.pixel:
            self.get(spare, "w_next")
            self.asm("nop")
            self.asm("add", pointer, pointer, spare)
        self.put(pointer, "w")

    def add_old(self, fresh: str) -> None:
        """The sums of weights go on from what is there, unless they are fresh. Leaves the place of
        the weights in the first of `temps`."""
        asm, (pointer, value) = self.asm, self.temps
        self.get(value, "fresh")
        self.get(pointer, "w")
        asm.branch("bnez", value, to=fresh)
        for index, register in enumerate(self.all_taps):
            asm.lw(value, pointer, 4 * index)
            asm("nop")
            asm("fadd.s", register, value, register)
        asm.label(fresh)

    def stream(self) -> Iterator[tuple[int, dict[int, str], range]]:
        """Loads a row of inputs: each column, those in registers, the pixels that it completes."""
        free, here = list(self.inputs), dict[int, str]()
        done = 0
        self._load(free, here, self.columns[0])
        for column in self.columns:
            if column + 1 in self.columns:
                self._load(free, here, column + 1)
            ends = [p for p in range(self.width) if self.stride * p + KERNEL - 1 <= column]
            over = self.width if column == self.columns[-1] else len(ends)
            yield column, here, range(done, over)
            done = over
            for old in [c for c in here if c // self.stride < over]:
                free.append(here.pop(old))

    def _load(self, free: list[str], here: dict[int, str], column: int) -> None:
        here[column] = free.pop(0)
        last = column == self.columns[-1]
        self.asm.lw_post(here[column], self.x, self.x_step if last else self.pixel or 4)

    def met(self, column: int) -> list[int]:
        """The pixels that a column of inputs contributes to."""
        return [p for p in range(self.width) if 0 <= column - self.stride * p < KERNEL]

    def around(self, pixel: int) -> list[int]:
        """The columns that a pixel is made of."""
        first = self.stride * pixel
        return [column for column in range(first, first + KERNEL) if column in self.columns]


class Stored(Protocol):
    """What makes a map and ends with an epilogue."""

    asm: Asm
    y: str
    spare: str
    epilogue: str


def store(strip: Stored, register: str, step: int | str) -> None:
    """A sum into memory; the pointer goes on by `step`."""
    asm = strip.asm
    if strip.epilogue == "sum":
        asm.lw(strip.spare, strip.y)
        asm("nop")
        asm("fadd.s", register, strip.spare, register)
    elif strip.epilogue == "relu":
        asm.max(register, register, "zero")  # as integers: the FPU makes no negative NaN
    asm.sw_post(register, strip.y, step)


class _MapStrip(Strip):
    """Outputs, or gradients of inputs with the kernel turned round."""

    def __init__(
        self, width: int, left: int, right: int, back: bool, epilogue: str, last: bool
    ) -> None:
        super().__init__(width, left, right, last=last)
        self.back, self.epilogue = back, epilogue
        self.bias = "zero" if back else self.inputs.pop()
        self.spare = self.inputs.pop() if epilogue == "sum" else ""

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
        self.next_channel()

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
        self.put_weights(pointer, self.one[0])
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
        store(self, self.one[pixel], self.y_after(pixel))
