"""Instructions for numbers of 16 bits, two in a register: binary16 (.h) and bfloat16 (.ah)."""

from __future__ import annotations

from dataclasses import dataclass

from gradlet.ir.elements import Element
from gradlet.kernels.xpulp.isa.asm import Asm

LANES = 2
"""Numbers in a word."""
HIGH_HALVES = 0x00030001
"""What shuf2 takes for the high half of the old value, then that of the other one."""


@dataclass(frozen=True)
class Narrow:
    """vector: the format of vfmac and the like; dot: of vfdotpex; source: its number in fcvt;
    rounding: what stands there in scalar instructions."""

    vector: int
    dot_format: int
    source: int
    rounding: int
    upper: bool  # the upper half of a float

    def dot(self, asm: Asm, total: str, a: str, b: str) -> None:
        """total += high a * high b + (low a * low b), a float: rounded after each of the three."""
        asm(f".insn r 0x33, {self.dot_format}, 0x4b,", total, a, b)

    def accumulate(self, asm: Asm, totals: str, word: str, value: str) -> None:
        """Both halves of the word times the low half of the value, added and rounded once."""
        asm(f".insn r 0x33, {self.vector | 4}, 0x48,", totals, word, value)

    def scale(self, asm: Asm, into: str, word: str, value: str) -> None:
        """The products alone."""
        asm(f".insn r 0x33, {self.vector | 4}, 0x43,", into, word, value)

    def add_product(self, asm: Asm, total: str, a: str, b: str) -> None:
        """total += low a * low b, a float."""
        asm(f".insn r 0x53, {self.rounding}, 0x2a,", total, a, b)

    def join(self, asm: Asm, into: str, low: str, high: str) -> None:
        """Two floats, rounded, as one word."""
        asm(f".insn r 0x33, {self.vector}, 0x58,", into, low, high)

    def widen(self, asm: Asm, into: str, word: str) -> None:
        """The low half as a float."""
        if self.upper:
            asm("slli", into, word, 16)
        else:
            asm(".insn r 0x53, 0, 0x20,", into, word, f"x{self.source}")

    def widen_high(self, asm: Asm, into: str, word: str) -> None:
        """The high half as a float; `into` is another register."""
        asm("srli", into, word, 16)
        if self.upper:
            asm("slli", into, into, 16)
        else:
            self.widen(asm, into, into)


FORMATS = {"f16": Narrow(2, 0, 2, 0, upper=False), "bf16": Narrow(1, 1, 6, 5, upper=True)}


def narrow(element: Element) -> Narrow | None:
    """None: numbers of the element fill a register."""
    return FORMATS.get(element.name)


def load_half(asm: Asm, into: str, base: str, offset: int = 0) -> None:
    """A single number; the high half is 0."""
    asm("lhu", into, f"{offset}({base})")


def load_half_post(asm: Asm, into: str, base: str, step: int | str) -> None:
    """The same; base += step, a number of bytes or a register."""
    by_register = isinstance(step, str)
    last = (into, base, step) if by_register else (into, f"{step}({base})")
    asm(".insn r 0x0b, 7, 0x28," if by_register else ".insn i 0x0b, 5,", *last)


def store_half(asm: Asm, value: str, base: str, offset: int = 0) -> None:
    asm("sh", value, f"{offset}({base})")


def store_half_post(asm: Asm, value: str, base: str, step: int | str) -> None:
    """[base] = the low half; base += step, a number of bytes or a register."""
    if isinstance(step, str):
        asm(".insn r 0x2b, 5, 0x00,", step, base, value)
    else:
        asm(".insn s 0x2b, 1,", value, f"{step}({base})")


def zip_halves(asm: Asm, low: str, high: str, joined: str, selector: str) -> None:
    """Of two words: their low halves side by side go to `joined`, their high halves to `low`."""
    asm(".insn r 0x57, 0, 0x68,", joined, high, low)
    asm(".insn r 0x57, 0, 0x64,", low, high, selector)


def relu(asm: Asm, word: str) -> None:
    """Of both halves, as whole numbers: the FPU makes no negative NaN."""
    asm(".insn r 0x57, 0, 0x18,", word, word, "zero")
