"""A vector times a matrix: one row of c, whose columns are cut into groups for eight cores.

The sums of group g go over k in ascending order from 2 (g mod 8) on, and round: so the cores read
different banks although all of them walk along k at the same speed. The groups, and with them the
bits, do not depend on how many cores there are.
"""

from __future__ import annotations

from typing import Any

from gradlet.xpulp.asm import SAVED, Asm, Registers
from gradlet.xpulp.gemm_block import (
    ON_STACK,
    POOL,
    SPILL,
    Operand,
    at,
    frame,
    save_settings,
    signature,
)
from gradlet.xpulp.store import store_block, store_momentum

KEPT = (*SAVED, "ra")
GROUPS = 8
STATE = ("k", "from", "left", "lines", "matrix", "begun", "wrap", "step")
"""In s0 to s7: k; the first k of the group, and the steps of the next round; its columns, where
they begin in b, their bias; bytes over all k, and from column to column (or k to k)."""
OWN = ("group", "cores", "size", "n", "a", "b", "first", "bias", "vector")
"""Words behind those of the store: first is c, vector is a from the group's first k on."""
FIRST, SIZE, N, GROUP, CORES = "t0", "t1", "t2", "a0", "a1"


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    return {"body": _Kernel(mode, epilogue, tuple(params["lines"])).text()}


