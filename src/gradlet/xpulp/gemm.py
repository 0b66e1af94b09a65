"""Matrix products on register blocks: some lines of one operand held, lines of the other streamed.

For each k a block loads `held` values of the one and, line by line, one value of the other that
meets all of them. `hold = "b"`: columns of b are held and rows of a streamed; `hold = "a"`: the
other way round, for few rows. A panel is as many lines as the core has, for one set of held ones.

Every element of c is fma over k in ascending order, begun with the bias or 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlet.xpulp.asm import ARGUMENTS, IDLE, SAVED, SCRATCH, Asm, Registers
from gradlet.xpulp.store import store_block

POINTER = "a0"
POOL = (*ARGUMENTS, *SCRATCH, *IDLE, *SAVED, "ra", "sp")
WORK = (
    *("s", "h", "c", "moment", "blocks", "rest", "more", "k4", "m4", "n4", "bias", "sp"),
    *("rate", "decay", "momentum", "nesterov"),
    *(f"init{i}" for i in range(8)),
    *(f"spill{i}" for i in range(8)),
)
"""The words of the struct that says what a panel is, in the order of the C."""
K_INSIDE = {"a": ("nn", "nt"), "b": ("nt",)}
"""In which modes the values of one line lie side by side."""


@dataclass(frozen=True)
class Operand:
    """How a block walks through one operand: `lines` values for each k."""

    name: str  # s for streamed, h for held
    lines: int
    inside: bool  # a line's values lie side by side, else those of one k
    step: str  # the work word with the distance of lines, or of k

    @property
    def registers(self) -> tuple[str, ...]:
        if not self.inside:
            return (f"p_{self.name}", self.step)
        return (f"p_{self.name}", *((self.step, f"back_{self.name}") if self.lines > 1 else ()))

    @property
    def order(self) -> tuple[int, ...]:
        """The last load of one k moves the pointer on, and must be at the pointer."""
        return tuple(range(self.lines)) if self.inside else (*range(1, self.lines), 0)

    def load(self, asm: Asm, regs: Registers, into: str, line: int) -> None:
        pointer = regs[f"p_{self.name}"]
        if self.inside:
            last = line == self.lines - 1
            on = (regs[f"back_{self.name}"] if self.lines > 1 else 4) if last else regs[self.step]
            asm.lw_post(into, pointer, on)
        elif line == 0:
            asm.lw_post(into, pointer, regs[self.step])
        else:
            asm.lw(into, pointer, 4 * line)

    def prepare(self, asm: Asm, regs: Registers) -> None:
        """back: from the last line of one k to the first of the next."""
        if self.inside and self.lines > 1:
            back = regs[f"back_{self.name}"]
            asm.li(back, 1 - self.lines)
            asm("mul", back, back, regs[self.step])
            asm("addi", back, back, 4)


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    hold, most = params["hold"], {int(h): r for h, r in params["blocks"].items()}
    panels = [_panel(mode, epilogue, hold, held, lines) for held, lines in most.items()]
    fields = {"s": "const float *", "h": "const float *", "c": "float *", "bias": "const float *"}
    kinds = {name: fields.get(name, "int ") for name in WORK}
    kinds |= dict.fromkeys(("rate", "decay", "momentum", "nesterov"), "float ")
    struct = " ".join(f"{kinds[n]}{n};" for n in WORK if not n.startswith(("init", "spill")))
    return {
        "panels": "\n\n".join(panels),
        "work": f"typedef struct {{ {struct} float init[8], spill[8]; }} work;",
    }


def _panel(mode: str, epilogue: str, hold: str, held: int, most: int) -> str:
    """All lines of a core: full blocks first, then what is left."""
    asm = Asm(f"panel{held}")
    frame = (*SAVED, "ra")
    asm.push(frame)
    _word(asm, "sw", "sp", "a0", "sp")
    asm("csrw", "mscratch", "a0")
    _word(asm, "lw", POINTER, "a0", "s")
    done = asm.fresh()
    for lines in range(most, 0, -1):
        _Block(asm, mode, epilogue, hold, lines, held).write(looped=lines == most, done=done)
    asm.label(done)
    asm("csrr", "a0", "mscratch")
    _word(asm, "lw", "sp", "a0", "sp")
    asm.pop(frame)
    return asm.function("work *w")


def _word(asm: Asm, op: str, register: str, work: str, name: str) -> None:
    asm(op, register, f"{4 * WORK.index(name)}({work})")


class _Block:
    """lines x held elements of c. The largest takes all registers; then the place of the struct
    is in mscratch while k runs, and else stays in a register."""

    def __init__(
        self, asm: Asm, mode: str, epilogue: str, hold: str, lines: int, held: int
    ) -> None:
        self.asm, self.mode, self.epilogue, self.hold = asm, mode, epilogue, hold
        self.lines, self.held = lines, held
        streamed, fixed = ("a", "b") if hold == "b" else ("b", "a")
        self.stream = self._operand("s", streamed, lines)
        self.fixed = self._operand("h", fixed, held)
        self.regs = Registers(POOL)
        self.regs.claim("p_s", POINTER)  # the same for all blocks: it goes on where one ends
        walking = dict.fromkeys((*self.stream.registers, *self.fixed.registers))
        self.regs.take(*(name for name in walking if name != "p_s"))
        self.values = self.regs.take(*(f"held{i}" for i in range(held)))
        self.flow = self.regs.take(*(f"flow{i}" for i in range(min(lines, 2))))
        sums = [(line, i) for line in range(lines) for i in range(held)]
        self.resident = self.regs.left > len(sums)
        self.work = self.regs.one("work") if self.resident else self.flow[-1]
        self.sums = {key: self.regs.one(f"sum{key}") for key in sums}
        self.start, self.end = asm.fresh(), asm.fresh()

    def _operand(self, name: str, matrix: str, lines: int) -> Operand:
        inside = self.mode in K_INSIDE[matrix]
        step = "k4" if inside else ("m4" if matrix == "a" else "n4")
        return Operand(name, lines, inside, step)

    def write(self, *, looped: bool, done: str) -> None:
        """A loop over blocks of this size, or one block if so many lines are left."""
        asm, other = self.asm, self.asm.fresh()
        count, size = self.regs["p_h"], self.sums[0, 0]
        asm("csrr", self.work, "mscratch")
        self.word("lw", count, "blocks" if looped else "rest")
        if looped:
            asm.branch("beqz", count, to=other)
        else:
            asm.li(size, self.lines)
            asm.branch("bne", count, size, to=other)
        for step in dict.fromkeys((self.stream.step, self.fixed.step)):
            if step in self.regs.named:
                self.word("lw", self.regs[step], step)
        self.stream.prepare(asm, self.regs)
        self.fixed.prepare(asm, self.regs)
        asm.bounds(0, self.start, self.end)
        if looped:
            with asm.loop(1, count):
                self._block()
        else:
            self._block()
            asm.branch("j", to=done)
        asm.label(other)

    def word(self, op: str, register: str, name: str) -> None:
        _word(self.asm, op, register, self.work, name)

    def _block(self) -> None:
        asm, pointer = self.asm, self.regs["p_h"]
        if not self.stream.inside:
            self.word("lw", self.regs["p_s"], "s")
            self.word("lw", pointer, "more")
            asm("addi", self.values[0], self.regs["p_s"], 4 * self.lines)
            self.word("sw", self.values[0], "s")
        else:
            self.word("lw", pointer, "more")
        self._begin_sums()
        asm.iterations(0, pointer)
        self.word("lw", pointer, "h")
        self._one_k(first=True)
        asm.label(self.start)
        start = asm.count
        self._one_k(first=False)
        asm.close(self.end, start)
        if not self.resident:
            asm("csrr", self.work, "mscratch")
        self._store()
        if self.stream.inside and self.lines > 1:
            asm("sub", self.regs["p_s"], self.regs["p_s"], self.regs["back_s"])
            asm("addi", self.regs["p_s"], self.regs["p_s"], 4)

    def _begin_sums(self) -> None:
        """What the sums begin with goes where the last one of each kind will be."""
        asm = self.asm
        if self.hold == "b":
            for i in range(self.held):
                self.word("lw", self.sums[self.stream.order[-1], i], f"init{i}")
            return
        bias, plain, go = self.values[0], asm.fresh(), asm.fresh()
        firsts = [self.sums[line, self.held - 1] for line in range(self.lines)]
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

    def _one_k(self, *, first: bool) -> None:
        """Each line is loaded while the one before it is multiplied: nobody waits for memory."""
        asm, order = self.asm, self.stream.order
        self.stream.load(asm, self.regs, self.flow[0], order[0])
        for i in self.fixed.order:
            self.fixed.load(asm, self.regs, self.values[i], i)
        for turn, line in enumerate(order):
            if turn + 1 < self.lines:
                following = self.flow[(turn + 1) % 2]
                self.stream.load(asm, self.regs, following, order[turn + 1])
            for i in range(self.held):
                total = self.sums[line, i]
                old = total if not first else self._begun(line, i)
                asm("fmadd.s", total, self.flow[turn % 2], self.values[i], old)

    def _begun(self, line: int, i: int) -> str:
        if self.hold == "b":
            return self.sums[self.stream.order[-1], i]
        return self.sums[line, self.held - 1]

    def _store(self) -> None:
        lines, held = range(self.lines), range(self.held)
        if self.hold == "b":
            groups = [[self.sums[line, i] for i in held] for line in lines]
        else:
            groups = [[self.sums[line, i] for line in lines] for i in held]
        free = [*self.values, *self.flow, self.regs["p_h"], *self.regs.rest]
        if not self.stream.inside:
            free.append(self.regs["p_s"])
        if not self.resident:
            free.remove(self.work)
        across = 0 if self.hold == "b" else 4 * self.lines
        n4 = self.regs.named.get("n4", "")
        store_block(self.asm, self.epilogue, groups, free, self.word, n4, across)
