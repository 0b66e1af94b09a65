"""Direct convolution with channels in pairs: the blocks of direct.py, in which a word is two
numbers of 16 bits. Each product is of two channels of what is given; the two channels that a block
makes become a word when they are stored.

The weights of an input gradient lie side by side by input channel, and are wanted by output
channel: a core pairs those of its channels anew before it begins with them, in scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from gradlet.ir.elements import Element
from gradlet.kernels.xpulp.conv.direct import Block, Reach, blocks
from gradlet.kernels.xpulp.isa.asm import Asm, AssemblyError
from gradlet.kernels.xpulp.isa.narrow import HIGH_HALVES, Narrow, narrow, relu, zip_halves

RUN = "sp"


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    back, dilation = mode.startswith("input_grad"), params.get("dilation", 1)
    reach = Reach(params["kernel"], params["stride"], params.get("pad", 0), back, dilation)
    if reach.stride > 1 and reach._first:
        raise AssemblyError("the first pixel does not meet the first input")
    halves = halves_of(params["element"])
    made = blocks(partial(PairBlock, halves), reach, params["edge"], epilogue)
    return {**made, "pairs": True, "regroup": regroup() if back else ""}


def halves_of(element: Element) -> Narrow:
    found = narrow(element)
    if found is None:
        raise AssemblyError(f"two numbers of {element.name} are no word")
    return found


class PairBlock(Block):
    """Weights and inputs are dead where the sums are stored."""

    def __init__(
        self, halves: Narrow, reach: Reach, width: int, left: int, right: int, epilogue: str
    ) -> None:
        super().__init__(reach, width, left, right, epilogue)
        self.halves = halves

    def _multiply(self, total: str, value: str, weight: str) -> None:
        self.halves.dot(self.asm, total, value, weight)

    def _store(self) -> None:
        asm, step, (pointer, run) = self.asm, self.x, self.w
        self._get(pointer, "y0")
        self._get(step, "y_row")
        if self.epilogue == "sum":
            self._add_pairs(pointer)
        asm.mv(run, RUN)
        asm.mv(RUN, pointer)  # what is near the stack pointer takes the shortest instructions
        for pixel, (low, high) in enumerate(zip(*self.sums, strict=True)):
            self.halves.join(asm, low, low, high)
            if self.epilogue == "relu":
                relu(asm, low)
            asm.sw(low, RUN, 4 * pixel)
        asm.mv(RUN, run)
        asm("add", pointer, pointer, step)
        self._put(pointer, "y0")

    def _add_pairs(self, pointer: str) -> None:
        """What is there already."""
        (there, high), asm = self.inputs, self.asm
        for pixel, sums in enumerate(zip(*self.sums, strict=True)):
            asm.lw(there, pointer, 4 * pixel)
            self.halves.widen_high(asm, high, there)
            self.halves.widen(asm, there, there)
            for total, before in zip(sums, (there, high), strict=True):
                asm("fadd.s", total, before, total)


def regroup() -> str:
    """A function that pairs weights anew: of two neighbours of both dimensions, for all taps. Its
    struct: from, to; from the first output channel to the second, from the first input channel of
    the result to the second; how many pairs, and from pair to pair; taps."""
    asm = Asm("regroup")
    one, other, into, second, first, joined, selector = (f"t{i}" for i in range(7))
    apart, made, count, step, taps = (f"a{i}" for i in range(1, 6))
    asm.compressed(True)
    for place, register in enumerate((one, into, apart, made, count, step, taps)):
        asm.lw(register, "a0", 4 * place)
    asm.li(selector, HIGH_HALVES)
    asm("add", second, into, made)
    asm("add", other, one, apart)
    with asm.loop(1, count):
        asm.mv("a6", one)
        with asm.loop(0, taps):
            asm.lw_post(first, one, 4)
            asm.lw_post("a7", other, 4)
            zip_halves(asm, first, "a7", joined, selector)
            asm.sw_post(joined, into, 4)
            asm.sw_post(first, second, 4)
        asm("add", one, "a6", step)
        asm("add", other, one, apart)
    asm("ret")
    asm.compressed(False)
    return asm.function("const struct regroup *part")
