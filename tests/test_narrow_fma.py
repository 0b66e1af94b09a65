"""a b + c in 16 bits is rounded once: against fractions, with terms of all sizes and ties."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from gradlet.ir.elements import ELEMENTS, Element
from gradlet.ir.graph import Array
from gradlet.runtime import includes
from gradlet.support import compiler

SOURCE = """
#include "gl_{0}.h"
void many(const gl_{0} *a, const gl_{0} *b, const gl_{0} *c, gl_{0} *to, int count);
void many(const gl_{0} *a, const gl_{0} *b, const gl_{0} *c, gl_{0} *to, int count)
{{
    for (int i = 0; i < count; ++i) to[i] = gl_{0}_fma(a[i], b[i], c[i]);
}}
"""
COUNT = 3000


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rounded_once(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "many.c").write_text(SOURCE.format(dtype))
    built = compiler.build_library(
        [tmp_path / "many.c"], tmp_path / "many.so", include=includes("host")
    )
    element = ELEMENTS[dtype]
    a, b, c = operands(element)
    made = np.zeros(COUNT, np.uint16)
    places = [v.ctypes.data_as(ctypes.c_void_p) for v in (a, b, c, made)]
    ctypes.CDLL(str(built)).many(*places, COUNT)
    numbers = [element.loaded(v.view(element.numpy)).astype(float) for v in (a, b, c, made)]
    for one, other, added, result in zip(*(v.tolist() for v in numbers), strict=True):
        if not np.isfinite([one, other, added]).all():
            continue
        exact = Fraction(one) * Fraction(other) + Fraction(added)
        assert nearest(exact, result, element), (one, other, added, result)


def operands(element: Element) -> tuple[Array, Array, Array]:
    """Any bits; in the second half the exponents are such that terms overlap."""
    generator = np.random.default_rng(3)
    a, b, c = (generator.integers(0, 1 << 16, COUNT).astype(np.uint16) for _ in range(3))
    bits = 7 if element.upper else 10
    middle, top = (1 << 14 - bits) - 1, (1 << 15 - bits) - 2
    near = slice(COUNT // 2, None)
    first = generator.integers(1, top, COUNT)[near]
    second = np.clip(2 * middle - first + generator.integers(-12, 12, first.size), 0, top)
    third = np.clip(first + second - middle + generator.integers(-26, 26, first.size), 0, top)
    for value, exponent in ((a, first), (b, second), (c, third)):
        rest = value[near].astype(int) & (0x8000 | (1 << bits) - 1)
        value[near] = (rest | exponent << bits).astype(np.uint16)
    return a, b, c


def nearest(exact: Fraction, result: float, element: Element) -> bool:
    """Whether no number of the element is nearer, and of two as near it is the even one."""
    if not np.isfinite(result):
        step = Fraction(element.largest) * Fraction(element.unit_roundoff)
        return abs(exact) >= Fraction(element.largest) + step / 2
    pattern = int(element.stored(np.array(result)).view(np.uint16))
    off = abs(exact - Fraction(result))
    for other in (pattern - 1, pattern + 1):
        if 0 <= other & 0x7FFF < 0x8000 and other >> 15 == pattern >> 15:
            bits = np.array(other, np.uint16).view(element.numpy)
            value = float(element.loaded(bits))
            if np.isfinite(value):
                beside = abs(exact - Fraction(value))
                if beside < off or (beside == off and pattern & 1):
                    return False
    return True
