"""Convolutions as matrix products: the inputs that four results meet are laid side by side, then
lines of the other operand are streamed past them.

A quad is [k][4]: for outputs and gradients of inputs the inputs of four pixels, for gradients of
weights those of four taps. A core makes the quads that it uses itself. The product is that of the
gemm kernels, with distances of its own, and k in pieces where steps would not all be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlet.xpulp.asm import Asm, Registers
from gradlet.xpulp.gemm_block import (
    MOST_SUMS,
    PIECES,
    POINTER,
    SPILL,
    WORK,
    Operand,
    Product,
    at,
    signature,
)
from gradlet.xpulp.gemm_panel import BIAS, HEIGHT, Panel

HELD = 4
BLOCKS = (5, 4, 3, 2, 1)
TYPES = {
    **dict.fromkeys(("s", "h", "bias"), "const float *"),
    "c": "float *",
    "moment": "intptr_t ",
    **dict.fromkeys(("rate", "decay", "momentum", "nesterov"), "float "),
    **dict.fromkeys(PIECES, "const int *"),
}
"""Of the words in C; all others are int."""
STREAMED = {"input_grad_hwc": False, "weight_grad_hwc": False}
"""Whether a streamed line has its values at equal distances, not those of one k side by side."""


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

    @property
    def apart(self) -> bool:
        return True

    def load(self, asm: Asm, regs: Registers, into: str, line: int) -> None:
        last = line == self.lines - 1
        asm.lw_post(into, regs["p_s"], regs["back_s" if last else self.step])

    def prepare(self, asm: Asm, regs: Registers) -> None:
        back = regs["back_s"]
        asm.lw(back, "sp", at("m4"))
        if self.lines > 1:
            asm("addi", regs["flow0"], "zero", 1 - self.lines)
            asm.mac(back, regs["flow0"], regs[self.step])

    def next_block(self, asm: Asm, regs: Registers, into: str, spare: str) -> None:
        if self.lines == 1:
            asm.lw(spare, "sp", at(self.step))
            asm("add", into, regs["p_s"], spare)
        else:
            asm("addi", spare, "zero", self.lines)
            asm.mv(into, regs["p_s"])
            asm.mac(into, spare, regs[self.step])


@dataclass(frozen=True)
class Convolution(Product):
    def operand(self, name: str, lines: int) -> Operand:
        if name == "h":
            return Quad(name, lines, False, "")
        if STREAMED.get(self.mode, True):
            return Lines(name, lines, True, "k4")
        return Operand(name, lines, False, "m4")


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    step, last = mode.removesuffix("_hwc"), mode.endswith("_hwc")
    by_pixels = step != "weight_grad"
    product = Convolution(
        mode,
        epilogue,
        hold="a" if by_pixels and last else "b",
        bias_of_rows=not last,
        biased=step == "forward",
        pieces=step == "input_grad" or mode == "weight_grad",
    )
    return {
        "step": step,
        "last": last,
        "product": product,
        "lines_inside": STREAMED.get(mode, True),
        "struct": _struct(),
        "panel": _panel(product),
        "hyper": {"sgd": 2, "momentum": 4}.get(epilogue, 0),
    }


def _struct() -> str:
    names = {word: name for name, word in PIECES.items()}
    fields = [names.get(word, word) for word in WORK]
    lines = [f"    {TYPES.get(name, 'int ')}{name};" for name in fields]
    return "\n".join([*lines, f"    float sums[{MOST_SUMS}];", "    int caller[2];"])


def _panel(product: Product) -> str:
    """All lines for one quad; the struct is at sp meanwhile."""
    asm, out = Asm("panel"), "out"
    panel = Panel(asm, product, HELD, BLOCKS)
    caller = SPILL + 4 * MOST_SUMS
    argument = signature(product.epilogue)
    asm.compressed(True)
    asm.enter(caller)
    loads = [(POINTER, "s"), (argument[product.hold], "h"), (argument["c"], "c")]
    loads += [(HEIGHT, "height"), *([(BIAS, "bias")] if product.biased else [])]
    for register, name in loads:
        asm.lw(register, "sp", at(name))
    panel.often(out, near=True)
    asm.compressed(True)
    asm.label(out)
    asm.leave(caller)
    panel.hops()
    panel.seldom()
    return asm.function("struct panel *p")
