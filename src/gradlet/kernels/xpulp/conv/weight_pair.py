"""Gradient of convolution weights with channels in pairs, for every window: a product of matrices
whose sums go along pixels, two at a time.

In maps two channels are side by side, and here two pixels have to be. Of what is given, a core
copies the pixels that taps meet, four columns of one channel and tap each; pairs of output
gradients are turned in registers, on the way. A block has four columns and two pairs of outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from gradlet.kernels.xpulp.conv.direct_pair import halves_of
from gradlet.kernels.xpulp.isa.asm import IDLE, SAVED, SCRATCH, Asm
from gradlet.kernels.xpulp.isa.narrow import HIGH_HALVES, Narrow, store_half_post, zip_halves

BLOCK = ("d0", "d1", "columns", "apart", "count", "odd", "sums", "caller", "sp")
"""Of the block's struct, a word each: outputs, columns and the bytes between them, pairs of pixels
and whether there is one more, where sums go on."""
COPY = ("from", "low", "high", "rows", "width", "step", "row", "skip", "words", "clear")
"""Of the copy's struct: from where, to which two columns; rows and pixels of each; bytes from pixel
to pixel, from the end of a row to the next, likewise in columns; pairs of words that are cleared
before, from `clear` on."""
COLUMNS, OUTPUTS = 4, 4


def generate(mode: str, epilogue: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"functions": f"{block(halves_of(params['element']))}\n\n{copy()}"}


def block(halves: Narrow) -> str:
    """Adds the products of four columns and four outputs to their sums."""
    asm = Asm("block")
    names = iter((*SAVED, *SCRATCH, *IDLE, "ra", *(f"a{n}" for n in range(8))))
    sums = [[next(names) for _ in range(OUTPUTS)] for _ in range(COLUMNS)]
    outs = [next(names) for _ in range(OUTPUTS)]
    others, columns = [next(names) for _ in range(2)], [next(names) for _ in range(COLUMNS)]
    given, selector = [next(names) for _ in range(2)], next(names)

    def get(register: str, field: str) -> None:
        asm.lw(register, "sp", 4 * BLOCK.index(field))

    def products() -> None:
        """Of the next words of all columns; two are loaded while others are used."""
        for n, (pointer, column) in enumerate(zip(columns, sums, strict=True)):
            if n == 0:
                asm.lw_post(others[0], pointer, 4)
            if n + 1 < COLUMNS:
                asm.lw_post(others[(n + 1) % 2], columns[n + 1], 4)
            for total, out in zip(column, outs, strict=True):
                halves.dot(asm, total, others[n % 2], out)

    asm.compressed(True)
    asm.enter(4 * BLOCK.index("caller"))
    get(outs[0], "sums")
    for n, total in enumerate(chain(*sums)):
        asm.lw(total, outs[0], 4 * n)
    get(columns[0], "columns")
    get(outs[1], "apart")
    get(given[0], "d0")
    get(given[1], "d1")
    get(outs[2], "count")
    for before, column in pairwise(columns):
        asm("add", column, before, outs[1])
    asm.li(selector, HIGH_HALVES)
    asm.branch("beqz", outs[2], to="last")
    with asm.loop(0, outs[2]):
        _turn_two(asm, outs, others, given, selector)
        products()
    asm.label("last")
    get(outs[0], "odd")
    asm("nop")
    asm.branch("beqz", outs[0], to="done")
    _turn_one(asm, outs, given)
    products()
    asm.label("done")
    get(outs[0], "sums")
    for n, total in enumerate(chain(*sums)):
        asm.sw(total, outs[0], 4 * n)
    asm.leave(4 * BLOCK.index("caller"))
    asm.compressed(False)
    return asm.function("struct block *block")


def _turn_two(
    asm: Asm, outs: Sequence[str], others: Sequence[str], given: Sequence[str], selector: str
) -> None:
    """Two pixels of two pairs of outputs, as a word of each output."""
    for pair, pointer in enumerate(given):
        asm.lw(others[pair], pointer, 4)
        asm.lw_post(outs[2 * pair + 1], pointer, 8)
    for pair in range(2):
        low, high = outs[2 * pair : 2 * pair + 2]
        zip_halves(asm, high, others[pair], low, selector)


def _turn_one(asm: Asm, outs: Sequence[str], given: Sequence[str]) -> None:
    """A pixel with nothing beside it."""
    for pair, pointer in enumerate(given):
        low, high = outs[2 * pair : 2 * pair + 2]
        asm.lw(low, pointer)
        asm("srli", high, low, 16)
        asm("slli", low, low, 16)
        asm("srli", low, low, 16)


def copy() -> str:
    """Takes both channels of some pixels to columns of their own."""
    asm = Asm("copy")
    given, low, high, rows, width, step, row, skip, words, clear = (
        *(f"t{n}" for n in range(7)),
        *("a1", "a2", "a3"),
    )
    asm.compressed(True)
    for n, register in enumerate((given, low, high, rows, width, step, row, skip, words, clear)):
        asm.lw(register, "a0", 4 * n)
    asm.branch("beqz", words, to="cleared")
    with asm.loop(0, words):
        asm.sw_post("zero", clear, 4)
        asm.sw_post("zero", clear, 4)
    asm.label("cleared")
    asm.branch("beqz", rows, to="out")
    with asm.loop(1, rows):
        with asm.loop(0, width):
            asm.lw_post("a4", given, step)
            store_half_post(asm, "a4", low, 2)
            asm("srli", "a4", "a4", 16)
            store_half_post(asm, "a4", high, 2)
        asm("add", given, given, row)
        asm("add", low, low, skip)
        asm("add", high, high, skip)
    asm.label("out")
    asm("ret")
    asm.compressed(False)
    return asm.function("const struct copy *copy")
