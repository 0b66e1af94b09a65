"""A vector times a matrix of narrow elements whose columns lie side by side: two rows at a time,
whose words become pairs of one column each."""

from __future__ import annotations

from gradlet.kernels.xpulp.isa.asm import Asm, Registers
from gradlet.kernels.xpulp.isa.narrow import (
    HIGH_HALVES,
    LANES,
    Narrow,
    load_half,
    load_half_post,
    zip_halves,
)


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
