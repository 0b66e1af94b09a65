"""Convolutions as matrix products: the inputs that four results meet are laid side by side, then
lines of the other operand are streamed past them.

A quad is [k][4]: for outputs and gradients of inputs the inputs of four pixels, for gradients of
weights those of four taps. A core makes the quads that it uses itself, as much of one at a time as
its scratch holds; meanwhile the sums of all lines are in memory. The blocks are those of the matrix
products with distances of their own, and with k in pieces where steps would not all be the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradlet.kernels.xpulp.gemm.block import POINTER, Block
from gradlet.kernels.xpulp.gemm.panel import HEIGHT, Panel
from gradlet.kernels.xpulp.gemm.product import SPILL, WORK, Operand, Product, at, signature
from gradlet.kernels.xpulp.isa.asm import Asm, Registers
from gradlet.targets.cost import Cost

HELD = 4
BLOCKS = (5, 4, 3, 2, 1)
ALIAS = {"pieces": "columns", "piece": "apart"}
"""Words for several panels, of which there is one: the list of the pieces, the place in it."""
TYPES = {
    **dict.fromkeys(("s", "h"), "const float *"),
    "c": "float *",
    **dict.fromkeys(ALIAS, "const int *"),
}
"""Of the words in C; all others are int."""
SIDE_BY_SIDE = ("input_grad_hwc", "weight_grad_hwc")
"""Where the streamed values of one k lie side by side."""


@dataclass(frozen=True)
class Quad(Operand):
    """The held operand: the distance is a constant."""

    @property
    def registers(self) -> tuple[str, ...]:
        return (f"p_{self.name}",)

    def load(self, asm: Asm, regs: Registers, into: str, line: int) -> None:
        pointer = regs[f"p_{self.name}"]
        if line == 0:
            asm.lw_post(into, pointer, 4 * HELD)
        else:
            asm.lw(into, pointer, 4 * line)


@dataclass(frozen=True)
class Lines(Operand):
    """Streamed lines: k4 bytes from one to the next, m4 from k to k."""

    @property
    def registers(self) -> tuple[str, ...]:
        return ("p_s", "back_s", *((self.step,) if self.lines > 1 else ()))

    def load(self, asm: Asm, regs: Registers, into: str, line: int) -> None:
        last = line == self.lines - 1
        asm.lw_post(into, regs["p_s"], regs["back_s" if last else self.step])

    def prepare(self, asm: Asm, regs: Registers) -> None:
        back = regs["back_s"]
        asm.lw(back, "sp", at("m4"))
        if self.lines > 1:
            asm("addi", regs["flow0"], "zero", 1 - self.lines)
            asm.mac(back, regs["flow0"], regs[self.step])


@dataclass(frozen=True)
class Convolution(Product):
    pieces: bool = False

    def operand(self, name: str, lines: int) -> Operand:
        if name == "h":
            return Quad(name, lines, False, "")
        if self.mode in SIDE_BY_SIDE:
            return Operand(name, lines, False, "m4")
        return Lines(name, lines, True, "k4")


class SumsInMemory(Block):
    """A block that begins with the sums at c, four of each line, and leaves them there."""

    def __init__(self, asm: Asm, product: Convolution, lines: int) -> None:
        super().__init__(asm, product, lines, HELD, biased=False)
        assert self.keeps_stack
        self.pieces = product.pieces

    def word(self, op: str, register: str, name: str) -> None:
        super().word(op, register, ALIAS.get(name, name))

    def write(self) -> None:
        asm, sums, count = self.asm, self.values[0], self.values[1]
        self.word("lw", self.regs["p_s"], "s")
        self.word("lw", count, "more")
        self._next_block(self.values[0], self.values[2])
        asm.iterations(0, count)
        self.word("lw", sums, "c")
        self.word("lw", self.regs["p_h"], "h")
        self._move("lw", sums)
        asm.label(self.start)
        start = asm.count
        self._one_k(first=False)
        asm.close(self.end, start)
        if self.pieces:
            self._next_piece()
        self.word("lw", sums, "c")
        asm("addi", count, sums, 4 * HELD * self.lines)
        self._move("sw", sums)
        self.word("sw", count, "c")

    def leave(self) -> None:
        """Nothing is kept."""

    def _next_block(self, into: str, spare: str) -> None:
        asm, pointer, lines = self.asm, self.regs["p_s"], self.lines
        if not self.stream.inside:
            asm("addi", into, pointer, 4 * lines)
        elif lines == 1:
            self.word("lw", spare, self.stream.step)
            asm("add", into, pointer, spare)
        else:
            asm("addi", spare, "zero", lines)
            asm.mv(into, pointer)
            asm.mac(into, spare, self.regs[self.stream.step])
        self.word("sw", into, "s")

    def _move(self, op: str, pointer: str) -> None:
        for place, (line, i) in enumerate(self.sums):
            self.asm(op, self.sums[line, i], f"{4 * place}({pointer})")

    def _next_piece(self) -> None:
        """The list has the distance to each further piece, then -1. Held values are dead here."""
        asm, done = self.asm, self.asm.fresh()
        place, distance, count = self.values[1:4]
        self.word("lw", place, "piece")
        self.word("lw", count, "more")
        asm.lw_post(distance, place, 4)
        self.word("sw", place, "piece")
        asm.beq_imm(distance, -1, to=done)
        asm("add", self.regs["p_s"], self.regs["p_s"], distance)
        asm.iterations(0, count)
        asm.branch("j", to=self.start)
        asm.label(done)
        self.word("lw", place, "pieces")
        self.word("sw", place, "piece")


class OnePanel(Panel):
    def __init__(self, asm: Asm, product: Convolution) -> None:
        super().__init__(asm, product, HELD, BLOCKS)
        self.convolution = product

    def block(self, lines: int, *, biased: bool = True) -> Block:
        return SumsInMemory(self.asm, self.convolution, lines)

    def function(self) -> str:
        """All lines for one quad; the struct is at sp meanwhile."""
        asm, out, argument = self.asm, "out", signature(self.product.epilogue)
        asm.compressed(True)
        asm.enter(SPILL)
        held = argument[self.product.hold]
        begin = {POINTER: "s", held: "h", argument["c"]: "c", HEIGHT: "height"}
        for register, name in begin.items():
            asm.lw(register, "sp", at(name))
        self.often(out, near=True)
        asm.compressed(True)
        asm.label(out)
        asm.leave(SPILL)
        self.hops()
        self.seldom()
        return asm.function("struct panel *p")


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    step = mode.removesuffix("_hwc")
    product = Convolution(mode, "", "b", biased=False, pieces=step != "weight_grad")
    return {
        "step": step,
        "last": mode.endswith("_hwc"),
        "pieces": product.pieces,
        "side_by_side": mode in SIDE_BY_SIDE,
        "struct": _struct(),
        "panel_function": OnePanel(Asm("panel"), product).function(),
    }


def cost(
    mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any], constants: Cost
) -> float:
    """Cycles of the busiest core."""
    groups, taps = sizes["groups"], sizes["kernel_h"] * sizes["kernel_w"]
    inputs, outputs = (sizes[name] // groups for name in ("in_channels", "out_channels"))
    images, phases = sizes["batch"] * groups, 1
    if mode.startswith("weight_grad"):
        pixels = sizes["batch"] * sizes["out_h"] * sizes["out_w"]
        quads, lines = groups * -(-inputs * taps // HELD), outputs
        line = constants.im2col_step * pixels + constants.im2col_line
        packing = constants.im2col_pixel * pixels + constants.im2col_group
    elif mode.startswith("forward"):
        quads, lines = images * -(-sizes["out_h"] * sizes["out_w"] // HELD), outputs
        line, packing = _taps(taps, inputs, constants)
    else:  # a quad of a phase meets those taps only that belong to it
        phases, rows = sizes["stride_h"] * sizes["stride_w"], sizes["in_h"]
        more = 3 * rows if sizes["stride_w"] > 1 else 3
        quads, lines = images * ((rows * sizes["in_w"] + more) // HELD), inputs
        line, packing = _taps(taps, outputs, constants)
    whole, left = divmod(quads, cores)
    last = 1 / max(1, cores // left) if left else 0.0  # of the lines of a quad, at least
    busiest = (whole + last) * lines * line + (whole + (left > 0)) * packing
    return float(constants.im2col_start + busiest / phases)


def _taps(taps: int, given: int, constants: Cost) -> tuple[float, float]:
    """Of a line, and of packing, for four pixels."""
    line = taps * (constants.im2col_step * given + constants.im2col_turn)
    return line, taps * (constants.im2col_pack * given + constants.im2col_tap)


def _struct() -> str:
    """The words at sp in C, and two for the function."""
    names = {word: name for name, word in ALIAS.items()}
    fields = [names.get(word, word) for word in WORK]
    lines = [f"    {TYPES.get(name, 'int ')}{name};" for name in fields]
    return "\n".join([*lines, "    int caller[2];"])
