"""Convolutions with a single tap and strides: 4 lines of one operand past 4 values of the other.

As a matrix product in blocks whose operands are read where they lie, with the strides of the image.
A block has its sums in registers while k runs: over the given channels, or for the gradient of
weights over the pixels of an image, line by line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradlet.kernels.xpulp.gemm.block import pattern
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.isa.store import store_block, store_momentum
from gradlet.targets.cost import Cost

FIELDS = (
    *("s", "h", "c", "moment", "n4", "rate", "decay", "momentum", "nesterov"),
    *("k", "turns", "jump", "s_step", "h_step", "bias", "b_step", "tail", "blocks"),
    *("caller", "sp", "left", "down", "quads", "across", "s_first", "c_first", "bias_first"),
    *("h_next", "c_next", "h_row", "c_row", "s_row"),
)
"""Of the struct that a block is called with, a word each; sums follow where the store wants them
in memory."""
SIZES = (1, 2, 4)
"""Lines and held ones of a block."""
ONE_K = 24
"""Instructions of a block of 4 x 4 for each k."""
POOL = (*ARGUMENTS, *SCRATCH, *IDLE, *SAVED, "ra")


@dataclass(frozen=True)
class Operand:
    """How a block walks through one operand. apart: bytes from value to value of one k, or 0 if
    that is a number of the struct; then `on` is what leads to the next k, else the struct has it.
    """

    apart: int = 0
    on: int = 0

    def order(self, count: int) -> tuple[int, ...]:
        """The last load of one k moves the pointer on, and must be at the pointer."""
        return (*range(1, count), 0) if self.apart else tuple(range(count))


@dataclass(frozen=True)
class Shape:
    """s: the operand whose lines are streamed, h: the one that is held."""

    s: Operand
    h: Operand
    plane: bool = False  # k runs over an image
    bias: str = ""  # s: each line has one, h: each held value
    rows: bool = False  # lines are pixels
    spread: bool = False  # results are two words apart, with zeros between


def shape_of(mode: str, stride: int) -> Shape:
    near, far = Operand(apart=4), Operand(on=4)
    return {
        "forward": Shape(far, Operand(apart=4 * stride), bias="s"),
        "input_grad": Shape(near, near, spread=True),
        "weight_grad": Shape(far, Operand(on=4 * stride), plane=True),
        "forward_hwc": Shape(far, far, bias="h", rows=True),
        "input_grad_hwc": Shape(far, near, rows=True),
        "weight_grad_hwc": Shape(near, near, plane=True),
    }[mode]


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    shape = shape_of(mode, params["stride"])
    blocks = [_Block(shape, epilogue, lines, held) for lines in SIZES for held in SIZES]
    return {
        "shape": shape,
        "step": mode.removesuffix("_hwc"),
        "last": mode.endswith("_hwc"),
        "functions": "\n\n".join(block.function() for block in blocks),
        "table": ", ".join(f"(uintptr_t){block.name}" for block in blocks),
    }


def cost(
    mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any], constants: Cost
) -> float:
    """Cycles of the busiest core."""
    pixels, made, given = (sizes[name] for name in ("out_w", "out_channels", "in_channels"))
    rows, k = sizes["batch"] * sizes["out_h"], made if mode.startswith("input_grad") else given
    lines, held = made if mode == "forward" else given, pixels
    if mode.startswith("weight_grad"):
        lines, held, k, rows = made, given, pixels * rows, 1
    each = -(-rows * -(-lines // 4) * -(-held // 4) // cores)
    block = constants.strided_instruction * ONE_K * k + constants.strided_block
    return float(each * block + constants.strided_start)


class _Block:
    """One function: some blocks of so many lines, one below the other, for the same held ones."""

    def __init__(self, shape: Shape, epilogue: str, lines: int, held: int) -> None:
        self.shape, self.epilogue, self.lines, self.held = shape, epilogue, lines, held
        self.name = f"block_{lines}_{held}"
        self.asm, self.regs = Asm(self.name), Registers(POOL)
        self.sums = [[self.regs.one(f"sum{i}_{j}") for j in range(held)] for i in range(lines)]
        self.values = [self.regs.one(f"value{j}") for j in range(held)]
        self.flow = self.regs.take("flow0", "flow1")
        for name, operand, count in self._operands():
            self.regs.take(f"p_{name}")
            if operand.apart or count > 1:
                self.regs.take(f"{name}_step")
            if not operand.apart and count > 1:
                self.regs.take(f"{name}_back")
        self.regs.take("k", *(["jump"] if shape.plane else []))

    def _operands(self) -> list[tuple[str, Operand, int]]:
        return [("s", self.shape.s, self.lines), ("h", self.shape.h, self.held)]

    def function(self) -> str:
        asm = self.asm
        asm.compressed(True)
        asm.enter(4 * FIELDS.index("caller"))
        if self.epilogue != "momentum":
            self._steps()
        asm.label("block")
        if self.epilogue == "momentum":  # its store takes all registers
            self._steps()
        self._begin()
        self._products()
        self._store()
        self._next_block()
        whole = self.lines == self.held == SIZES[-1]
        if whole:
            self.word("lw", self.flow[0], "left")
            asm("nop")
            asm.branch("bnez", self.flow[0], to="strip")
        asm.leave(4 * FIELDS.index("caller"))
        if whole:
            self._next_strip()
        asm.compressed(False)
        return asm.function("struct run *run")

    def word(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{4 * FIELDS.index(name)}(sp)")

    def _steps(self) -> None:
        """What stays the same from block to block. back: from the last line of one k to the first
        of the next."""
        asm, regs = self.asm, self.regs
        for name in ("s_step", "h_step", "k", "jump"):
            if name in regs.named:
                self.word("lw", regs[name], name)
        for name, operand, count in self._operands():
            if f"{name}_back" in regs.named:
                back, step = regs[f"{name}_back"], regs[f"{name}_step"]
                asm.mv(back, step)
                for _ in range(count - 2):
                    asm("add", back, back, step)
                asm("sub", back, "zero", back)
                asm("addi", back, back, operand.on)

    def _begin(self) -> None:
        asm, regs = self.asm, self.regs
        firsts = {
            "s": [line[0] for line in self.sums],
            "h": self.sums[0],
            "": [],
        }[self.shape.bias]
        if firsts:
            pointer, step = self.flow
            self.word("lw", pointer, "bias")
            self.word("lw", step, "b_step")
            for register in firsts:
                asm.lw_post(register, pointer, step)
            if self.shape.bias == "s":
                self.word("sw", pointer, "bias")
        self.word("lw", regs["p_s"], "s")
        self.word("lw", regs["p_h"], "h")
        for line in self.sums:
            for j, register in enumerate(line):
                if register not in firsts:
                    first = {"s": line[0], "h": self.sums[0][j], "": "zero"}[self.shape.bias]
                    asm.mv(register, first)

    def _products(self) -> None:
        asm, regs = self.asm, self.regs
        if not self.shape.plane:
            with asm.loop(0, regs["k"]):
                self._one_k()
            return
        self.word("lw", self.flow[0], "turns")
        with asm.loop(1, self.flow[0]):
            with asm.loop(0, regs["k"]):
                self._one_k()
            asm("add", regs["p_h"], regs["p_h"], regs["jump"])

    def _one_k(self) -> None:
        s, h = self.shape.s, self.shape.h
        lines, held = s.order(self.lines), h.order(self.held)
        streams, holds = iter(enumerate(lines)), iter(held)
        pairs = ((turn, i) for turn in range(self.lines) for i in held)
        for step in pattern(self.lines, self.held, (s.apart == 0) != (h.apart == 0)):
            if step == "s":
                turn, line = next(streams)
                self._load("s", s, self.flow[turn % 2], line, self.lines)
            elif step == "h":
                i = next(holds)
                self._load("h", h, self.values[i], i, self.held)
            else:
                turn, i = next(pairs)
                total = self.sums[lines[turn]][i]
                self.asm("fmadd.s", total, self.flow[turn % 2], self.values[i], total)

    def _load(self, name: str, operand: Operand, into: str, index: int, count: int) -> None:
        asm, regs, pointer = self.asm, self.regs, self.regs[f"p_{name}"]
        if operand.apart and index:
            asm.lw(into, pointer, operand.apart * index)
        elif operand.apart or index < count - 1:
            asm.lw_post(into, pointer, regs[f"{name}_step"])
        else:
            asm.lw_post(into, pointer, regs[f"{name}_back"] if count > 1 else operand.on)

    def _store(self) -> None:
        lasting = ("s_step", "s_back", "h_step", "h_back", "k", "jump")
        kept = {self.regs.named.get(name, "") for name in lasting}
        sums = {register for line in self.sums for register in line}
        free = [register for register in POOL if register not in kept | sums]
        if self.shape.spread:
            self._store_spread(*free[:4])
        elif self.epilogue == "momentum":
            registers = [register for register in POOL if register not in sums]
            registers += [register for register in POOL if register in sums]
            store_momentum(self.asm, self.sums, registers, self.word, 4 * len(FIELDS))
        else:
            store_block(self.asm, self.epilogue, self.sums, free, self.word)

    def _store_spread(self, pointer: str, step: str, tail: str, old: str) -> None:
        """The last zero goes to `tail`: to 0, where a result comes afterwards, if the line of the
        image ends before it."""
        asm = self.asm
        self.word("lw", pointer, "c")
        self.word("lw", step, "n4")
        self.word("lw", tail, "tail")
        for line in self.sums:
            if self.epilogue == "sum":
                for i, register in enumerate(line):
                    asm.lw(old, pointer, 8 * i)
                    asm("nop")
                    asm("fadd.s", register, old, register)
            else:
                asm("add", old, pointer, tail)
                asm.sw("zero", old)
            for i, register in enumerate(line[1:], 1):
                if self.epilogue != "sum":
                    asm.sw("zero", pointer, 8 * i - 4)
                asm.sw(register, pointer, 8 * i)
            asm.sw_post(line[0], pointer, step)
        self.word("sw", pointer, "c")

    def _next_strip(self) -> None:
        """The next held ones, from the first line on: of the same row of pixels, or of the next."""
        asm, left, (h, c, down, first, step, quads) = self.asm, self.flow[0], self._dead(6)
        asm.label("strip")
        for register, name in ((down, "down"), (first, "s_first"), (h, "h"), (step, "h_next")):
            self.word("lw", register, name)
        asm.min(down, down, left)
        asm("sub", left, left, down)
        asm("add", h, h, step)
        for register, name in ((left, "left"), (down, "blocks"), (first, "s")):
            self.word("sw", register, name)
        for register, name in ((quads, "quads"), (c, "c_first"), (step, "c_next")):
            self.word("lw", register, name)
        asm("addi", quads, quads, -1)
        asm("add", c, c, step)
        if self.shape.bias:
            self._next_bias(first, step)
        asm.branch("bnez", quads, to="same_row")
        for register, name in ((quads, "across"), (first, "h_row"), (step, "c_row")):
            self.word("lw", register, name)
        asm("add", h, h, first)
        asm("add", c, c, step)
        if self.shape.bias == "h":
            self.word("lw", first, "bias_first")
            asm("nop")
            self.word("sw", first, "bias")
        if self.shape.rows:
            self.word("lw", first, "s_first")
            self.word("lw", step, "s_row")
            asm("nop")
            asm("add", first, first, step)
            self.word("sw", first, "s_first")
            self.word("sw", first, "s")
        asm.label("same_row")
        for register, name in ((quads, "quads"), (h, "h"), (c, "c"), (c, "c_first")):
            self.word("sw", register, name)
        asm.branch("j", to="block")

    def _next_bias(self, bias: str, step: str) -> None:
        asm = self.asm
        self.word("lw", bias, "bias_first" if self.shape.bias == "s" else "bias")
        if self.shape.bias == "h":
            self.word("lw", step, "b_step")
            asm("slli", step, step, 2)
            asm("add", bias, bias, step)
        self.word("sw", bias, "bias")

    def _dead(self, count: int) -> list[str]:
        """Registers that nobody needs between two blocks."""
        return [register for line in self.sums for register in line][:count]

    def _next_block(self) -> None:
        """On to the lines below."""
        asm, regs, (left, step) = self.asm, self.regs, self.flow
        pointer = regs["p_s"]
        self.word("lw", pointer, "s")
        self.word("lw", left, "blocks")
        if self.shape.s.apart:
            asm("addi", pointer, pointer, self.shape.s.apart * self.lines)
        else:
            self.word("lw", step, "s_step")
            asm("slli", step, step, self.lines.bit_length() - 1)
            asm("add", pointer, pointer, step)
        self.word("sw", pointer, "s")
        asm("addi", left, left, -1)
        self.word("sw", left, "blocks")
        asm.branch("bnez", left, to="block")
