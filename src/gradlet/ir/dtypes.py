"""Element types: their size, their numpy and C names, and their rounding error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DType:
    name: str
    bytes: int
    numpy: str
    c: str
    unit_roundoff: float
    smallest: float = 0.0  # the step between subnormal numbers

    @property
    def is_float(self) -> bool:
        return self.unit_roundoff > 0


F32 = DType("f32", 4, "float32", "float", 2.0**-24, 2.0**-149)
I32 = DType("i32", 4, "int32", "int32_t", 0.0)

DTYPES = {dtype.name: dtype for dtype in (F32, I32)}


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    return np.dtype(DTYPES[name].numpy)
