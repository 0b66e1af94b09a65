"""Floating point by exact rational arithmetic: the oracle for the simulator's."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

RNE, RTZ, RDN, RUP, RMM = range(5)


@dataclasses.dataclass(frozen=True)
class Format:
    exponent_bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        return (1 << self.exponent_bits - 1) - 1

    @property
    def sign(self) -> int:
        return 1 << self.exponent_bits + self.fraction_bits

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def nan(self) -> int:
        return self.infinity | 1 << self.fraction_bits - 1

    def is_nan(self, bits: int) -> bool:
        return bits & (self.sign - 1) > self.infinity

    def is_infinite(self, bits: int) -> bool:
        return bits & (self.sign - 1) == self.infinity

    def negative(self, bits: int) -> bool:
        return bool(bits & self.sign)

    def value(self, bits: int) -> Fraction:
        exponent = bits >> self.fraction_bits & (1 << self.exponent_bits) - 1
        fraction = bits & (1 << self.fraction_bits) - 1
        if exponent:
            fraction += 1 << self.fraction_bits
        power = max(exponent, 1) - self.bias - self.fraction_bits
        magnitude = fraction * Fraction(2) ** power
        return -magnitude if self.negative(bits) else magnitude


SINGLE, HALF, BFLOAT = Format(8, 23), Format(5, 10), Format(8, 7)


def to_integer(value: Fraction, mode: int) -> int:
    """Round to a whole number."""
    below = math.floor(value)
    rest = value - below
    if rest == 0:
        return below
    if mode == RDN:
        return below
    if mode == RUP:
        return below + 1
    if mode == RTZ:
        return below if value > 0 else below + 1
    if rest != Fraction(1, 2):
        return below + (rest > Fraction(1, 2))
    if mode == RMM:
        return below + 1 if value > 0 else below
    return below + (below & 1)


def round_to(fmt: Format, value: Fraction, mode: int, zero_sign: bool = False) -> int:
    """The bits of a rational number in this format."""
    if value == 0:
        return fmt.sign if zero_sign else 0
    sign = fmt.sign if value < 0 else 0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, 1 - fmt.bias) - fmt.fraction_bits)
    steps = abs(to_integer(value / quantum, mode))
    rounded = steps * quantum
    largest = (2 - Fraction(1, 1 << fmt.fraction_bits)) * Fraction(2) ** fmt.bias
    if rounded > largest:
        to_infinity = mode in (RNE, RMM) or mode == (RDN if value < 0 else RUP)
        return sign | (fmt.infinity if to_infinity else fmt.infinity - 1)
    if rounded < Fraction(2) ** (1 - fmt.bias):
        return sign | int(rounded / Fraction(2) ** (1 - fmt.bias - fmt.fraction_bits))
    exponent = max(exponent, 1 - fmt.bias)
    if rounded >= Fraction(2) ** (exponent + 1):
        exponent += 1
    fraction = rounded / Fraction(2) ** (exponent - fmt.fraction_bits) - (1 << fmt.fraction_bits)
    return sign | (exponent + fmt.bias) << fmt.fraction_bits | int(fraction)


def negate(fmt: Format, a: int) -> int:
    return a ^ fmt.sign


def fma(fmt: Format, a: int, b: int, c: int, mode: int) -> int:
    if fmt.is_nan(a) or fmt.is_nan(b) or fmt.is_nan(c):
        return fmt.nan
    product_negative = fmt.negative(a) != fmt.negative(b)
    if fmt.is_infinite(a) or fmt.is_infinite(b):
        other = b if fmt.is_infinite(a) else a
        if not fmt.is_infinite(other) and fmt.value(other) == 0:
            return fmt.nan
        if fmt.is_infinite(c) and fmt.negative(c) != product_negative:
            return fmt.nan
        return fmt.infinity | (fmt.sign if product_negative else 0)
    if fmt.is_infinite(c):
        return c
    product = fmt.value(a) * fmt.value(b)
    total = product + fmt.value(c)
    same = product_negative == fmt.negative(c)
    zero_sign = fmt.negative(c) if same else mode == RDN
    return round_to(fmt, total, mode, zero_sign)


def add(fmt: Format, a: int, b: int, mode: int) -> int:
    return fma(fmt, a, round_to(fmt, Fraction(1), RNE), b, mode)


def multiply(fmt: Format, a: int, b: int, mode: int) -> int:
    sign = fmt.negative(a) != fmt.negative(b)
    if fmt.is_nan(a) or fmt.is_nan(b) or fmt.is_infinite(a) or fmt.is_infinite(b):
        return fma(fmt, a, b, fmt.sign if sign else 0, mode)
    return round_to(fmt, fmt.value(a) * fmt.value(b), mode, sign)


def divide(fmt: Format, a: int, b: int, mode: int) -> int:
    sign = fmt.sign if fmt.negative(a) != fmt.negative(b) else 0
    if fmt.is_nan(a) or fmt.is_nan(b):
        return fmt.nan
    if fmt.is_infinite(a):
        return fmt.nan if fmt.is_infinite(b) else fmt.infinity | sign
    if fmt.is_infinite(b):
        return sign
    if fmt.value(b) == 0:
        return fmt.nan if fmt.value(a) == 0 else fmt.infinity | sign
    return round_to(fmt, fmt.value(a) / fmt.value(b), mode, bool(sign))


def square_root(fmt: Format, a: int, mode: int) -> int:
    if fmt.is_nan(a):
        return fmt.nan
    if not fmt.is_infinite(a) and fmt.value(a) == 0:
        return a
    if fmt.negative(a):
        return fmt.nan
    if fmt.is_infinite(a):
        return a
    value = fmt.value(a)
    scale = 1 << 400
    root = math.isqrt(int(value * scale))
    exact = root * root == value * scale
    # A number between root and root + 1 that no rounding mode confuses with either.
    return round_to(fmt, Fraction(2 * root + (not exact), 2 * (1 << 200)), mode)


def minimum(fmt: Format, a: int, b: int, largest: bool = False) -> int:
    if fmt.is_nan(a):
        return fmt.nan if fmt.is_nan(b) else b
    if fmt.is_nan(b):
        return a

    def key(bits: int) -> tuple[float | Fraction, bool]:
        if fmt.is_infinite(bits):
            return (-math.inf if fmt.negative(bits) else math.inf), not fmt.negative(bits)
        return fmt.value(bits), not fmt.negative(bits)

    return (max if largest else min)(a, b, key=key)


def less(fmt: Format, a: int, b: int, or_equal: bool = False) -> bool:
    if fmt.is_nan(a) or fmt.is_nan(b):
        return False

    def number(bits: int) -> float | Fraction:
        if fmt.is_infinite(bits):
            return -math.inf if fmt.negative(bits) else math.inf
        return fmt.value(bits)

    return number(a) <= number(b) if or_equal else number(a) < number(b)


def convert(source: Format, target: Format, a: int, mode: int) -> int:
    sign = target.sign if source.negative(a) else 0
    if source.is_nan(a):
        return target.nan
    if source.is_infinite(a):
        return target.infinity | sign
    return round_to(target, source.value(a), mode, bool(sign))


def to_int(fmt: Format, a: int, low: int, high: int, mode: int) -> int:
    if fmt.is_nan(a):
        return high
    if fmt.is_infinite(a):
        return low if fmt.negative(a) else high
    return min(max(to_integer(fmt.value(a), mode), low), high)


def classify(fmt: Format, a: int) -> int:
    negative = fmt.negative(a)
    if fmt.is_nan(a):
        return 1 << (9 if a >> fmt.fraction_bits - 1 & 1 else 8)
    if fmt.is_infinite(a):
        return 1 << (0 if negative else 7)
    if a & fmt.infinity:
        return 1 << (1 if negative else 6)
    if a & (fmt.sign - 1):
        return 1 << (2 if negative else 5)
    return 1 << (3 if negative else 4)
