"""A vector times a matrix of narrow elements, and its outer product with another one as an update,
in arithmetic of 16 bits: two columns in an instruction.

Sums are of 16 bits over CHUNK rows at most, then they are added to sums in single precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradlet.ir.elements import Element
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.isa.narrow import (
    FORMATS,
    LANES,
    Narrow,
    load_half,
    load_half_post,
    store_half_post,
)

CHUNK = 32
WIDTHS = (16, 8, 2, 1)
"""Columns of a block, as many as there are left."""
ONE = {"f16": 0x3C00, "bf16": 0x3F80}
AT_ONCE = 3
"""Words of the matrix on their way."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    element: Element = params["element"]
    made: dict[str, Any] = {
        "chunk": CHUNK,
        "columns_at_once": WIDTHS,
        "stored": element.store.format,
    }
    if params["what"] == "columns":
        made["blocks"] = "\n\n".join(_Columns(element, w, epilogue).text() for w in WIDTHS)
    else:
        made["blocks"] = "\n\n".join(_update(element, width) for width in WIDTHS)
    return made


def growth(mode: str, params: Mapping[str, Any]) -> tuple[float, int]:
    """A sum of so many terms has as many roundings, only coarser ones."""
    element: Element = params["element"]
    return element.unit_roundoff / element.sums.unit_roundoff, 0


