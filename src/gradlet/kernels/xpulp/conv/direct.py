"""Direct convolution, for outputs and gradients of inputs, in register blocks of 2 channels x up to
8 pixels of a row.

A block keeps its sums and 2 x kernel weights in registers and streams each input once into all taps
that it meets; what lies outside of the image is left out, so there is one function for each width
and for each side that sticks out. Rows of a run differ by the lines of the kernel that meet the
image: `first` of them lie above it, or that many lines of it above the kernel, if negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradlet.kernels.xpulp.conv.direct_pieces import Pieces
from gradlet.kernels.xpulp.isa.asm import SAVED, Asm, AssemblyError

FIELDS = (
    *("x", "w0", "w1", "y0", "y1", "first", "b0", "b1", "rows", "first_row", "y_row"),
    *("lines", "height", "x_line", "w_line"),
    *("channels", "x_inner", "w_inner", "x_outer", "w_outer", "caller", "sp"),
    *("pixel", "tap", "y_pixel"),
)
"""Of the struct that a block is called with, a word each; the last three with channels last."""
CHANNELS = 2
RUN = "sp"
AROUND = tuple(f"a{i}" for i in range(8))
"""Pointers, steps, two inputs, and how many channels there are."""
REGISTERS = ("ra", "gp", "tp", *(f"t{i}" for i in range(7)), *SAVED)
"""Sums and weights."""


@dataclass(frozen=True)
class Reach:
    """Which inputs of a row meet which taps: those of a block of pixels, counted from its first.

    back: an input gradient, where the roles are swapped and `pad` matters from stride 2 on.
    """

    kernel: int
    stride: int
    pad: int = 0
    back: bool = False
    dilation: int = 1  # others with stride 1 only

    @property
    def widest(self) -> int:
        """Pixels of the widest block: what the registers hold, in whole steps of the stride."""
        most = min(8, (len(REGISTERS) - 2 * self.kernel) // CHANNELS)
        return most // self.cell * self.cell

    @property
    def cell(self) -> int:
        """Blocks begin at multiples of this."""
        return self.stride if self.back else 1

    def weight(self, tap: int) -> int:
        """Where the weight of a tap lies; taps go with rising inputs."""
        return self.kernel - 1 - tap if self.back else tap

    def meets(self, width: int) -> list[tuple[int, int, int]]:
        """(input, tap, pixel) for a block of that width, before anything is left out."""
        found = []
        for pixel in range(width):
            for tap in range(self.kernel):
                if not self.back:
                    found.append((pixel * self.stride + tap * self.dilation, tap, pixel))
                    continue
                place = pixel + self._offset - self.weight(tap) * self.dilation
                if place % self.stride == 0:
                    found.append((place // self.stride - self._first, tap, pixel))
        return sorted(found)

    @property
    def _offset(self) -> int:
        return self.span if self.stride == 1 else self.pad

    @property
    def span(self) -> int:
        """From the first tap to the last."""
        return (self.kernel - 1) * self.dilation

    @cached_property
    def _first(self) -> int:
        """The lowest input that a block meets, where inputs are counted from pixel / stride."""
        if not self.back:
            return 0
        taps = range(0, self.span + 1, self.dilation)
        places = [p + self._offset - t for p in range(self.stride) for t in taps]
        return min(place // self.stride for place in places if place % self.stride == 0)

    @property
    def base(self) -> str:
        """C: the column of input 0 of the block that begins at pixel p."""
        if not self.back:
            return f"p * {self.stride} - s->pad_left"
        if self.stride == 1:
            return f"p + s->pad_left - {self.span}"
        return f"p / {self.stride} + {self._first}"

    @property
    def last(self) -> str:
        """C: the last input that a block of that width meets."""
        if not self.back:
            return f"(width - 1) * {self.stride} + {self.span}"
        if self.stride == 1:
            return f"width + {self.span - 1}"
        return f"(width + {self._offset - 1}) / {self.stride} - {self._first}"

    def last_of(self, width: int) -> int:
        if not self.back:
            return (width - 1) * self.stride + self.span
        return (width - 1 + self._offset) // self.stride - self._first


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    back, dilation = mode == "input_grad", params.get("dilation", 1)
    reach = Reach(params["kernel"], params["stride"], params.get("pad", 0), back, dilation)
    if reach.stride > 1 and reach._first:
        raise AssemblyError("the first pixel does not meet the first input")
    pieces = Pieces(FIELDS, reach.kernel, reach.stride, reach.span, reach.widest, back=back)
    return {"pieces": pieces.body(), **blocks(Block, reach, params["edge"], epilogue)}


MakeBlock = Callable[[Reach, int, int, int, str], "Block"]


def blocks(kind: MakeBlock, reach: Reach, edge: int, epilogue: str) -> dict[str, Any]:
    """For the template: a function for each width and for each side that sticks out."""
    sides = [(left, right) for left in (0, edge) for right in (0, edge)]
    keys = [(width, *side) for width in range(1, reach.widest + 1) for side in sides]
    made = {key: kind(reach, *key, epilogue) for key in keys}
    return {
        "back": reach.back,
        "last": False,
        "pairs": False,
        "reach": reach,
        "functions": "\n\n".join(block.function() for block in made.values()),
        "table": ", ".join(f"(uintptr_t){made[key].name}" for key in keys),
    }


class Block:
    """One function: all rows of a run, each with the same taps. What is outside of the loops runs
    rarely, and is compressed."""

    def __init__(self, reach: Reach, width: int, left: int, right: int, epilogue: str) -> None:
        self.reach, self.width, self.epilogue = reach, width, epilogue
        self.name = f"block_{width}_{left}_{right}"
        last = reach.last_of(width) - right
        self.meets = [(i, t, p) for i, t, p in reach.meets(width) if left <= i <= last]
        self.asm = Asm(self.name)
        self.x, *self.w = AROUND[:3]
        self.inputs = list(AROUND[3:5])
        self.x_step, self.w_step, self.inner = AROUND[5:]
        names = iter(REGISTERS)
        self.sums = [[next(names) for _ in range(width)] for _ in range(CHANNELS)]
        self.weights = [[next(names) for _ in range(reach.kernel)] for _ in range(CHANNELS)]

    def function(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.enter(4 * FIELDS.index("caller"))
        self._steps()
        asm.label("row")
        self._begin()
        if self.meets:
            self._taps()
        asm.label("store")
        self._store()
        self._next_row()
        asm.branch("bnez", self.inputs[0], to="row")
        asm.leave(4 * FIELDS.index("caller"))
        if self.meets:
            self._rare()
        asm.compressed(False)
        return asm.function("struct run *run")

    def _steps(self) -> None:
        """What stays the same from row to row."""
        self._get(self.x_step, "x_inner")
        self._get(self.w_step, "w_inner")

    def _get(self, register: str, field: str) -> None:
        self.asm.lw(register, RUN, 4 * FIELDS.index(field))

    def _put(self, register: str, field: str) -> None:
        self.asm.sw(register, RUN, 4 * FIELDS.index(field))

    def _begin(self) -> None:
        """Sums start with the bias."""
        for channel, sums in enumerate(self.sums):
            self._get(sums[0], f"b{channel}")
        self._get(self.x, "x")
        for sums in self.sums:
            for register in sums[1:]:
                self.asm.mv(register, sums[0])

    def _taps(self) -> None:
        """The lines of the kernel that meet the image, as many as `outer`, and all channels."""
        asm, (first, step) = self.asm, self.inputs
        outer, spare = (registers[0] for registers in self.weights)
        self._get(first, "first")
        self._get(outer, "height")
        self._get(spare, "lines")
        self._get(step, "x_line")
        asm("add", outer, outer, first)
        asm.min(outer, outer, spare)
        for channel, pointer in enumerate(self.w):
            self._get(pointer, f"w{channel}")
        asm.branch("bgtz", first, to="below")
        asm("sub", first, "zero", first)
        asm.mac(self.x, first, step)
        asm.label("begun")
        self._get(self.inner, "channels")
        asm.branch("blez", outer, to="store")
        self._loops(outer, spare)

    def _loops(self, outer: str, spare: str) -> None:
        asm, order = self.asm, self._order()
        asm("addi", self.x, self.x, 4 * order[-1][0])
        if last := self.reach.weight(self._weight_order()[-1]):
            for pointer in self.w:
                asm("addi", pointer, pointer, 4 * last)
        asm.beq_imm(self.inner, 1, to="single")
        asm.label("loops")
        with asm.loop(1, outer):
            with asm.loop(0, self.inner):
                self._body(order)
            self._next_line(outer, spare)

    def _next_line(self, x_outer: str, w_outer: str) -> None:
        asm = self.asm
        self._get(x_outer, "x_outer")
        self._get(w_outer, "w_outer")
        asm("add", self.x, self.x, x_outer)
        for pointer in self.w:
            asm("add", pointer, pointer, w_outer)

    def _rare(self) -> None:
        self._below()
        self._single()

    def _below(self) -> None:
        """The kernel begins above the image."""
        asm, outer, (first, step) = self.asm, self.weights[0][0], self.inputs
        asm.label("below")
        self._get(step, "w_line")
        asm("sub", outer, outer, first)
        for pointer in self.w:
            asm.mac(pointer, first, step)
        asm.branch("j", to="begun")

    def _single(self) -> None:
        """There is one channel, and the lines are inside."""
        asm, outer = self.asm, self.weights[0][0]
        asm.label("single")
        asm.mv(self.inner, outer)
        self._get(self.x_step, "x_line")
        self._get(self.w_step, "w_line")
        asm("addi", outer, "zero", 1)
        asm.branch("j", to="loops")

    def _order(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Each input with its (tap, pixel)."""
        found: dict[int, list[tuple[int, int]]] = {}
        for place, tap, pixel in self.meets:
            found.setdefault(place, []).append((tap, pixel))
        return list(found.items())

    def _weight_order(self) -> list[int]:
        return list(dict.fromkeys(t for _, pairs in self._order() for t, _ in sorted(pairs)))

    def _body(self, order: list[tuple[int, list[tuple[int, int]]]]) -> None:
        """Each input is loaded while the one before is used, each weight before its first use."""
        asm = self.asm
        weights = self._weight_order()
        here: list[int] = []
        self._load_input(order, 0)
        for index, (_, pairs) in enumerate(order):
            fresh = self._fresh({tap for tap, _ in pairs}, here)
            for tap in fresh:
                self._load_weights(tap, weights)
            if index + 1 < len(order):
                self._load_input(order, index + 1)
            elif fresh and len(fresh) == len({tap for tap, _ in pairs}):
                asm("nop")  # the last weight came just now
            register = self.inputs[index % 2]
            for tap, pixel in sorted(pairs, key=lambda pair: (pair[0] in fresh, pair[0])):
                for channel in range(CHANNELS):
                    total = self.sums[channel][pixel]
                    self._multiply(total, register, self.weights[channel][tap])
            here += fresh

    def _multiply(self, total: str, value: str, weight: str) -> None:
        """Adds a product to a sum."""
        self.asm("fmadd.s", total, value, weight, total)

    def _fresh(self, taps: set[int], here: list[int]) -> list[int]:
        """The weights that are loaded for these taps."""
        return sorted(taps - set(here))

    def _load_input(self, order: list[tuple[int, list[tuple[int, int]]]], index: int) -> None:
        register, last = self.inputs[index % 2], order[-1][0]
        if index == len(order) - 1:
            self.asm.lw_post(register, self.x, self.x_step)
        else:
            self.asm.lw(register, self.x, 4 * (order[index][0] - last))

    def _load_weights(self, tap: int, order: list[int]) -> None:
        for channel, pointer in enumerate(self.w):
            register = self.weights[channel][tap]
            if tap == order[-1]:
                self.asm.lw_post(register, pointer, self.w_step)
            else:
                away = self.reach.weight(tap) - self.reach.weight(order[-1])
                self.asm.lw(register, pointer, 4 * away)

    def _store(self) -> None:
        asm, step = self.asm, self.x
        for channel, pointer in enumerate(self.w):
            self._get(pointer, f"y{channel}")
        self._get(step, "y_row")
        if self.epilogue == "sum":  # to both, before any is stored: they may be the same
            for sums, pointer in zip(self.sums, self.w, strict=True):
                self._add(sums, pointer)
        elif self.epilogue == "relu":
            for register in (register for sums in self.sums for register in sums):
                asm.max(register, register, "zero")  # as integers: the FPU makes no negative NaN
        run = self.inputs[0]
        asm.mv(run, RUN)
        for channel, pointer in enumerate(self.w):
            asm.mv(RUN, pointer)  # what is near the stack pointer takes the shortest instructions
            for pixel, register in enumerate(self.sums[channel]):
                asm.sw(register, RUN, 4 * pixel)
            asm("add", pointer, pointer, step)
        asm.mv(RUN, run)
        for channel, pointer in enumerate(self.w):
            self._put(pointer, f"y{channel}")

    def _add(self, sums: list[str], pointer: str) -> None:
        """What is there already, two at a time so that no load is waited for."""
        for pair in (range(len(sums))[i : i + 2] for i in range(0, len(sums), 2)):
            for pixel, there in zip(pair, self.inputs, strict=False):
                self.asm.lw(there, pointer, 4 * pixel)
            if len(pair) == 1:
                self.asm("nop")
            for pixel, there in zip(pair, self.inputs, strict=False):
                self.asm("fadd.s", sums[pixel], there, sums[pixel])

    def _next_row(self) -> None:
        """Leaves the number of rows to come in the first of the inputs."""
        asm, rows = self.asm, self.inputs[0]
        first, step = (registers[0] for registers in self.weights)
        self._get(rows, "rows")
        self._get(first, "first")
        self._get(step, "first_row")
        asm("addi", rows, rows, -1)
        self._put(rows, "rows")
        asm("add", first, first, step)
        self._put(first, "first")
