"""Single precision, binary16 and bfloat16: bit for bit what IEEE 754 and RISC-V ask for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

import tests.sim.softfloat as sf
from tests.sim.softfloat import BFLOAT, HALF, RNE, SINGLE, Format
from tests.sim.support import ACC, A, B, C, apply, r_type

MODES = range(5)
DYNAMIC = 7
FORMATS = {"single": SINGLE, "half": HALF, "bfloat": BFLOAT}
FMT_CODE = {"single": 0, "half": 2, "bfloat": 2}


def specials(fmt: Format) -> list[int]:
    """The corners of a format, with both signs."""
    one = fmt.bias << fmt.fraction_bits
    positive = [
        0,
        1,
        2,
        (1 << fmt.fraction_bits) - 1,
        1 << fmt.fraction_bits,
        (1 << fmt.fraction_bits) + 1,
        one,
        one + 1,
        one - 1,
        fmt.infinity - 1,
        fmt.infinity,
        fmt.nan,
        fmt.infinity + 1,
        one + (1 << fmt.fraction_bits),
    ]
    return positive + [bits | fmt.sign for bits in positive]


def numbers(fmt: Format, count: int, seed: int) -> list[int]:
    """Random bit patterns, half of them close to one so that sums interact."""
    rng = random.Random(seed)
    one = fmt.bias << fmt.fraction_bits
    span = 4 << fmt.fraction_bits
    return [
        rng.getrandbits(fmt.exponent_bits + fmt.fraction_bits + 1)
        if i % 2
        else (one + rng.randrange(-span, span)) | rng.getrandbits(1) * fmt.sign
        for i in range(count)
    ]


def pairs(fmt: Format, seed: int = 1, count: int = 400) -> list[tuple[int, ...]]:
    values = list(itertools.product(specials(fmt), repeat=2))
    return values + list(zip(numbers(fmt, count, seed), numbers(fmt, count, seed + 1), strict=True))


def triples(fmt: Format, count: int = 800) -> list[tuple[int, ...]]:
    rng = random.Random(5)
    corner = [tuple(rng.choice(specials(fmt)) for _ in range(3)) for _ in range(count)]
    mixed = list(zip(*[numbers(fmt, count, seed) for seed in (1, 2, 3)], strict=True))
    # Sums that nearly cancel and sums that lie on a rounding boundary.
    close = [(a, b, sf.negate(fmt, sf.multiply(fmt, a, b, RNE))) for a, b, _ in mixed]
    return corner + mixed + close + pushed_ties(fmt)


def pushed_ties(fmt: Format, count: int = 100) -> list[tuple[int, ...]]:
    """Products half way between two numbers, which a tiny addend pushes to one side: what rounds
    in double precision first loses it."""
    rng = random.Random(6)
    one, half = fmt.bias << fmt.fraction_bits, 1 << fmt.fraction_bits - 1
    odd = [one + rng.randrange(half // 2) | 1 for _ in range(count)]
    return [(a, one + half, 1 | rng.getrandbits(1) * fmt.sign) for a in odd]


def extended(fmt: Format, bits: int) -> int:
    """A result as a register holds it: narrow formats are sign-extended."""
    width = fmt.exponent_bits + fmt.fraction_bits + 1
    return bits | (-fmt.sign & 0xFFFFFFFF if bits & fmt.sign and width < 32 else 0)


def check(
    word: int, rows: Sequence[tuple[int, ...]], expected: Callable[..., int], frm: int = 0
) -> None:
    for row, result in zip(rows, apply(word, rows, frm=frm), strict=True):
        want = expected(*row) & 0xFFFFFFFF
        shown = [f"{value:#x}" for value in row]
        assert result == want, f"{word:#010x} {shown}: {result:#x}, expected {want:#x}"


def op(name: str, code: int, mode: int, rs2: int = B) -> int:
    """An OP-FP instruction; bfloat16 is the half encoding with rounding field 5."""
    rounding = 5 if name == "bfloat" else mode
    return r_type(0x53, rounding, code << 2 | FMT_CODE[name], ACC, A, rs2)


BINARY: dict[str, tuple[int, Callable[[Format, int, int, int], int]]] = {
    "add": (0x00, sf.add),
    "sub": (0x01, lambda f, a, b, m: sf.add(f, a, sf.negate(f, b), m)),
    "mul": (0x02, sf.multiply),
    "div": (0x03, sf.divide),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", BINARY)
@pytest.mark.parametrize("name", FORMATS)
def test_binary(name: str, operation: str, mode: int) -> None:
    fmt = FORMATS[name]
    code, expected = BINARY[operation]
    rows = pairs(fmt)
    check(
        op(name, code, DYNAMIC),
        rows,
        lambda a, b: extended(fmt, expected(fmt, a, b, mode)),
        frm=mode,
    )
    if name != "bfloat":
        check(
            op(name, code, mode), rows[::7], lambda a, b: extended(fmt, expected(fmt, a, b, mode))
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_fused(name: str, mode: int) -> None:
    fmt = FORMATS[name]
    rows = triples(fmt)
    rounding = 5 if name == "bfloat" else DYNAMIC
    for opcode, negate_product, negate_addend in [
        (0x43, False, False),
        (0x47, False, True),
        (0x4B, True, False),
        (0x4F, True, True),
    ]:
        word = C << 27 | FMT_CODE[name] << 25 | B << 20 | A << 15 | rounding << 12 | ACC << 7

        def expected(
            a: int, b: int, c: int, np_: bool = negate_product, na: bool = negate_addend
        ) -> int:
            return extended(
                fmt,
                sf.fma(
                    fmt, sf.negate(fmt, a) if np_ else a, b, sf.negate(fmt, c) if na else c, mode
                ),
            )

        check(word | opcode, rows, expected, frm=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_square_root(name: str, mode: int) -> None:
    fmt = FORMATS[name]
    rows = [(a,) for a in specials(fmt) + numbers(fmt, 600, 9)]
    check(
        op(name, 0x0B, DYNAMIC, rs2=0),
        rows,
        lambda a: extended(fmt, sf.square_root(fmt, a, mode)),
        frm=mode,
    )


@pytest.mark.parametrize("name", FORMATS)
def test_compare_and_select(name: str) -> None:
    fmt = FORMATS[name]
    rows = pairs(fmt)
    alt = 4 if name == "bfloat" else 0
    code = FMT_CODE[name]

    def word(f7: int, f3: int) -> int:
        return r_type(0x53, f3 | alt, f7 | code, ACC, A, B)

    mask = fmt.sign - 1
    for f7, f3, expected in [
        (0x50, 0, lambda a, b: sf.less(fmt, a, b, or_equal=True)),
        (0x50, 1, lambda a, b: sf.less(fmt, a, b)),
        (0x50, 2, lambda a, b: sf.less(fmt, a, b, True) and sf.less(fmt, b, a, True)),
        (0x14, 0, lambda a, b: extended(fmt, sf.minimum(fmt, a, b))),
        (0x14, 1, lambda a, b: extended(fmt, sf.minimum(fmt, a, b, largest=True))),
        (0x10, 0, lambda a, b: extended(fmt, a & mask | b & fmt.sign)),
        (0x10, 1, lambda a, b: extended(fmt, a & mask | ~b & fmt.sign)),
        (0x10, 2, lambda a, b: extended(fmt, a ^ b & fmt.sign)),
    ]:
        check(word(f7, f3), rows, expected)
    check(r_type(0x53, 1 | alt, 0x70 | code, ACC, A, 0), rows, lambda a, b: sf.classify(fmt, a))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_integer_conversions(name: str, mode: int) -> None:
    fmt = FORMATS[name]
    rng = random.Random(3)
    floats = [(a,) for a in specials(fmt) + numbers(fmt, 300, 4)]
    floats += [
        (sf.round_to(fmt, Fraction(rng.randrange(-1 << 36, 1 << 36), 8), RNE),) for _ in range(300)
    ]
    integers = [(v,) for v in (0, 1, -1, 2**31 - 1, -(2**31), 2**24 + 1, 2049, 65519, 65520)]
    integers += [(rng.getrandbits(rng.randrange(1, 33)),) for _ in range(400)]
    check(
        op(name, 0x18, DYNAMIC, rs2=0),
        floats,
        lambda a: sf.to_int(fmt, a, -(2**31), 2**31 - 1, mode),
        frm=mode,
    )
    check(
        op(name, 0x18, DYNAMIC, rs2=1),
        floats,
        lambda a: sf.to_int(fmt, a, 0, 2**32 - 1, mode),
        frm=mode,
    )

    def signed(value: int) -> int:
        return (value & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)

    check(
        op(name, 0x1A, DYNAMIC, rs2=0),
        integers,
        lambda a: extended(fmt, sf.round_to(fmt, Fraction(signed(a)), mode)),
        frm=mode,
    )
    check(
        op(name, 0x1A, DYNAMIC, rs2=1),
        integers,
        lambda a: extended(fmt, sf.round_to(fmt, Fraction(a & 0xFFFFFFFF), mode)),
        frm=mode,
    )


@pytest.mark.parametrize("mode", MODES)
def test_conversions_between_formats(mode: int) -> None:
    singles = [(a,) for a in specials(SINGLE) + numbers(SINGLE, 300, 6)]
    singles += [
        (sf.convert(HALF, SINGLE, a, RNE) + d,)
        for a in numbers(HALF, 200, 8)
        for d in (-1, 0, 1, 0x1000)
    ]
    halves = [(a,) for a in specials(HALF) + numbers(HALF, 300, 7)]
    bfloats = [(a,) for a in specials(BFLOAT) + numbers(BFLOAT, 300, 7)]
    for word, rows, source, target in [
        (r_type(0x53, DYNAMIC, 0x22, ACC, A, 0), singles, SINGLE, HALF),
        (r_type(0x53, 5, 0x22, ACC, A, 0), singles, SINGLE, BFLOAT),
        (r_type(0x53, 0, 0x20, ACC, A, 2), halves, HALF, SINGLE),
        (r_type(0x53, 0, 0x20, ACC, A, 6), bfloats, BFLOAT, SINGLE),
        (r_type(0x53, DYNAMIC, 0x22, ACC, A, 6), bfloats, BFLOAT, HALF),
        (r_type(0x53, 5, 0x22, ACC, A, 2), halves, HALF, BFLOAT),
    ]:
        rows = [(a & (2 * source.sign - 1),) for (a,) in rows]
        check(
            word,
            rows,
            lambda a, s=source, t=target: extended(t, sf.convert(s, t, a, mode)),
            frm=mode,
        )


def lanes(fmt: Format, count: int = 500) -> list[tuple[int, ...]]:
    rng = random.Random(11)
    corner = specials(fmt)

    def vector() -> int:
        low, high = (
            rng.choice(corner) if rng.random() < 0.4 else rng.choice(pool) for _ in range(2)
        )
        return high << 16 | low

    pool = numbers(fmt, 4 * count, 12)
    return [(vector(), vector(), vector()) for _ in range(count)]


VECTOR: dict[str, tuple[int, Callable[..., int]]] = {
    "vfadd": (0x41, lambda f, a, b, c, m: sf.add(f, a, b, m)),
    "vfsub": (0x42, lambda f, a, b, c, m: sf.add(f, a, sf.negate(f, b), m)),
    "vfmul": (0x43, lambda f, a, b, c, m: sf.multiply(f, a, b, m)),
    "vfdiv": (0x44, lambda f, a, b, c, m: sf.divide(f, a, b, m)),
    "vfmin": (0x45, lambda f, a, b, c, m: sf.minimum(f, a, b)),
    "vfmax": (0x46, lambda f, a, b, c, m: sf.minimum(f, a, b, largest=True)),
    "vfmac": (0x48, lambda f, a, b, c, m: sf.fma(f, a, b, c, m)),
    "vfmre": (0x49, lambda f, a, b, c, m: sf.fma(f, a, b, sf.negate(f, c), m)),
    "vfsgnj": (0x4D, lambda f, a, b, c, m: a & 0x7FFF | b & 0x8000),
    "vfsgnjn": (0x4E, lambda f, a, b, c, m: a & 0x7FFF | ~b & 0x8000),
    "vfsgnjx": (0x4F, lambda f, a, b, c, m: a ^ b & 0x8000),
    "vfeq": (0x50, lambda f, a, b, c, m: sf.less(f, a, b, True) and sf.less(f, b, a, True)),
    "vflt": (0x52, lambda f, a, b, c, m: sf.less(f, a, b)),
    "vfge": (0x53, lambda f, a, b, c, m: sf.less(f, b, a, True)),
    "vfle": (0x54, lambda f, a, b, c, m: sf.less(f, a, b, True)),
    "vfgt": (0x55, lambda f, a, b, c, m: sf.less(f, b, a)),
}


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("name", ["half", "bfloat"])
@pytest.mark.parametrize("operation", VECTOR)
def test_packed(operation: str, name: str, repeat: bool) -> None:
    fmt = FORMATS[name]
    f7, expected = VECTOR[operation]
    f3 = (2 if name == "half" else 1) | (4 if repeat else 0)
    for mode in (RNE, sf.RUP):

        def both(a: int, b: int, c: int, m: int = mode) -> int:
            second = b & 0xFFFF if repeat else b >> 16
            high = expected(fmt, a >> 16, second, c >> 16, m)
            return int(high) << 16 | int(expected(fmt, a & 0xFFFF, b & 0xFFFF, c & 0xFFFF, m))

        check(r_type(0x33, f3, f7, ACC, A, B), lanes(fmt), both, frm=mode)


@pytest.mark.parametrize("name", ["half", "bfloat"])
def test_packed_one_operand(name: str) -> None:
    fmt = FORMATS[name]
    f3 = 2 if name == "half" else 1

    def each(function: Callable[[int], int]) -> Callable[..., int]:
        return lambda a, b, c: (function(a >> 16) & 0xFFFF) << 16 | function(a & 0xFFFF) & 0xFFFF

    def signed(value: int) -> int:
        return (value ^ 0x8000) - 0x8000

    rows = lanes(fmt)
    for f7, rs2, variant, function in [
        (0x47, 0, 0, lambda a: sf.square_root(fmt, a, RNE)),
        (0x4C, 2, 0, lambda a: sf.to_int(fmt, a, -(2**15), 2**15 - 1, RNE)),
        (0x4C, 2, 4, lambda a: sf.to_int(fmt, a, 0, 2**16 - 1, RNE)),
        (0x4C, 3, 0, lambda a: sf.round_to(fmt, Fraction(signed(a)), RNE)),
        (0x4C, 3, 4, lambda a: sf.round_to(fmt, Fraction(a), RNE)),
    ]:
        check(r_type(0x33, f3 | variant, f7, ACC, A, rs2), rows, each(function))


@pytest.mark.parametrize("name", ["half", "bfloat"])
def test_dot_products(name: str) -> None:
    """Single-precision accumulation: each of the two sums is rounded once."""
    fmt = FORMATS[name]
    rows = [(a, b, c) for (a, b, _), c in zip(lanes(fmt), numbers(SINGLE, 500, 3), strict=True)]

    def wide(bits: int) -> int:
        return sf.convert(fmt, SINGLE, bits, RNE)

    def dot(a: int, b: int, c: int) -> int:
        low = sf.multiply(SINGLE, wide(a & 0xFFFF), wide(b & 0xFFFF), RNE)
        both = sf.fma(SINGLE, wide(a >> 16), wide(b >> 16), low, RNE)
        return sf.add(SINGLE, c, both, RNE)

    def dot_repeat(a: int, b: int, c: int) -> int:
        return dot(a, (b & 0xFFFF) * 0x10001, c)

    code = 0 if name == "half" else 1
    check(r_type(0x33, code, 0x4B, ACC, A, B), rows, dot)
    check(r_type(0x33, code | 4, 0x4B, ACC, A, B), rows, dot_repeat)


def test_pack_from_single() -> None:
    rows = pairs(SINGLE)
    for fmt, f3 in ((HALF, 2), (BFLOAT, 1)):
        check(
            r_type(0x33, f3, 0x58, ACC, A, B),
            rows,
            lambda a, b, f=fmt: sf.convert(SINGLE, f, b, RNE) << 16 | sf.convert(SINGLE, f, a, RNE),
        )


def test_numpy_agrees() -> None:
    """A second oracle for the case that matters most: single precision to nearest."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 2**32, 2000, dtype=np.uint32) for _ in range(2))
    x, y = a.view(np.float32), b.view(np.float32)
    with np.errstate(all="ignore"):
        for code, result in ((0x00, x + y), (0x01, x - y), (0x02, x * y), (0x03, x / y)):
            bits = np.where(np.isnan(result), np.uint32(0x7FC00000), result.view(np.uint32))
            found = apply(
                op("single", code, DYNAMIC), [(int(p), int(q)) for p, q in zip(a, b, strict=True)]
            )
            assert found == bits.tolist()


def test_rounding_mode_that_does_not_exist_is_undefined() -> None:
    with pytest.raises(AssertionError, match="status 2, fault ILLEGAL"):
        apply(op("single", 0, 5), [(0, 0)])
    with pytest.raises(AssertionError, match="status 2, fault ILLEGAL"):
        apply(op("single", 0, DYNAMIC), [(0, 0)], frm=6)