class _Columns:
    """columns{width}(to, a, b, k, step, bias): products of a[k] and as many columns of b, whose
    rows are `step` bytes apart; numbers of the element, or floats where an epilogue takes them."""

    def __init__(self, element: Element, width: int, epilogue: str) -> None:
        self.asm, self.width = Asm(f"columns{width}"), width
        self.element, self.narrow, self.floats = element, FORMATS[element.name], bool(epilogue)
        self.words = -(-width // LANES)
        self.result = f"{'float' if epilogue else element.c} *to"

    def text(self) -> str:
        asm, kept = self.asm, (*SAVED, "ra")
        to, a, b, k, step, bias = ARGUMENTS[:6]
        asm.push(kept, 16)
        asm.sw(to, "sp", 0)
        asm.sw(k, "sp", 4)
        regs = Registers((*SCRATCH, *IDLE, *SAVED, "ra", *ARGUMENTS))
        self.p_a, self.p_b, self.hop = a, b, step
        for name, register in (("a", a), ("b", b), ("hop", step), ("bias", bias)):
            regs.claim(name, register)
        self.totals = regs.take(*(f"total{i}" for i in range(self.width)))
        self._begin(bias)
        regs.give_back("bias")
        self.sums = regs.take(*(f"sum{i}" for i in range(self.words)))
        self.value, *self.flow = regs.take("value", *(f"flow{i}" for i in range(LANES)))
        if self.words > 1:
            asm("addi", self.hop, self.hop, -4 * (self.words - 1))
        asm.compressed(False)
        again = asm.label()
        self._chunk(again)
        self._store()
        asm.pop(kept, 16)
        element = self.element.c
        return asm.function(
            f"{self.result}, const {element} *a, const {element} *b, int k, int step, "
            f"const {element} *bias"
        )

    def _begin(self, bias: str) -> None:
        asm, plain, go = self.asm, self.asm.fresh(), self.asm.fresh()
        asm.branch("beqz", bias, to=plain)
        for i, total in enumerate(self.totals):
            load_half(asm, total, bias, self.element.bytes * i)
        for total in self.totals:
            self.narrow.widen(asm, total, total)
        asm.branch("j", to=go)
        asm.label(plain)
        for total in self.totals:
            asm.mv(total, "zero")
        asm.label(go)

    def _chunk(self, again: str) -> None:
        """The first row is multiplied, further ones are added; `left` rows are to come."""
        asm, (left, count), last = self.asm, self.flow, self.asm.fresh()
        asm.lw(left, "sp", 4)
        asm("addi", count, "zero", CHUNK)
        asm.min(count, left, count)
        asm("sub", left, left, count)
        asm.sw(left, "sp", 4)
        asm("addi", count, count, -1)
        asm.sw(count, "sp", 8)
        self._row(self.narrow.scale)
        asm.lw(self.value, "sp", 8)
        asm.branch("beqz", self.value, to=last)
        with asm.loop(0, self.value):
            self._row(self.narrow.accumulate)
        asm.label(last)
        asm.li(self.value, ONE[self.element.name])
        for word, part in enumerate(self.sums):
            own = self.totals[LANES * word : LANES * word + LANES]
            self.narrow.add_product(asm, own[0], part, self.value)
            if len(own) > 1:
                asm("srli", part, part, 16)
                self.narrow.add_product(asm, own[1], part, self.value)
        asm.lw(self.value, "sp", 4)
        asm.branch("bnez", self.value, to=again)

    def _row(self, op: Any) -> None:
        asm = self.asm
        load_half_post(asm, self.value, self.p_a, 2)
        self._load(0)
        for word, part in enumerate(self.sums):
            if word + 1 < self.words:
                self._load(word + 1)
            op(asm, part, self.flow[word % 2], self.value)

    def _load(self, word: int) -> None:
        load = Asm.lw_post if self.width > 1 else load_half_post
        load(self.asm, self.flow[word % 2], self.p_b, self.hop if word == self.words - 1 else 4)

    def _store(self) -> None:
        asm, to = self.asm, self.value
        asm.lw(to, "sp", 0)
        if self.floats:
            for total in self.totals:
                asm.sw_post(total, to, 4)
            return
        for start in range(0, self.width, LANES):
            pair = self.totals[start : start + LANES]
            self.narrow.join(asm, pair[0], pair[0], pair[-1])
            if len(pair) == 1:
                store_half_post(asm, pair[0], to, 2)
            else:
                asm.sw_post(pair[0], to, 4)


def _update(element: Element, width: int) -> str:
    """update{width}(w, rows, columns, height, step, scale): w += rows times columns, which are
    multiplied by the scale and rounded once."""
    asm, kind = Asm(f"update{width}"), FORMATS[element.name]
    w, rows, columns, height, hop, scale = ARGUMENTS[:6]
    words, back = -(-width // LANES), "a6"
    asm.push(SAVED[:4])
    regs = Registers((*SCRATCH, *IDLE, *SAVED[:4], "a7"))
    held = regs.take(*(f"held{i}" for i in range(words)))
    flow = regs.take(*(f"flow{i}" for i in range(AT_ONCE)))
    factor = regs.one("factor")
    _scaled(asm, kind, width, held, (columns, scale), flow)
    asm.mv(back, w)
    if words > 1:
        asm("addi", hop, hop, -4 * (words - 1))
    load, store = (Asm.lw_post, Asm.sw_post) if width > 1 else (load_half_post, store_half_post)
    with asm.loop(0, height):
        load_half_post(asm, factor, rows, 2)
        load(asm, flow[0], w, hop if words == 1 else 4)
        for word in range(words):
            if word + 1 < words:
                on = hop if word + 2 == words else 4
                load(asm, flow[(word + 1) % AT_ONCE], w, on)
            value = flow[word % AT_ONCE]
            kind.accumulate(asm, value, held[word], factor)
            store(asm, value, back, hop if word + 1 == words else 4)
    asm.pop(SAVED[:4])
    c = element.c
    return asm.function(
        f"{c} *w, const {c} *rows, const {c} *columns, int height, int step, float scale"
    )


def _scaled(
    asm: Asm,
    kind: Narrow,
    width: int,
    held: Sequence[str],
    given: tuple[str, str],
    free: Sequence[str],
) -> None:
    """The columns times the scale, rounded."""
    (columns, scale), high = given, free[0]
    for word, register in enumerate(held):
        if width == 1:
            load_half(asm, register, columns)
        else:
            asm.lw(register, columns, 4 * word)
    for register in held:
        kind.widen_high(asm, high, register)
        kind.widen(asm, register, register)
        asm("fmul.s", high, high, scale)
        asm("fmul.s", register, register, scale)
        kind.join(asm, register, register, high)