class _Kernel:
    def __init__(self, mode: str, epilogue: str, sizes: tuple[int, ...]) -> None:
        self.asm, self.epilogue, self.sizes = Asm("gemv"), epilogue, sizes
        self.inside = mode == "nt"
        self.state = {name: f"s{i}" for i, name in enumerate(STATE)}
        self.argument = signature(epilogue)
        self.frame = frame(epilogue) + 4 * len(OWN)
        self.later = {"group": GROUP, "cores": CORES, "size": SIZE, "n": N}
        self.later |= {name: self.argument[name] for name in ("a", "b", "bias")}
        self.later["first"] = self.argument["c"]

    def word(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{at(name)}(sp)")

    def own(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{frame(self.epilogue) + 4 * OWN.index(name)}(sp)")

    def text(self) -> str:
        asm, again, out = self.asm, self.asm.fresh(), self.asm.fresh()
        lines = self.state["lines"]
        asm.compressed(True)
        self._begin()
        asm.label(again)
        asm("mul", FIRST, GROUP, SIZE)
        asm("sub", lines, N, FIRST)
        asm.branch("blez", lines, to=out)
        asm.min(lines, lines, SIZE)
        self._group()
        asm.compressed(False)
        for size in self.sizes:
            smaller = asm.fresh()
            asm("addi", "t0", "zero", size)
            asm.branch("blt", lines, "t0", to=smaller)
            self._block(size)
            asm.label(smaller)
        asm.compressed(True)
        for name, register in self.later.items():
            self.own("lw", register, name)
        asm("add", GROUP, GROUP, CORES)
        self.own("sw", GROUP, "group")
        asm.branch("j", to=again)
        asm.label(out)
        asm.pop(KEPT, self.frame)
        return "\n".join(f'        "{line}\\n"' for line in asm.text())

    def _begin(self) -> None:
        """Groups as large as a block takes at most, and all of about the same size."""
        asm, one, argument = self.asm, self.asm.fresh(), self.argument
        k, step = self.state["k"], self.state["step"]
        if argument["sizes"] == ON_STACK:
            asm.lw(ON_STACK, "sp")
        asm.lw(N, argument["sizes"], 8)
        asm.lw("t3", argument["sizes"], 12)
        asm.push(KEPT, self.frame)
        save_settings(asm, self.epilogue, argument)
        asm.mv(k, "t3")
        most = GROUPS * self.sizes[0]
        asm("addi", SIZE, N, GROUPS - 1)
        asm("srli", SIZE, SIZE, GROUPS.bit_length() - 1)
        asm("addi", "t4", N, most - 1)
        asm("srli", "t4", "t4", most.bit_length() - 1)
        asm("slli", "t4", "t4", GROUPS.bit_length() - 1)
        asm("addi", "t5", "zero", GROUPS)
        asm.branch("beq", "t4", "t5", to=one)
        asm("add", SIZE, N, "t4")
        asm("addi", SIZE, SIZE, -1)
        asm("divu", SIZE, SIZE, "t4")
        asm.label(one)
        if self.inside:
            asm("slli", step, k, 2)
            asm.mv(self.state["wrap"], step)
        else:
            asm("slli", step, N, 2)
            asm("mul", self.state["wrap"], step, k)
        for name, register in self.later.items():
            self.own("sw", register, name)

    def _group(self) -> None:
        """Where its columns begin, at its first k."""
        asm, begin, go = self.asm, self.asm.fresh(), self.asm.fresh()
        k, from_k, matrix, begun = (self.state[x] for x in ("k", "from", "matrix", "begun"))
        asm("andi", from_k, GROUP, GROUPS - 1)
        asm("slli", from_k, from_k, 1)
        asm.branch("blt", from_k, k, to=begin)
        asm.mv(from_k, "zero")
        asm.label(begin)
        asm("slli", FIRST, FIRST, 2)
        asm("slli", "t4", from_k, 2)
        asm("add", matrix, self.later["b"], "t4" if self.inside else FIRST)
        if self.inside:
            asm.mac(matrix, FIRST, k)
        else:
            asm.mac(matrix, from_k, self.state["step"])
        asm("add", "t4", "t4", self.later["a"])
        self.own("sw", "t4", "vector")
        asm.mv(begun, self.later["bias"])
        asm.branch("beqz", begun, to=go)
        asm("add", begun, begun, FIRST)
        asm.label(go)
        asm("add", FIRST, FIRST, self.later["first"])
        self.word("sw", FIRST, "c")

    def _block(self, lines: int) -> None:
        """Two rounds over k: from the first one of the group on, then up to it."""
        asm, state = self.asm, self.state
        regs = Registers(POOL)
        for name, register in (*state.items(), ("stack", "sp")):
            regs.claim(name, register)
        stream = Operand("s", lines, self.inside, "step")
        regs.take("p_s", "p_a", "value", *(["back_s"] if self.inside and lines > 1 else []))
        flow = regs.take(*(f"flow{i}" for i in range(min(lines, 2))))
        sums = regs.take(*(f"sum{i}" for i in range(lines)))
        start, end = asm.fresh(), asm.fresh()
        self._begin_sums(sums)
        asm.mv(regs["p_s"], state["matrix"])
        self.own("lw", regs["p_a"], "vector")
        stream.prepare(asm, regs)
        asm("sub", state["left"], state["k"], state["from"])
        asm("sltu", flow[0], "zero", state["from"])
        asm("addi", flow[0], flow[0], 1)
        asm.bounds(0, start, end)
        with asm.loop(1, flow[0]):
            asm.iterations(0, state["left"])
            asm.mv(state["left"], state["from"])
            asm.label(start)
            begin = asm.count
            stream.load(asm, regs, flow[0], stream.order[0])
            asm.lw_post(regs["value"], regs["p_a"], 4)
            for turn, line in enumerate(stream.order):
                if turn + 1 < lines:
                    stream.load(asm, regs, flow[(turn + 1) % 2], stream.order[turn + 1])
                asm("fmadd.s", sums[line], flow[turn % 2], regs["value"], sums[line])
            asm.close(end, begin)
            asm("sub", regs["p_s"], regs["p_s"], state["wrap"])
            self.own("lw", regs["p_a"], "a")
        asm("addi", state["lines"], state["lines"], -lines)
        if self.inside:
            asm("addi", flow[0], "zero", lines)
            asm.mac(state["matrix"], flow[0], state["step"])
        else:
            asm("addi", state["matrix"], state["matrix"], 4 * lines)
        self._store(sums, [r for r in POOL if r not in (*state.values(), "sp", *sums)])

    def _begin_sums(self, sums: list[str]) -> None:
        asm, plain, go, begun = self.asm, self.asm.fresh(), self.asm.fresh(), self.state["begun"]
        asm.branch("beqz", begun, to=plain)
        for total in sums:
            asm.lw_post(total, begun, 4)
        asm.branch("j", to=go)
        asm.label(plain)
        for total in sums:
            asm.mv(total, "zero")
        asm.label(go)

    def _store(self, sums: list[str], free: list[str]) -> None:
        across = 4 * len(sums)
        if self.epilogue == "momentum":
            free = [*free, *sums]
            store_momentum(self.asm, [sums], free, self.word, SPILL, across)
        else:
            store_block(self.asm, self.epilogue, [sums], free, self.word, "zero", across)
