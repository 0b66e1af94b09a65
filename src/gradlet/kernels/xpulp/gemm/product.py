"""What a matrix product is: its arguments, the words of its work, and how it walks through its
operands."""

from __future__ import annotations

from dataclasses import dataclass

from gradlet.ir.elements import F32, Element
from gradlet.kernels.xpulp.isa.asm import Asm, Registers
from gradlet.kernels.xpulp.isa.narrow import Narrow, load_half_post, narrow

WORK = (
    *("s", "h", "c", "bias", "more", "rest", "k4", "m4", "n4"),
    *("moment", "rate", "decay", "momentum", "nesterov"),
    *("s_first", "height", "h_next", "c_next", "bias_next", "columns", "apart"),
    *(f"init{i}" for i in range(5)),
)
"""The words at the stack pointer: of the block, the update, the panel; what the sums begin with."""
CUT = {"row": "init0", "rows": "init1", "column": "init2", "width": "init3", "distance": "init4"}
"""What the C function finds out, in words that are free until then."""
PAIRED = ("odd", "b4")
"""More words where two values of k are in a register: whether one is left over, and the distance of
pairs in b where they were laid out."""
SPILL = 4 * len(WORK)
MOST_SUMS = 20
K_INSIDE = {"a": ("nn", "nt"), "b": ("nt",)}
"""In which modes the values of one line lie side by side."""


SIZES = ("batch", "m", "n", "k")
ON_STACK = "t6"
"""The seventh argument, fetched."""
SETTINGS = {"sgd": ("rate", "decay"), "momentum": ("rate", "decay", "momentum", "nesterov")}


def signature(epilogue: str) -> dict[str, str]:
    """The arguments of a product and their registers; id and number of cores are in a0 and a1."""
    names = ["c", *(["moment"] if epilogue == "momentum" else []), "a", "b", "bias"]
    names += [*(["hyper"] if epilogue in SETTINGS else []), "sizes"]
    return dict(zip(names, [*(f"a{i}" for i in range(2, 8)), ON_STACK], strict=False))


def save_settings(asm: Asm, epilogue: str, argument: dict[str, str]) -> None:
    """What the update needs, from its settings to the words at sp. Takes s0 to s3."""
    words = SETTINGS.get(epilogue, ())
    for i in range(len(words)):
        asm.lw(f"s{i}", argument["hyper"], 4 * i)
    for i, name in enumerate(words):
        if name == "rate":
            asm("fsgnjn.s", f"s{i}", f"s{i}", f"s{i}")
        asm.sw(f"s{i}", "sp", at(name))
    if epilogue == "momentum":
        asm("sub", "s0", argument["moment"], argument["c"])
        asm.sw("s0", "sp", at("moment"))


def at(word: str) -> int:
    return 4 * (*WORK, *PAIRED).index(CUT.get(word, word))


def frame(epilogue: str, spill: int = SPILL) -> int:
    """Bytes for the words, and for the sums where the store wants them in memory."""
    return spill + (4 * MOST_SUMS if epilogue == "momentum" else 0)


@dataclass(frozen=True)
class Product:
    """What is generated: `hold` is the operand whose lines are held.

    Of a narrow element a register has the values of two neighbouring k, and a multiply-add is that
    of both. Where they do not lie side by side, they were laid out so before."""

    mode: str
    epilogue: str
    hold: str
    bias_of_rows: bool = False  # the bias has an element for each row of c, not for each column
    biased: bool = True  # there may be a bias at all
    element: Element = F32

    @property
    def narrow(self) -> Narrow | None:
        return narrow(self.element)

    @property
    def laid_out(self) -> bool:
        """Whether an operand comes as pairs of k: words side by side in lines of odd length."""
        return self.narrow is not None and self.mode != "nt"

    @property
    def leftover(self) -> bool:
        """Whether the first of an odd number of k is alone; where all is laid out, it has a 0."""
        return self.narrow is not None and self.mode != "tn"

    @property
    def spill(self) -> int:
        """Where sums may be put, behind the words."""
        return SPILL + (4 * len(PAIRED) if self.narrow else 0)

    @property
    def by_columns(self) -> bool:
        """Held are columns of c, so that those of a line lie side by side."""
        return self.hold == "b"

    @property
    def bias_by_line(self) -> bool:
        """Each streamed line has a bias of its own, not each held one."""
        return self.by_columns == self.bias_of_rows

    def operand(self, name: str, lines: int) -> Operand:
        matrix = self.hold if name == "h" else ("a" if self.hold == "b" else "b")
        inside = self.mode in K_INSIDE[matrix]
        outer = {"a": "m4", "b": "b4" if self.narrow else "n4"}
        return Operand(name, lines, inside, "k4" if inside else outer[matrix])


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
            asm.lw_post(into, pointer, self._on(regs, line))
        elif line == 0:
            asm.lw_post(into, pointer, regs[self.step])
        else:
            asm.lw(into, pointer, 4 * line)

    def load_single(self, asm: Asm, regs: Registers, into: str, line: int) -> None:
        """Of a pair that would lie there only the first half, unless it was laid out."""
        if self.inside:
            load_half_post(asm, into, regs[f"p_{self.name}"], self._on(regs, line))
        else:
            self.load(asm, regs, into, line)

    def _on(self, regs: Registers, line: int) -> int | str:
        """How far the pointer moves on behind this line."""
        if line < self.lines - 1:
            return regs[self.step]
        return regs[f"back_{self.name}"] if self.lines > 1 else 4

    def prepare(self, asm: Asm, regs: Registers) -> None:
        """back: from the last line of one k to the first of the next."""
        if self.inside and self.lines > 1:
            back, step = regs[f"back_{self.name}"], regs[self.step]
            if (self.lines - 1) & (self.lines - 2):
                asm.li(back, 1 - self.lines)
                asm("mul", back, back, step)
            else:
                asm("slli", back, step, (self.lines - 1).bit_length() - 1)
                asm("sub", back, "zero", back)
            asm("addi", back, back, 4)
