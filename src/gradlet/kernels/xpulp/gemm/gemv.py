"""A vector times a matrix: one row of c, whose columns are eight groups, one for each core.

In mode nt the sums of group g begin with k = 2 g + 1 and go round: so the cores read different
banks although all of them walk along k at the same speed. Otherwise k ascends; there neighbouring
columns do the same. The bits do not depend on how many cores there are.

Of a narrow element a register has two neighbouring k: what is said above of k holds for pairs, and
the first of an odd number of k comes before them, alone. In mode nn the words of two rows become
pairs on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradlet.ir.elements import Element
from gradlet.kernels.xpulp.gemm.product import (
    ON_STACK,
    Operand,
    Product,
    at,
    frame,
    save_settings,
    signature,
)
from gradlet.kernels.xpulp.gemm.row_pairs import PairsOfRows
from gradlet.kernels.xpulp.isa.asm import IDLE, SAVED, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.isa.narrow import load_half_post, narrow
from gradlet.kernels.xpulp.isa.narrow_store import store_pairs
from gradlet.kernels.xpulp.isa.store import store_block, store_momentum

KEPT = (*SAVED, "ra")
GROUPS = 8
COLUMNS, STEP, C, A, B, BIAS, LEFT, FROM = (f"a{i}" for i in range(8))
"""What lasts from block to block: columns to come, bytes from column to column (nn: from k to k),
where they begin in the operands; the steps of the two rounds along k, of which nn has the first."""
HELPERS = 5
"""Registers of a block besides its sums: a value, two in flight, and two pointers, or how far it is
back and the steps to come."""
PAIR_HELPERS = 11
"""The same of pairs of rows: their two values, two words of each, one that is made of them, how
that is done, three pointers, and the step of two of them."""
WORK = (*SCRATCH, *IDLE)
"""Small blocks get along with these; larger ones save as many as they need besides."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    kernel = _Kernel(mode, epilogue, tuple(params["lines"]), params["element"])
    return {"body": kernel.text()}


