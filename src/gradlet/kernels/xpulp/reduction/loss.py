"""Cross-entropy and its gradient, of a single label: classes are shared out between eight cores.

First each core finds the largest score of all, and makes the exponentials of its own classes and
their sum. Then each adds up the sums of all, and scales its own. What is not usual is left to C.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.isa.arithmetic import (
    EXPONENTIAL,
    INVERSE,
    SEED,
    Line,
    exponential,
    inverse,
)
from gradlet.kernels.xpulp.isa.asm import Asm, Registers
from gradlet.kernels.xpulp.reduction import exponents

TEAM, LOG = 8, 3
ID, CORES, LOSS, RESULT, SCORES, LABELS, SCALE, WEIGHTS = (f"a{i}" for i in range(8))
SIZES, LABEL, STEP, SUMS, TOP = "t0", "t1", "t2", "t3", "t5"
"""SUMS: the scratch. The sums of the cores, the distance from the label's score to the largest, and
the exponentials."""
DISTANCE, OWN_ONES = 4 * TEAM, 4 * TEAM + 4
COUNT, FIRST, OWN = "a1", "a5", "a7"
"""Classes, and those of the core: the first in bytes, and how many."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    made = exponents.generate(mode, epilogue, params)
    return {**made, "seed": SEED, "body": _Kernel().text()}


class _Kernel:
    def __init__(self) -> None:
        self.asm = Asm("usual")

    def text(self) -> str:
        asm = self.asm
        asm.compressed(True)
        self._begin()
        self._largest()
        self._exponentials()
        self._gradient()
        self._loss()
        asm.label("none")  # but a sum
        asm.branch("bnez", STEP, to="out")
        asm("slli", ID, ID, 2)
        asm("add", SUMS, SUMS, ID)
        asm.sw("zero", SUMS)
        asm("ret")
        asm.label("rare")
        asm("j", "any")
        return asm.body()

    def _lines(self, lines: tuple[Line, ...], regs: Registers) -> None:
        for op, *operands in lines:
            names: list[str] = operands
            self.asm(op, *(regs.named.get(name, name) for name in names))

    def _begin(self) -> None:
        """What is not usual goes elsewhere, with all arguments in place."""
        asm, size = self.asm, "t4"
        asm.lw(SIZES, "sp", 8)
        asm.lw(LABEL, LABELS)
        asm.branch("bnez", WEIGHTS, to="rare")
        asm.bne_imm(CORES, TEAM, to="rare")
        for register, field in (("t2", 0), ("t3", 8), ("t4", 20), ("t5", 12)):
            asm.lw(register, SIZES, field)
        asm.bne_imm("t2", 1, to="rare")  # batch
        asm.bne_imm("t3", 1, to="rare")  # inner
        asm.branch("bnez", "t4", to="rare")  # smoothing
        asm.branch("beq", LABEL, "t5", to="rare")
        asm.lw("t6", SIZES, 4)
        asm.branch("bgeu", LABEL, "t6", to="rare")  # no class
        asm.mv(COUNT, "t6")
        asm.lw(STEP, "sp", 4)
        asm.lw(SUMS, "sp", 0)
        asm("addi", size, COUNT, TEAM - 1)
        asm("srli", size, size, LOG)
        asm("mul", FIRST, ID, size)
        asm("slli", LABEL, LABEL, 2)
        asm("sub", OWN, COUNT, FIRST)
        asm("slli", FIRST, FIRST, 2)
        asm.branch("blez", OWN, to="none")
        asm.min(OWN, OWN, size)
        asm.branch("bnez", STEP, to="second")

    def _largest(self) -> None:
        """Of all scores; the first core notes how far below it that of the label is."""
        asm = self.asm
        exponents.largest(asm, TOP, SCORES, COUNT, 4, ("t0", "t4", "t6", "gp", "tp"))
        asm("add", "t6", SUMS, FIRST)  # where its exponentials go
        asm.branch("bnez", ID, to="others")
        asm("add", LABEL, LABEL, SCORES)
        asm.lw("t0", LABEL)
        asm("fsub.s", "t0", TOP, "t0")
        asm.sw("t0", SUMS, DISTANCE)
        asm.label("others")
        asm("add", SCORES, SCORES, FIRST)
        asm("addi", "t6", "t6", OWN_ONES)
        asm("slli", ID, ID, 2)
        asm("add", SUMS, SUMS, ID)

    def _exponentials(self) -> None:
        asm = self.asm
        regs = Registers(
            ("t0", "t1", "t2", "t4", "gp", "tp", *(f"a{i}" for i in (0, 1, 2, 3, 5, 6)))
        )
        regs.named |= {"low": OWN, "least": OWN}
        x, total = regs.take("x", "total")
        constants = [name for name in EXPONENTIAL if name != "least"]
        regs.take("t", "r", *constants)
        for name in constants:
            asm.li(regs[name], EXPONENTIAL[name])
        asm.mv(total, "zero")
        with asm.loop(0, OWN):
            asm.lw_post(x, SCORES, 4)
            asm.li(OWN, EXPONENTIAL["least"])  # for one register is missing
            asm("fsub.s", x, x, TOP)
            self._lines(exponential("x", "x"), regs)
            asm.sw_post(x, "t6", 4)
            asm("fadd.s", total, total, x)
        asm.sw(total, SUMS)
        asm("ret")

    def _gradient(self) -> None:
        asm = self.asm
        regs = Registers(("t2", "t4", "t5", "t6", "gp"))
        total, y, e, seed, one = regs.take("total", "y", "e", "seed", "one")
        asm.label("second")
        asm.lw(SCALE, SCALE)
        asm.mv(total, "zero")
        asm.mv(y, SUMS)
        with asm.loop(0, TEAM):
            asm.lw_post(e, y, 4)
            asm("fadd.s", total, total, e)
        for name, number in INVERSE.items():
            asm.li(regs[name], number)
        self._lines(inverse("total", "y", "e"), regs)
        asm("fmul.s", y, y, SCALE)
        asm("add", seed, SUMS, FIRST)
        asm("addi", seed, seed, OWN_ONES)
        asm("add", one, RESULT, FIRST)
        with asm.loop(0, OWN):
            asm.lw_post(e, seed, 4)
            asm("fmul.s", e, e, y)
            asm.sw_post(e, one, 4)
        asm("sub", e, LABEL, FIRST)
        asm("slli", OWN, OWN, 2)
        asm.branch("bgeu", e, OWN, to="not_mine")
        asm("add", LABEL, LABEL, RESULT)
        asm.lw(e, LABEL)
        asm("fsub.s", e, e, SCALE)
        asm.sw(e, LABEL)
        asm.label("not_mine")

    def _loss(self) -> None:
        asm = self.asm
        asm.branch("bnez", ID, to="out")
        regs = Registers(("t2", "t0", "t1", "t4", "t5", "t6", "gp", "tp", "a1", "a3", "a4"))
        total, *_ = regs.take("total", "e", "t", "x", "r", "c5", "c4", "c3", "c2", "one", "ln2")
        for name in ("one", "ln2"):
            asm.li(regs[name], EXPONENTIAL[name])
        exponents.logarithm(asm, regs)
        asm.lw(regs["e"], SUMS, DISTANCE)
        asm("fadd.s", total, total, regs["e"])
        asm.sw(total, LOSS)
        asm.label("out")
        asm("ret")
