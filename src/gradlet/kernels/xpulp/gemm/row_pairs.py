"""Matrices of narrow elements whose columns lie side by side: two rows at a time, whose words
become pairs of one column each. They are written down, or multiplied by a vector."""

from __future__ import annotations

from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, Asm, Registers
from gradlet.kernels.xpulp.isa.narrow import (
    HIGH_HALVES,
    LANES,
    Narrow,
    load_half,
    load_half_post,
    zip_halves,
)


def interleave() -> str:
    """The C function interleave(to, from, count, columns): as many pairs of rows, neither number
    is 0. What is written has lines of an odd number of words."""
    asm = Asm("interleave")
    to, even, count, columns, odd, row, words, rest = ARGUMENTS
    single, half, end, pad = asm.fresh(), asm.fresh(), asm.fresh(), "s0"
    asm.push((pad,))
    asm.li("t6", HIGH_HALVES)
    asm("slli", row, columns, 1)
    asm("add", odd, even, row)
    asm("srli", words, columns, 2)
    asm("andi", rest, columns, 3)
    asm("andi", pad, columns, 1)
    asm("xori", pad, pad, 1)
    asm("slli", pad, pad, 2)
    with asm.loop(1, count):
        asm.branch("beqz", words, to=single)
        with asm.loop(0, words):
            _write_words(asm, to, (even, odd), 2)
        asm.label(single)
        asm.branch("beqz", rest, to=end)
        asm("andi", "t0", rest, 2)
        asm.branch("beqz", "t0", to=half)
        _write_words(asm, to, (even, odd), 1)
        asm("andi", "t0", rest, 1)
        asm.branch("beqz", "t0", to=end)
        asm.label(half)
        load_half_post(asm, "t0", even, 2)
        load_half_post(asm, "t1", odd, 2)
        zip_halves(asm, "t0", "t1", "t2", "t6")
        asm.sw_post("t2", to, 4)
        asm.label(end)
        asm("add", even, even, row)
        asm("add", odd, odd, row)
        asm("add", to, to, pad)
    asm.pop((pad,))
    return asm.function("uint32_t *to, const void *from, int count, int columns")


def _write_words(asm: Asm, to: str, rows: tuple[str, str], count: int) -> None:
    """As many words of each row; the way they are made is in t6."""
    made = [(f"t{3 * i}", f"t{3 * i + 1}", f"t{3 * i + 2}") for i in range(count)]
    for low, high, _ in made:
        asm.lw_post(low, rows[0], 4)
        asm.lw_post(high, rows[1], 4)
    for low, high, joined in made:
        zip_halves(asm, low, high, joined, "t6")
    for low, _, joined in made:
        asm.sw_post(joined, to, 4)
        asm.sw_post(low, to, 4)


class PairsOfRows:
    """sums: of as many columns; flow: for words on their way, more of these are taken."""

    def __init__(
        self,
        asm: Asm,
        narrow: Narrow,
        regs: Registers,
        value: str,
        flow: list[str],
        sums: list[str],
    ) -> None:
        self.asm, self.narrow, self.value, self.sums = asm, narrow, value, sums
        names = ("even0", "odd0", "even1", "odd1")[len(flow) :]
        self.flow = [*flow, *regs.take(*names)]
        regs.take("joined", "selector", "p_even", "p_odd", "p_a", "hop")
        self.regs = regs
        self.words = -(-len(sums) // LANES)

    def write(self, a: str, b: str, k: str, step: str) -> None:
        """a, b: where the vector and the columns begin; step: from row to row, in bytes."""
        asm, regs, even = self.asm, self.regs, self.asm.fresh()
        hop, p_even, p_odd, p_a = (regs[name] for name in ("hop", "p_even", "p_odd", "p_a"))
        asm.li(regs["selector"], HIGH_HALVES)
        asm.mv(p_even, b)
        asm.mv(p_a, a)
        asm("andi", hop, k, 1)
        asm.branch("beqz", hop, to=even)
        self._single(step)
        asm.label(even)
        asm("add", p_odd, p_even, step)
        asm("slli", hop, step, 1)
        asm("addi", hop, hop, -4 * (self.words - 1))
        count = regs["joined"]
        asm("srli", count, k, 1)
        asm.compressed(False)
        with asm.loop(0, count):
            self._two_rows()
        asm.compressed(True)

    def _load(self, word: int) -> None:
        """A word of each row; the last one moves on by two rows."""
        step: int | str = self.regs["hop"] if word == self.words - 1 else 4
        load = Asm.lw_post if len(self.sums) > 1 else load_half_post
        pair = self.flow[2 * (word % 2) : 2 * (word % 2) + 2]
        for register, pointer in zip(pair, ("p_even", "p_odd"), strict=True):
            load(self.asm, register, self.regs[pointer], step)

    def _two_rows(self) -> None:
        asm, joined = self.asm, self.regs["joined"]
        self._load(0)
        asm.lw_post(self.value, self.regs["p_a"], 4)
        for word in range(self.words):
            if word + 1 < self.words:
                self._load(word + 1)
            even, odd = self.flow[2 * (word % 2) : 2 * (word % 2) + 2]
            zip_halves(asm, even, odd, joined, self.regs["selector"])
            sums = self.sums[LANES * word : LANES * word + LANES]
            for total, pair in zip(sums, (joined, even), strict=False):
                self.narrow.dot(asm, total, pair, self.value)

    def _single(self, step: str) -> None:
        """The first of an odd number of rows; the other halves are 0."""
        asm, row, joined = self.asm, self.flow[0], self.regs["joined"]
        p_even = self.regs["p_even"]
        load_half_post(asm, self.value, self.regs["p_a"], 2)
        for word in range(self.words):
            if len(self.sums) == 1:
                load_half(asm, row, p_even)
            else:
                asm.lw(row, p_even, 4 * word)
            zip_halves(asm, row, "zero", joined, self.regs["selector"])
            sums = self.sums[LANES * word : LANES * word + LANES]
            for total, pair in zip(sums, (joined, row), strict=False):
                self.narrow.dot(asm, total, pair, self.value)
        asm("add", p_even, p_even, step)
