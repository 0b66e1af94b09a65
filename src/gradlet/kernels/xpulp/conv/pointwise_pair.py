"""Pointwise convolution with channels in pairs: four channels of some pixels at a time.

A pixel of a pair of channels is a word. The weights of the four channels lie side by side, as a
core lays them out in scratch before it begins with them: so one pointer is enough for them. Pixels
that are missing behind the last five have a function for their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.conv.direct_pair import halves_of
from gradlet.kernels.xpulp.isa.asm import IDLE, SAVED, SCRATCH, Asm
from gradlet.kernels.xpulp.isa.narrow import HIGH_HALVES, Narrow, relu, zip_halves

FIELDS = (
    *("x", "plane", "back", "w", "y0", "y1", "blocks", "count"),
    *("b0", "b1", "b2", "b3", "caller", "sp"),
)
"""Of the struct, a word each: the first pixel, bytes to the next pair of channels, from behind the
last pair to the next pixels; weights; results of both pairs; how often, and how many pairs."""
CHANNELS, WIDEST = 4, 5


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    halves = halves_of(params["element"])
    widths = range(1, WIDEST + 1)
    made = [block(halves, width, epilogue) for width in widths]
    back = mode.startswith("input_grad")
    return {
        "functions": "\n\n".join([*made, beside(back)]),
        "table": ", ".join(f"(uintptr_t)pixels_{width}" for width in widths),
        "back": back,
        "widest": WIDEST,
    }


def block(halves: Narrow, width: int, epilogue: str) -> str:
    asm = Asm(f"pixels_{width}")
    names = iter((*SAVED, *SCRATCH, *IDLE, "ra", *(f"a{n}" for n in range(8))))
    sums = [[next(names) for _ in range(width)] for _ in range(CHANNELS)]
    weights = [next(names) for _ in range(CHANNELS)]
    inputs, x, w, plane = [next(names) for _ in range(2)], next(names), next(names), next(names)

    def get(register: str, field: str) -> None:
        asm.lw(register, "sp", 4 * FIELDS.index(field))

    def load(pixel: int) -> None:
        if pixel == width - 1:
            asm.lw_post(inputs[pixel % 2], x, plane)
        else:
            asm.lw(inputs[pixel % 2], x, 4 * (pixel - width + 1))

    asm.compressed(True)
    asm.enter(4 * FIELDS.index("caller"))
    get(x, "x")
    get(plane, "plane")
    get(weights[0], "blocks")
    asm("addi", x, x, 4 * (width - 1))
    with asm.loop(1, weights[0]):
        for channel, own in enumerate(sums):
            get(own[0], f"b{channel}")
        get(w, "w")
        get(weights[0], "count")
        for own in sums:
            for total in own[1:]:
                asm.mv(total, own[0])
        with asm.loop(0, weights[0]):
            load(0)
            for register in weights:
                asm.lw_post(register, w, 4)
            for pixel in range(width):
                if pixel + 1 < width:
                    load(pixel + 1)
                elif width == 1:
                    asm("nop")
                for own, weight in zip(sums, weights, strict=True):
                    halves.dot(asm, own[pixel], inputs[pixel % 2], weight)
        get(weights[0], "back")
        get(weights[1], "y0")
        get(weights[2], "y1")
        asm("add", x, x, weights[0])
        store(asm, halves, epilogue, sums, weights[1:3], [weights[0], weights[3]])
        for field, pointer in zip(("y1", "y0"), (weights[2], weights[1]), strict=True):
            asm.sw(pointer, "sp", 4 * FIELDS.index(field))
    asm.leave(4 * FIELDS.index("caller"))
    asm.compressed(False)
    return asm.function("struct pixels *pixels")


def store(
    asm: Asm,
    halves: Narrow,
    epilogue: str,
    sums: list[list[str]],
    pointers: list[str],
    spare: list[str],
) -> None:
    """The second pair first: it may lie where the first does, and is lost then."""
    pairs = [(sums[2], sums[3], pointers[1]), (sums[0], sums[1], pointers[0])]
    for lows, highs, pointer in pairs if epilogue == "sum" else []:
        there, other = spare
        for pixel, own in enumerate(zip(lows, highs, strict=True)):
            asm.lw(there, pointer, 4 * pixel)
            halves.widen_high(asm, other, there)
            halves.widen(asm, there, there)
            for total, before in zip(own, (there, other), strict=True):
                asm("fadd.s", total, before, total)
    for lows, highs, pointer in pairs:
        for low, high in zip(lows, highs, strict=True):
            halves.join(asm, low, low, high)
            if epilogue == "relu":
                relu(asm, low)
            asm.sw_post(low, pointer, 4)


def beside(back: bool) -> str:
    """Lays the weights of two channels side by side, in every second pair of words. Its struct:
    from, to, how many, and bytes from one to the next; to the second channel's, or, in an input
    gradient, to those of the second output channel, with which each is paired anew."""
    asm = Asm("beside")
    one, other, into, first, second, joined, selector = (f"t{n}" for n in range(7))
    count, step, apart = "a1", "a2", "a3"
    asm.compressed(True)
    for n, register in enumerate((one, into, count, step, apart)):
        asm.lw(register, "a0", 4 * n)
    asm.li(selector, HIGH_HALVES)
    asm("add", other, one, apart)
    with asm.loop(0, count):
        asm.lw_post(first, one, step)
        asm.lw_post(second, other, step)
        if back:
            zip_halves(asm, first, second, joined, selector)
            asm.sw(first, into, 4)
            asm.sw_post(joined, into, 16)
        else:
            asm.sw_post(first, into, 4)
            asm.sw_post(second, into, 12)
    asm("ret")
    asm.compressed(False)
    return asm.function("const struct beside *beside")
