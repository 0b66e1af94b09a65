"""A vector times a matrix: one row of c, whose columns are eight groups, one for each core.

In mode nt the sums of group g begin with k = 2 g + 1 and go round: so the cores read different
banks although all of them walk along k at the same speed. Otherwise k ascends; there neighbouring
columns do the same. The bits do not depend on how many cores there are.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.gemm.product import (
    ON_STACK,
    SPILL,
    Operand,
    at,
    frame,
    save_settings,
    signature,
)
from gradlet.kernels.xpulp.isa.asm import IDLE, SAVED, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.isa.store import store_block, store_momentum

KEPT = (*SAVED, "ra")
GROUPS = 8
COLUMNS, STEP, C, A, B, BIAS, LEFT, FROM = (f"a{i}" for i in range(8))
"""What lasts from block to block: columns to come, bytes from column to column (nn: from k to k),
where they begin in the operands; the steps of the two rounds along k, of which nn has the first."""
HELPERS = 5
"""Registers of a block besides its sums: a value, two in flight, and two pointers, or how far it is
back and the steps to come."""
WORK = (*SCRATCH, *IDLE)
"""Small blocks get along with these; larger ones save as many as they need besides."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    return {"body": _Kernel(mode, epilogue, tuple(params["lines"])).text()}


class _Kernel:
    """The plain store is the usual one, and its code short: it is read from far away when it runs
    once. Updates have the words of the work on the stack, and every register is saved first."""

    def __init__(self, mode: str, epilogue: str, sizes: tuple[int, ...]) -> None:
        self.asm, self.epilogue, self.sizes = Asm("gemv"), epilogue, sizes
        self.inside = mode == "nt"
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
            asm("slli", STEP, "t0", 2)
        asm("sub", COLUMNS, "t0", first)
        asm.branch("blez", COLUMNS, to=self.out)
        asm.min(COLUMNS, COLUMNS, size)
        asm("slli", first, first, 2)
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
        asm.push(KEPT, frame(self.epilogue))
        save_settings(asm, self.epilogue, argument)

    def _rounds(self, k: str) -> None:
        """From k = 2 g + 1 on, or 1 if that is too much; then from 0 on."""
        asm, begin = self.asm, self.asm.fresh()
        asm("slli", FROM, COLUMNS, 1)
        asm("addi", FROM, FROM, 1)
        asm.branch("blt", FROM, k, to=begin)
        asm("addi", FROM, "zero", 1)
        asm.label(begin)
        asm("sub", LEFT, k, FROM)
        asm("slli", STEP, k, 2)
        asm("slli", "t4", FROM, 2)
        asm("add", A, A, "t4")
        asm("add", B, B, "t4")

    def _blocks(self, lines: int, again: str) -> None:
        """As many columns at once, as long as there are so many; smaller blocks come once."""
        asm = self.asm
        more = max(0, lines + HELPERS - len(WORK))
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
            asm.pop(KEPT, frame(self.epilogue))
        else:
            asm.branch("j", to=self.out)

    def _block(self, lines: int, regs: Registers) -> None:
        value, *flow = regs.take("value", *(f"flow{i}" for i in range(min(lines, 2))))
        sums = regs.take(*(f"sum{i}" for i in range(lines)))
        self._begin_sums(sums)
        if self.inside:
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
            asm("sub", A, A, STEP)
            asm("sub", B, B, STEP)
        asm.compressed(True)
        asm("slli", flow[0], STEP, lines.bit_length() - 1)
        asm("add", B, B, flow[0])
        asm("add", B, B, STEP)
        asm("add", A, A, STEP)

    def _one_k(self, regs: Registers, value: str, flow: list[str], sums: list[str]) -> None:
        asm, lines = self.asm, len(sums)
        regs.named |= {"step": STEP}
        stream = Operand("s", lines, self.inside, "step")
        stream.load(asm, regs, flow[0], stream.order[0])
        asm.lw_post(value, regs["p_a"], 4)
        for turn, line in enumerate(stream.order):
            if turn + 1 < lines:
                stream.load(asm, regs, flow[(turn + 1) % 2], stream.order[turn + 1])
            asm("fmadd.s", sums[line], flow[turn % 2], value, sums[line])

    def _begin_sums(self, sums: list[str]) -> None:
        asm, plain, go = self.asm, self.asm.fresh(), self.asm.fresh()
        asm.branch("beqz", BIAS, to=plain)
        for total in sums:
            asm.lw_post(total, BIAS, 4)
        asm.branch("j", to=go)
        asm.label(plain)
        for total in sums:
            asm.mv(total, "zero")
        asm.label(go)

    def _store(self, sums: list[str]) -> None:
        asm, across = self.asm, 4 * len(sums)
        lasting = (COLUMNS, STEP, A, B, BIAS, LEFT, FROM, *sums)
        free = [r for r in (*WORK, C, *KEPT) if r not in lasting]
        if self.epilogue == "momentum":
            store_momentum(asm, [sums], [*free, *sums], self.word, SPILL, across)
        elif self.epilogue:
            store_block(asm, self.epilogue, [sums], free, self.word, "zero", across)
        else:
            for total in sums:
                asm.sw_post(total, C, 4)
