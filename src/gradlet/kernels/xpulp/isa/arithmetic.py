"""Lines of a Map for what takes many instructions: exponentials, and quotients without a division.

One unit divides for the whole cluster and takes 14 cycles each time: eight cores make no more of
them than one. An estimate by the bits and two steps that cube and square its error take a core six
cycles; the error is below 1.3 units of 2^-24. Square roots likewise, with three steps.

exp(x) for x <= 0: x = n ln2 + r, a polynomial of degree 5 in r, and n is added to the exponent. The
error is below 4 units of 2^-24 down to -20 and 7 down to -86; what is below counts as -infinity.
"""

from __future__ import annotations

import struct
from typing import Any

Line = tuple[Any, ...]

EXPONENT = {
    "log2e": "1.44287109",
    "magic": "12582912.0",
    "ln2": "0.693147181",
    "c5": "8.31222534e-3",
    "c4": "0.0419006348",
    "c3": "0.166671529",
    "c2": "0.499991596",
    "one": "1.0",
    "least": "-86.0",
}
"""log2e, c5 and c4 have few bits, so that one instruction makes them; c2 and c3 know of it. What is
added to magic loses its fraction, and is a whole number in the last bits."""


def bits(number: str) -> int:
    """Of the float that C makes of this text."""
    value: int = struct.unpack("<I", struct.pack("<f", float(number)))[0]
    return value


SEED, ROOT_SEED = 0x7EF35000, 0x5F376000
"""Less the bits of d, those of about 1 / d; less half of them, those of 1 / its root: 5 and 4 %."""
LOW, HIGH = bits("8.67361738e-19"), bits("1.15292150e18")  # 2^-60 and 2^60
INVERSE = {"seed": SEED, "one": bits("1.0")}
NEWTON = {**INVERSE, "low": 2 * LOW, "range": 2 * (HIGH - LOW)}
DIVISION = {**NEWTON, "top": 2 * HIGH}


def inverse(d: str, y: str, e: str) -> tuple[Line, ...]:
    """y = 1 / d, which is in 2^-60..2^60; e is lost."""
    return (
        ("sub", y, "seed", d),
        ("fnmsub.s", e, d, y, "one"),
        ("fmadd.s", e, e, e, e),
        ("fmadd.s", y, y, e, y),
        ("fnmsub.s", e, d, y, "one"),
        ("fmadd.s", y, y, e, y),
    )


def root_inverse(v: str, y: str, half_v: str, e: str) -> tuple[Line, ...]:
    """y = 1 / sqrt(v), less than that where v is below 2^-126; half_v and e are lost."""
    step = (
        ("fmul.s", e, half_v, y),
        ("fnmsub.s", e, e, y, "half"),
        ("fmadd.s", y, y, e, y),
    )
    return (
        ("srli", y, v, 1),
        ("sub", y, "root_seed", y),
        ("fmul.s", half_v, v, "half"),
        *(step * 3),
    )


DIVIDED: tuple[Line, ...] = (
    ("slli", "t", "b", 1),
    ("sub", "t", "t", "low"),
    ("rare", "bgeu", "t", "range", (("fdiv.s", "a", "a", "b"),)),
    ("slli", "u", "a", 1),
    ("rare", "bgeu", "u", "top", (("fdiv.s", "a", "a", "b"),)),
    *inverse("b", "t", "u"),
    ("fmul.s", "u", "a", "t"),
    ("fnmsub.s", "a", "u", "b", "a"),
    ("fmadd.s", "a", "a", "t", "u"),
    ("back",),
)
"""a / b: by the unit where b is tiny, huge or no number, or a is huge. What is left of a, divided
as well, makes quotients exact that float32 has: their fractions may be taken off."""


def unmasked(x: str, e: str, log2e: str = "log2e") -> tuple[Line, ...]:
    """e = exp(x), which may take the place of x, down to -86; t and r are lost."""
    return (
        ("fmadd.s", "t", x, log2e, "magic"),
        ("fsub.s", "r", "t", "magic"),
        ("fnmsub.s", "r", "r", "ln2", x),
        ("slli", "t", "t", 23),
        ("fmadd.s", e, "c5", "r", "c4"),
        *(("fmadd.s", e, e, "r", name) for name in ("c3", "c2", "one", "one")),
        ("add", e, e, "t"),
    )


def exponential(x: str, e: str) -> tuple[Line, ...]:
    """The same for all x <= 0; low is lost as well."""
    mask = (("addi", "low", "low", -1), ("and", e, e, "low"))
    return (("flt.s", "low", x, "least"), *unmasked(x, e), *mask)


EXPONENTIAL = {name: bits(text) for name, text in EXPONENT.items()}
