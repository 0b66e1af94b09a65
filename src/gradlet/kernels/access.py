"""How a template reads and writes numbers in memory, as the element types of operands have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradlet.ir.elements import Element
from gradlet.kernels.family import Epilogue

SCRATCH = "scratch"


@dataclass(frozen=True)
class Access:
    """own: the kernel's element, of every pointer that is no operand. fused: what a store does."""

    own: Element
    operands: Mapping[str, Element]
    fused: Epilogue | None = None

    def element(self, place: str) -> Element:
        """Of a place in memory, such as `x[i]`; scratch holds what is computed with."""
        name = place.partition("[")[0].strip()
        return self.own.sums if name == SCRATCH else self.operands.get(name, self.own)

    def load(self, place: str) -> str:
        return self.element(place).load.format(place)

    def store(self, array: str, index: str, value: str) -> str:
        if self.fused is None:
            return self._stored(array, index, value)
        if self.own.accumulate:
            return self._loaded(self.fused, array, index, value)
        own = {operand.name: f"{operand.name}[{index}]" for operand in self.fused.outputs}
        return self.fused.store.format(w=f"{array}[{index}]", value=value, **own)

    def _stored(self, array: str, index: str, value: str) -> str:
        return f"{array}[{index}] = {self.element(array).store.format(value)};"

    def _loaded(self, fused: Epilogue, array: str, index: str, value: str) -> str:
        """What works on numbers in memory gets some that are loaded before and stored behind."""
        places = {"w": array, **{operand.name: operand.name for operand in fused.outputs}}
        names = {name: f"{name}_here" for name in places}
        number = self.own.sums.c
        text = [
            f"{number} {names[name]} = {self.load(f'{place}[{index}]')};"
            for name, place in places.items()
        ]
        text.append(fused.store.format(value=value, **names))
        text += [self._stored(place, index, names[name]) for name, place in places.items()]
        return f"{{ {' '.join(text)} }}"
