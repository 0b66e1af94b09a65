"""One block of a matrix product: some lines of one operand streamed past held ones of the other."""

from __future__ import annotations

from gradlet.kernels.xpulp.gemm.product import Product, at
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.isa.narrow_store import store_pairs
from gradlet.kernels.xpulp.isa.store import store_block, store_momentum

POINTER = "a0"
"""The next line to be streamed: the same register in all blocks, it goes on where one ends."""
COUNT = "s8"
"""Blocks to come: still needed when the first one is entered."""
POOL = (*ARGUMENTS, *SCRATCH, *IDLE, *SAVED, "ra", "sp")


class Block:
    """lines x held elements of c, begun with a bias or with 0.

    The largest takes all registers, the stack pointer as well: it is in mepc while k runs, where
    nothing else puts anything as long as there are no interrupts."""

    def __init__(
        self, asm: Asm, product: Product, lines: int, held: int, *, biased: bool = True
    ) -> None:
        self.asm, self.product, self.lines, self.held = asm, product, lines, held
        self.biased = biased
        self.stream, self.fixed = product.operand("s", lines), product.operand("h", held)
        walking = dict.fromkeys((*self.stream.registers, *self.fixed.registers))
        self.keeps_stack = lines * held + held + min(lines, 2) + len(walking) < len(POOL)
        self.regs = Registers(POOL)
        self.regs.claim("p_s", POINTER)
        if self.keeps_stack:
            self.regs.claim("stack", "sp")
        self.regs.take(*(name for name in walking if name != "p_s"))
        self.values = self.regs.take(*(f"held{i}" for i in range(held)))
        self.flow = self.regs.take(*(f"flow{i}" for i in range(min(lines, 2))))
        sums = [(line, i) for line in range(lines) for i in range(held)]
        if not self.keeps_stack:  # of all registers the one that is dead first
            self.flow[-1] = _swap(self.regs, self.flow[-1])
        self.sums = {key: self.regs.one(f"sum{key}") for key in sums}
        spare = [register for register in self.regs.rest if register != COUNT]
        few = len(spare) >= 2 and product.epilogue != "momentum"
        names = ("c", "more") if few else ()
        self.kept = [self.regs.claim(*pair) for pair in zip(names, spare, strict=False)]
        self.start, self.end = asm.fresh(), asm.fresh()

    def enter(self) -> None:
        """What stays the same from block to block."""
        for register, name in zip(self.kept, ("c", "more"), strict=False):
            self.word("lw", register, name)
        for step in dict.fromkeys((self.stream.step, self.fixed.step)):
            if step in self.regs.named:
                self.word("lw", self.regs[step], step)
        self.stream.prepare(self.asm, self.regs)
        self.fixed.prepare(self.asm, self.regs)
        if self.product.epilogue != "momentum":
            self.asm.bounds(0, self.start, self.end)

    def word(self, op: str, register: str, name: str) -> None:
        self.asm(op, register, f"{at(name)}(sp)")

    def write(self) -> None:
        self.write_from("")

    def write_from(self, go: str) -> None:
        """go: the place where the first of an odd number of k comes in."""
        asm, pointer = self.asm, self.regs["p_h"]
        more = self._more
        if not self.stream.inside:
            self.word("lw", self.regs["p_s"], "s")
            if not self.kept:
                self.word("lw", more, "more")
            asm("addi", self.values[0], self.regs["p_s"], 4 * self.lines)
            self.word("sw", self.values[0], "s")
        elif not self.kept:
            self.word("lw", more, "more")
        if self.product.narrow:
            self.word("lw", pointer, "h")
            self._begin_pairs()
            if go:
                asm.label(go)
            self._bounds_again()
            asm.iterations(0, more)
        else:
            self._bounds_again()
            self._begin_sums()
            asm.iterations(0, more)
            self.word("lw", pointer, "h")
            self._one_k(first=True)
        asm.label(self.start)
        start = asm.count
        self._one_k(first=False)
        asm.close(self.end, start)
        self._stack_again()
        self._store()

    def _bounds_again(self) -> None:
        if self.product.epilogue == "momentum":  # its store has used the loop
            self.asm.bounds(0, self.start, self.end)

    def _stack_again(self) -> None:
        if not self.keeps_stack:
            self.asm("csrr", "sp", "mepc")

    def _begin_pairs(self) -> None:
        """The product of two pairs is always added to something."""
        for (line, i), total in self.sums.items():
            if not self.biased:
                self.asm.mv(total, "zero")
            elif line == 0:
                self.word("lw", total, f"init{i}")
            else:
                self.asm.mv(total, self.sums[0, i])

    @property
    def _more(self) -> str:
        """The register of the steps of the loop."""
        if self.kept:
            return self.kept[1]
        return self.flow[0] if self.product.narrow else self.regs["p_h"]

    def write_single(self, odd: str, go: str) -> None:
        """The first of an odd number of k, alone; pointers move on by a pair there."""
        asm = self.asm
        asm.label(odd)
        self.word("lw", self.regs["p_h"], "h")
        self._begin_pairs()
        self._one_k(first=False, single=True)
        self._stack_again()
        for operand in (self.stream, self.fixed):
            if operand.inside:
                pointer = self.regs[f"p_{operand.name}"]
                asm("addi", pointer, pointer, -2)
        if not self.kept:
            self.word("lw", self._more, "more")
        asm.branch("j", to=go)

    def _begin_sums(self) -> None:
        """What the sums begin with goes where the last one of each kind will be."""
        asm = self.asm
        if not self.biased:
            return
        if not self.product.bias_by_line:
            for i in range(self.held):
                self.word("lw", self.sums[self.stream.order[-1], i], f"init{i}")
            return
        bias, plain, go = self.values[0], asm.fresh(), asm.fresh()
        firsts = [self.sums[line, self.fixed.order[-1]] for line in range(self.lines)]
        self.word("lw", bias, "bias")
        asm.branch("beqz", bias, to=plain)
        for line, register in enumerate(firsts):
            asm.lw(register, bias, 4 * line)
        asm("addi", bias, bias, 4 * self.lines)
        self.word("sw", bias, "bias")
        asm.branch("j", to=go)
        asm.label(plain)
        for register in firsts:
            asm.mv(register, "zero")
        asm.label(go)

    def _one_k(self, *, first: bool, single: bool = False) -> None:
        asm, order, held = self.asm, self.stream.order, self.fixed.order
        narrow = self.product.narrow
        mixed = not first and self.stream.inside != self.fixed.inside
        streams, holds = iter(range(self.lines)), iter(held)
        pairs = ((turn, i) for turn in range(self.lines) for i in held)
        for step in pattern(self.lines, self.held, mixed):
            if step == "s":
                turn = next(streams)
                load = self.stream.load_single if single else self.stream.load
                load(asm, self.regs, self.flow[turn % 2], order[turn])
            elif step == "h":
                i = next(holds)
                load = self.fixed.load_single if single else self.fixed.load
                load(asm, self.regs, self.values[i], i)
            else:
                turn, i = next(pairs)
                total = self.sums[order[turn], i]
                if narrow:
                    narrow.dot(asm, total, self.flow[turn % 2], self.values[i])
                    continue
                old = self._begun(order[turn], i) if first else total
                asm("fmadd.s", total, self.flow[turn % 2], self.values[i], old)

    def _begun(self, line: int, i: int) -> str:
        if not self.biased:
            return "zero"
        if not self.product.bias_by_line:
            return self.sums[self.stream.order[-1], i]
        return self.sums[line, self.fixed.order[-1]]

    def _store(self) -> None:
        lines, held = range(self.lines), range(self.held)
        if self.product.by_columns:
            groups = [[self.sums[line, i] for i in held] for line in lines]
        else:
            groups = [[self.sums[line, i] for line in lines] for i in held]
        across = 0 if self.product.by_columns else 4 * self.lines
        if self.product.epilogue == "momentum":
            self._next_line()
            registers = [r for r in POOL if r not in (POINTER, "sp") and r not in self._lasting]
            store_momentum(
                self.asm,
                groups,
                registers,
                self.word,
                self.product.spill,
                across,
                self.product.narrow,
            )
            return
        free = [*self.values, *self.flow, self.regs["p_h"], *self.regs.rest]
        if not self.stream.inside:
            free.append(self.regs["p_s"])
        free = [register for register in free if register != "sp"]
        if self.product.narrow:
            store_pairs(
                self.asm,
                self.product.narrow,
                self.product.epilogue,
                groups,
                free,
                self.word,
                self._next_line,
                self.kept[0] if self.kept else "",
            )
            return
        store_block(
            self.asm,
            self.product.epilogue,
            groups,
            free,
            self.word,
            self.regs.named.get("n4", ""),
            across,
            self._next_line,
            self.kept[0] if self.kept else "",
        )

    def leave(self) -> None:
        if self.kept:
            self.word("sw", self.kept[0], "c")

    @property
    def _lasting(self) -> list[str]:
        """What the next block of the same size still needs."""
        steps = (self.stream.step, self.fixed.step, "back_s", "back_h")
        return [self.regs[name] for name in steps if name in self.regs.named]

    def _next_line(self) -> None:
        """The stream stands in the last line: on to the one behind it."""
        if self.stream.inside and self.lines > 1:
            self.asm("sub", self.regs["p_s"], self.regs["p_s"], self.regs["back_s"])
            self.asm("addi", self.regs["p_s"], self.regs["p_s"], 4)


def _swap(regs: Registers, register: str) -> str:
    """The stack pointer instead of this one, which is free again."""
    name = next(name for name, value in regs.named.items() if value == register)
    regs.give_back(name)
    return regs.claim(name, "sp")


def pattern(lines: int, held: int, mixed: bool) -> str:
    """The order of one k: s and h load a streamed and a held value, f multiplies and adds.

    Each line is loaded while the one before it is multiplied, held values while the first line is:
    nobody waits for memory, and cores that meet at a bank soon get out of step. Where the operands
    walk through the banks at different rates (`mixed`), streamed and held values of two cores meet
    at all banks in turn, if their steps differ by the distance of an s from an h: so there are as
    few such distances as possible, 12 of 29 instead of 22 for 5 x 4."""
    if mixed and held == 4 and lines > 1:
        return "hshffhsh" + "fffff" + "sffff" * (lines - 2) + "f"
    first = "sh" + "hf" * (held - 1)
    following = "s" if lines > 1 else ""
    return first + following + "f" + ("s" + "f" * held) * (lines - 2) + "f" * held * (lines > 1)
