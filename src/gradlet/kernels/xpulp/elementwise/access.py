"""How the elements of an operand get into registers and back. What lies in memory with 16 bits is
computed with as floats: two neighbours are one word there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradlet.ir.elements import F32, Element
from gradlet.kernels.xpulp.isa.asm import Asm
from gradlet.kernels.xpulp.isa.narrow import LANES, load_half_post, narrow, store_half_post


@dataclass(frozen=True)
class Access:
    """element: of what lies in memory. bare: nothing is computed, the bits are moved."""

    element: Element = F32
    bare: bool = False

    @property
    def step(self) -> int:
        """Bytes from one to the next, where no register says it."""
        return self.element.bytes

    def load(self, asm: Asm, into: Sequence[str], pointer: str, step: int | str) -> None:
        """Neighbouring ones; widen() does the rest, when the memory has answered."""
        if narrow(self.element) is None:
            for register in into:
                asm.lw_post(register, pointer, step)
        elif self._together(into, step):
            asm.lw_post(into[0], pointer, LANES * self.step)
        else:
            for register in into:
                load_half_post(asm, register, pointer, step)

    def widen(self, asm: Asm, loaded: Sequence[str], step: int | str) -> None:
        kind = narrow(self.element)
        if kind is None or self.bare:
            return
        if self._together(loaded, step):
            kind.widen_high(asm, loaded[1], loaded[0])
            kind.widen(asm, loaded[0], loaded[0])
        else:
            for register in loaded:
                kind.widen(asm, register, register)

    def store(self, asm: Asm, values: Sequence[str], pointer: str, step: int | str) -> None:
        """The registers of the values are lost."""
        kind = narrow(self.element)
        if kind is None:
            for value in values:
                asm.sw_post(value, pointer, step)
        elif self._together(values, step) and "zero" not in values:
            if not self.bare:
                kind.join(asm, values[0], *values)
            asm.sw_post(values[0], pointer, LANES * self.step)
        else:
            for value in values:
                if not self.bare and value != "zero":
                    kind.join(asm, value, value, value)
                store_half_post(asm, value, pointer, step)

    def _together(self, registers: Sequence[str], step: int | str) -> bool:
        return len(registers) == LANES and step == self.step