class _Kernel:
    """The plain store is the usual one, and its code short: it is read from far away when it runs
    once. Updates have the words of the work on the stack, and every register is saved first."""

    def __init__(self, mode: str, epilogue: str, sizes: tuple[int, ...], element: Element) -> None:
        self.asm, self.epilogue, self.sizes = Asm("gemv"), epilogue, sizes
        self.inside, self.narrow, self.bytes = mode == "nt", narrow(element), element.bytes
        self.shift = element.bytes.bit_length() - 1
        self.helpers = PAIR_HELPERS if self.narrow and not self.inside else HELPERS
        self.spill = Product(mode, epilogue, "b", element=element).spill
        self.far: list[Callable[[], None]] = []  # what is seldom needed, behind all the rest
        self.argument = signature(epilogue)
        self.out = self.asm.fresh()

    def word(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{at(name)}(sp)")

    def text(self) -> str:
        asm, again, rare = self.asm, self.asm.fresh(), self.asm.fresh()
        asm.compressed(True)
        asm.bne_imm("a1", GROUPS, to=rare)
        asm.entry("one_group")
        self._begin()
        asm.label(again)
        names = {size: asm.fresh() for size in self.sizes}
        for size in self.sizes[:-1]:
            asm("addi", "t0", "zero", size)
            asm.branch("bge", COLUMNS, "t0", to=names[size])
        for size in reversed(self.sizes):
            asm.label(names[size])
            self._blocks(size, again)
        for write in self.far:
            write()
        asm.label(rare)
        asm("j", "groups")
        return "\n".join(f'        "{line}\\n"' for line in asm.text())

    def _begin(self) -> None:
        """Where the columns of the group begin, at its first k."""
        asm, argument, go = self.asm, self.argument, self.asm.fresh()
        if self.epilogue:
            self._save()
        if self.epilogue == "momentum":
            for register, name in ((A, "a"), (B, "b"), (BIAS, "bias")):
                asm.mv(register, argument[name])
        asm.lw("t0", argument["sizes"], 8)
        asm.lw("t3" if self.inside else LEFT, argument["sizes"], 12)
        size, first = "t1", "t2"
        asm("addi", size, "t0", GROUPS - 1)
        asm("srli", size, size, GROUPS.bit_length() - 1)
        asm("mul", first, COLUMNS, size)
        if self.inside:
            self._rounds("t3")
        else:
            asm("slli", STEP, "t0", self.shift)
        asm("sub", COLUMNS, "t0", first)
        asm.branch("blez", COLUMNS, to=self.out)
        asm.min(COLUMNS, COLUMNS, size)
        asm("slli", first, first, self.shift)
        if self.inside:
            asm.mac(B, first, "t3")
        else:
            asm("add", B, B, first)
        asm("add", C, C, first)
        if self.epilogue:
            self.word("sw", C, "c")
        asm.branch("beqz", BIAS, to=go)
        asm("add", BIAS, BIAS, first)
        asm.label(go)

    def _save(self) -> None:
        asm, argument = self.asm, self.argument
        if argument["sizes"] == ON_STACK:
            asm.lw(ON_STACK, "sp")
        asm.push(KEPT, frame(self.epilogue, self.spill))
        save_settings(asm, self.epilogue, argument)

    def _rounds(self, k: str) -> None:
        """From k = 2 g + 1 on, or 1 if that is too much; then from 0 on."""
        asm, begin = self.asm, self.asm.fresh()
        asm("slli", FROM, COLUMNS, 1)
        asm("addi", FROM, FROM, 1)
        asm("slli", STEP, k, self.shift)
        words = k
        if self.narrow:
            words = "t5"
            asm("srli", words, k, 1)
        asm.branch("blt", FROM, words, to=begin)
        asm("addi", FROM, "zero", 1)
        asm.label(begin)
        asm("sub", LEFT, words, FROM)
        asm("slli", "t4", FROM, 2)
        if self.narrow:  # pairs begin behind a single one
            asm("andi", "t6", STEP, 2)
            asm("add", "t4", "t4", "t6")
        asm("add", A, A, "t4")
        asm("add", B, B, "t4")

    def _blocks(self, lines: int, again: str) -> None:
        """As many columns at once, as long as there are so many; smaller blocks come once."""
        asm = self.asm
        more = max(0, lines + self.helpers - len(WORK))
        saved = SAVED[: -(-more // 4) * 4]  # the stack is aligned to four words
        work = Registers((*WORK, *saved))
        if saved and not self.epilogue:
            asm.push(saved)
        most, more_of_them = lines == self.sizes[0], asm.fresh()
        if most:
            asm.label(more_of_them)
        self._block(lines, work)
        asm("addi", COLUMNS, COLUMNS, -lines)
        if most:
            asm("addi", "t0", "zero", lines)
            asm.branch("bge", COLUMNS, "t0", to=more_of_them)
        if saved and not self.epilogue:
            for index, register in enumerate(saved):
                asm.lw(register, "sp", 4 * index)
            asm("addi", "sp", "sp", 4 * len(saved))
        asm.branch("bnez", COLUMNS, to=again)
        if lines == 1:
            asm.label(self.out)
        if not self.epilogue:
            asm("ret")
        elif lines == 1:
            asm.pop(KEPT, frame(self.epilogue, self.spill))
        else:
            asm.branch("j", to=self.out)

    def _block(self, lines: int, regs: Registers) -> None:
        value, *flow = regs.take("value", *(f"flow{i}" for i in range(min(lines, 2))))
        sums = regs.take(*(f"sum{i}" for i in range(lines)))
        self._begin_sums(sums)
        if self.narrow and not self.inside:
            PairsOfRows(self.asm, self.narrow, regs, value, flow, sums).write(A, B, LEFT, STEP)
            self.asm("addi", B, B, self.bytes * lines)
        elif self.inside:
            self._two_rounds(regs, value, flow, sums)
        else:
            self._one_round(regs, value, flow, sums)
        self._store(sums)

    def _one_round(self, regs: Registers, value: str, flow: list[str], sums: list[str]) -> None:
        asm = self.asm
        regs.take("p_s", "p_a")
        asm.mv(regs["p_s"], B)
        asm.mv(regs["p_a"], A)
        asm("addi", B, B, 4 * len(sums))
        asm.compressed(False)
        with asm.loop(0, LEFT):
            self._one_k(regs, value, flow, sums)
        asm.compressed(True)

    def _two_rounds(self, regs: Registers, value: str, flow: list[str], sums: list[str]) -> None:
        """At the end of each both pointers go back by one line."""
        asm, lines = self.asm, len(sums)
        regs.named |= {"p_s": B, "p_a": A}
        back, count = regs.take("back_s", "count")
        if lines > 1:
            asm("slli", flow[0], STEP, lines.bit_length() - 1)
            asm("sub", back, STEP, flow[0])
            asm("addi", back, back, 4)
        if self.narrow:
            self._single(regs, value, flow, sums)
        asm.mv(count, LEFT)
        asm.compressed(False)
        start, end = asm.fresh(), asm.fresh()
        asm.bounds(0, start, end)
        with asm.loop(1, 2):
            asm.iterations(0, count)
            asm.mv(count, FROM)
            asm.label(start)
            begin = asm.count
            self._one_k(regs, value, flow, sums)
            asm.close(end, begin)
            once = self._line(flow[0])
            asm("sub", A, A, once)
            asm("sub", B, B, once)
        asm.compressed(True)
        once = self._line(value)
        asm("slli", flow[0], STEP, lines.bit_length() - 1)
        asm("add", B, B, flow[0])
        asm("add", B, B, once)
        asm("add", A, A, once)

    def _line(self, spare: str) -> str:
        """How long a line is, without a single k."""
        if not self.narrow:
            return STEP
        self.asm("andi", spare, STEP, -4)
        return spare

    def _single(self, regs: Registers, value: str, flow: list[str], sums: list[str]) -> None:
        """The first of an odd number of k: the pointers stand at the pairs that are begun with."""
        asm, odd, go, back = self.asm, self.asm.fresh(), self.asm.fresh(), regs["count"]
        asm("andi", back, STEP, 2)
        asm.branch("bnez", back, to=odd)
        asm.label(go)

        def write() -> None:
            asm.label(odd)
            asm("slli", back, FROM, 2)
            asm("addi", back, back, 2)
            asm("sub", A, A, back)
            asm("sub", B, B, back)
            self._one_k(regs, value, flow, sums, single=True)
            asm("addi", back, back, -4)  # as if there had been a pair
            asm("add", A, A, back)
            asm("add", B, B, back)
            asm.branch("j", to=go)

        self.far.append(write)

    def _one_k(
        self,
        regs: Registers,
        value: str,
        flow: list[str],
        sums: list[str],
        *,
        single: bool = False,
    ) -> None:
        asm, lines = self.asm, len(sums)
        regs.named |= {"step": STEP}
        stream = Operand("s", lines, self.inside, "step")
        load = stream.load_single if single else stream.load
        load(asm, regs, flow[0], stream.order[0])
        (load_half_post if single else Asm.lw_post)(asm, value, regs["p_a"], 4)
        for turn, line in enumerate(stream.order):
            if turn + 1 < lines:
                load(asm, regs, flow[(turn + 1) % 2], stream.order[turn + 1])
            if self.narrow:
                self.narrow.dot(asm, sums[line], flow[turn % 2], value)
            else:
                asm("fmadd.s", sums[line], flow[turn % 2], value, sums[line])

    def _begin_sums(self, sums: list[str]) -> None:
        asm, plain, go = self.asm, self.asm.fresh(), self.asm.fresh()
        asm.branch("beqz", BIAS, to=plain)
        for total in sums:
            if self.narrow:
                load_half_post(asm, total, BIAS, self.bytes)
            else:
                asm.lw_post(total, BIAS, 4)
        if self.narrow:
            for total in sums:
                self.narrow.widen(asm, total, total)
        asm.branch("j", to=go)
        asm.label(plain)
        for total in sums:
            asm.mv(total, "zero")
        asm.label(go)

    def _store(self, sums: list[str]) -> None:
        asm, across = self.asm, self.bytes * len(sums)
        lasting = (COLUMNS, STEP, A, B, BIAS, LEFT, FROM, *sums)
        free = [r for r in (*WORK, C, *KEPT) if r not in lasting]
        if self.epilogue == "momentum":
            to = [*free, *sums]
            store_momentum(asm, [sums], to, self.word, self.spill, across, self.narrow)
        elif self.narrow:
            c = "" if self.epilogue else C
            store_pairs(
                asm, self.narrow, self.epilogue, [sums], free, self.word, c=c, across=across
            )
        elif self.epilogue:
            store_block(asm, self.epilogue, [sums], free, self.word, "zero", across)
        else:
            for total in sums:
                asm.sw_post(total, C, 4)
