"""What the usual convolutions have in common from their call on, before their blocks or units run.

Usual: one image, no groups, no dilation. The compiler takes more code for the same by a half, and
code that runs once is slow to fetch: so numbers stay in registers that short instructions know (s0,
s1, a0 to a5), and go to the struct at sp at once. What is not usual goes on in C.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.kernels.xpulp.isa.asm import SAVED, Asm

SIZES = (
    *("batch", "in_channels", "in_h", "in_w", "out_channels", "out_h", "out_w"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_top", "pad_left"),
    *("dilation_h", "dilation_w", "groups"),
)
KEPT = ("ra", *SAVED)


class Start:
    """operands: how many there are behind core and cores, before the sizes; they are in s2, s3, ...
    then, and the sizes in s0. words: names of those from sp on; room: bytes of the whole struct."""

    def __init__(self, name: str, operands: int, words: Sequence[str], room: int) -> None:
        self.asm = Asm(name)
        self.words = tuple(words)
        self.room = -(-room // 16) * 16
        self.given = [(f"s{2 + i}", f"a{2 + i}") for i in range(operands)]

    def size(self, register: str, name: str) -> None:
        self.asm.lw(register, "s0", 4 * SIZES.index(name))

    def put(self, register: str, *fields: str) -> None:
        for field in fields:
            self.asm.sw(register, "sp", 4 * self.words.index(field))

    def get(self, register: str, field: str) -> None:
        self.asm.lw(register, "sp", 4 * self.words.index(field))

    def begin(self, channels: str = "out_channels") -> None:
        """Leaves these in a4; a5 is free from here on."""
        asm = self.asm
        asm.compressed(True)
        asm.push(KEPT)
        asm("addi", "sp", "sp", -self.room)
        asm.mv("s0", f"a{2 + len(self.given)}")
        for kept, given in self.given:
            asm.mv(kept, given)
        self.size("a2", "batch")
        self.size("a3", "groups")
        self.size("a4", "dilation_h")
        asm("or", "a2", "a2", "a3")
        asm("or", "a2", "a2", "a4")
        self.size("a4", channels)
        asm.bne_imm("a2", 1, to="any")

    def share(self, register: str) -> None:
        """Each pair of output channels has as many parts as this register says. Leaves those of the
        core in s1, its first one in a0, in a1 the pair of it."""
        asm = self.asm
        asm("srli", "a4", "a4", 1)
        asm("mul", "a4", "a4", register)
        asm("addi", "s1", "a4", 7)
        asm("srai", "s1", "s1", 3)
        asm.bne_imm("a1", 8, to="other_team")
        asm.label("shared")
        asm("mul", "a0", "a0", "s1")
        asm("add", "s1", "s1", "a0")
        asm.min("a0", "a0", "a4")
        asm.min("s1", "s1", "a4")
        asm("sub", "s1", "s1", "a0")
        asm.branch("blez", "s1", to="out")
        asm("divu", "a1", "a0", register)

    def end(self) -> None:
        self.asm.label("out")
        self.asm("addi", "sp", "sp", self.room)
        self.asm.pop(KEPT)

    def rare(self, *functions: str) -> None:
        """Another number of cores; C functions that do the rest, each a label to branch to."""
        asm = self.asm
        asm.label("other_team")
        asm("add", "s1", "a4", "a1")
        asm("addi", "s1", "s1", -1)
        asm("divu", "s1", "s1", "a1")
        asm.branch("j", to="shared")
        for name in functions:
            asm.label(name)
            asm("lui", "t0", f"%hi({name})")
            asm("addi", "t0", "t0", f"%lo({name})")
            if name != functions[-1]:
                asm.branch("j", to="elsewhere")
        asm.label("elsewhere")
        asm.mv(f"a{2 + len(self.given)}", "s0")
        for kept, given in self.given:
            asm.mv(given, kept)
        asm("addi", "sp", "sp", self.room)
        asm.pop(KEPT, to="t0")
