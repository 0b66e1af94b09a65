"""Element types, a row each: how a number lies in memory, and how it is computed with.

Storage and arithmetic are apart. A narrow element is loaded into a wider one, computed with there,
and rounded once when it is stored. In Python its values are held in the wider type, and become
bytes where they go into a program's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Element:
    """numpy: the type of what lies in memory; values: that of the same numbers in Python.

    upper: it is the upper half of such a number, which numpy has no type for. c: the type in C, and
    the header that has it beside gl.h. load and store are C for a place in memory and for a number
    that goes there. accumulate: the element that is computed with, and that sums are kept in; "" is
    the element itself.
    """

    name: str
    bytes: int
    numpy: str
    c: str
    unit_roundoff: float = 0.0
    smallest: float = 0.0  # the step between subnormal numbers
    largest: float = 0.0
    values: str = ""
    upper: bool = False
    header: str = ""
    load: str = "{0}"
    store: str = "{0}"
    accumulate: str = ""

    @property
    def is_float(self) -> bool:
        return self.unit_roundoff > 0

    @property
    def sums(self) -> Element:
        """What it is computed with."""
        return ELEMENTS[self.accumulate] if self.accumulate else self

    @property
    def whole(self) -> float:
        """Whole numbers below this are told apart."""
        return 1 / self.unit_roundoff

    @property
    def value_type(self) -> np.dtype[np.generic]:
        return np.dtype(self.values or self.numpy)

    def rounded(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """To the nearest number that it has."""
        return self.loaded(self.stored(value)).astype(np.float64)

    def stored(self, value: NDArray[np.generic]) -> Array:
        """Values as they lie in memory."""
        if self.upper:
            value = _upper_half(np.asarray(value, np.float32))
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(np.dtype(self.numpy).newbyteorder("<"), copy=False)

    def loaded(self, memory: Array) -> Array:
        """What lies in memory, as values."""
        if self.upper:
            return (memory.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return memory.astype(self.value_type, copy=False)

    def fits(self, value: NDArray[np.generic]) -> bool:
        """Whether every element of an array is a number that it has, or one between two of them."""
        if value.dtype.kind != "f":
            return True
        return bool((np.abs(value) <= self.largest).all())


def _upper_half(value: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Of the bits, rounded to the nearest, of two to the even one."""
    bits = np.ascontiguousarray(value).view(np.uint32).reshape(value.shape)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FC0), rounded)


F32 = Element(
    "f32", 4, "float32", "float", 2.0**-24, 2.0**-149, largest=float(np.finfo(np.float32).max)
)
I32 = Element("i32", 4, "int32", "int32_t")
F16 = Element(
    "f16",
    2,
    "float16",
    "gl_f16",
    2.0**-11,
    2.0**-24,
    largest=65504.0,
    values="float32",
    header="gl_f16.h",
    load="gl_f16_load({0})",
    store="gl_f16_store({0})",
    accumulate="f32",
)
BF16 = Element(
    "bf16",
    2,
    "uint16",
    "gl_bf16",
    2.0**-8,
    2.0**-133,
    largest=float.fromhex("0x1.fep127"),
    values="float32",
    upper=True,
    header="gl_bf16.h",
    load="gl_bf16_load({0})",
    store="gl_bf16_store({0})",
    accumulate="f32",
)

ELEMENTS = {element.name: element for element in (F32, I32, F16, BF16)}
