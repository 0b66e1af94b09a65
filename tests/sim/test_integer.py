"""RV32IM and Xpulpv2: the result of every instruction against a definition in Python."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from tests.sim.support import ACC, A, B, apply, i_type, r_type

MASK = 0xFFFFFFFF
CORNERS = [
    0,
    1,
    2,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    MASK,
    MASK - 1,
    0x8000,
    0x7FFF,
    0xFFFF,
    0x80,
    0x7F,
    0xFF,
    0x00FF00FF,
    0x80008000,
    0x7FFF8000,
    0x01020304,
    31,
    32,
    33,
]


def signed(value: int, width: int = 32) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> width - 1 else value


def rows(count: int = 300, seed: int = 1) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    corner = [(a, b, rng.choice(CORNERS)) for a, b in itertools.product(CORNERS, repeat=2)]
    return corner + [tuple(rng.getrandbits(32) for _ in range(3)) for _ in range(count)]


def check(word: int, expected: Callable[..., int]) -> None:
    table = rows()
    for row, result in zip(table, apply(word, table), strict=True):
        want = expected(*row) & MASK
        assert result == want, f"{word:#x} {[hex(v) for v in row]}: {result:#x}, not {want:#x}"


def quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    sign = -1 if (a < 0) != (b < 0) else 1
    return sign * (abs(a) // abs(b))


def remainder(a: int, b: int) -> int:
    return a if b == 0 else a - b * quotient(a, b)


REGISTER: dict[str, tuple[int, int, Callable[[int, int, int], int]]] = {
    "add": (0x00, 0, lambda a, b, c: a + b),
    "sub": (0x20, 0, lambda a, b, c: a - b),
    "sll": (0x00, 1, lambda a, b, c: a << (b & 31)),
    "slt": (0x00, 2, lambda a, b, c: signed(a) < signed(b)),
    "sltu": (0x00, 3, lambda a, b, c: a < b),
    "xor": (0x00, 4, lambda a, b, c: a ^ b),
    "srl": (0x00, 5, lambda a, b, c: a >> (b & 31)),
    "sra": (0x20, 5, lambda a, b, c: signed(a) >> (b & 31)),
    "or": (0x00, 6, lambda a, b, c: a | b),
    "and": (0x00, 7, lambda a, b, c: a & b),
    "mul": (0x01, 0, lambda a, b, c: a * b),
    "mulh": (0x01, 1, lambda a, b, c: signed(a) * signed(b) >> 32),
    "mulhsu": (0x01, 2, lambda a, b, c: signed(a) * b >> 32),
    "mulhu": (0x01, 3, lambda a, b, c: a * b >> 32),
    "div": (0x01, 4, lambda a, b, c: quotient(signed(a), signed(b))),
    "divu": (0x01, 5, lambda a, b, c: quotient(a, b)),
    "rem": (0x01, 6, lambda a, b, c: remainder(signed(a), signed(b))),
    "remu": (0x01, 7, lambda a, b, c: remainder(a, b)),
    "p.avgu": (0x02, 1, lambda a, b, c: (a + b & MASK) >> 1),
    "p.slet": (0x02, 2, lambda a, b, c: signed(a) <= signed(b)),
    "p.sletu": (0x02, 3, lambda a, b, c: a <= b),
    "p.min": (0x02, 4, lambda a, b, c: min(signed(a), signed(b))),
    "p.minu": (0x02, 5, lambda a, b, c: min(a, b)),
    "p.max": (0x02, 6, lambda a, b, c: max(signed(a), signed(b))),
    "p.maxu": (0x02, 7, lambda a, b, c: max(a, b)),
    "p.ror": (0x04, 5, lambda a, b, c: a >> (b & 31) | a << (32 - (b & 31))),
    "p.clip": (0x0A, 5, lambda a, b, c: clip(signed(a), -signed(b) - 1, signed(b))),
    "p.mac": (0x21, 0, lambda a, b, c: c + a * b),
    "p.msu": (0x21, 1, lambda a, b, c: c - a * b),
    "p.extract": (0x40, 0, lambda a, b, c: extract(a, *field(b))),
    "p.extractu": (0x40, 1, lambda a, b, c: (a & mask(*field(b))) >> field(b)[1]),
    "p.insert": (
        0x40,
        2,
        lambda a, b, c: c & ~mask(*field(b)) | a << field(b)[1] & mask(*field(b)),
    ),
    "p.bclr": (0x40, 3, lambda a, b, c: a & ~mask(*field(b))),
    "p.bset": (0x40, 4, lambda a, b, c: a | mask(*field(b))),
}


def clip(value: int, low: int, high: int) -> int:
    return high if value > high else max(value, low)


def field(b: int) -> tuple[int, int]:
    return (b >> 5 & 31) + 1, b & 31


def mask(width: int, shift: int) -> int:
    return ((1 << width) - 1) << shift & MASK


def extract(a: int, width: int, shift: int) -> int:
    width = min(width, 32 - shift)
    return signed(a >> shift, width)


@pytest.mark.parametrize("name", REGISTER)
def test_register(name: str) -> None:
    f7, f3, expected = REGISTER[name]
    check(r_type(0x33, f3, f7, ACC, A, B), expected)


def leading_sign_bits(a: int) -> int:
    if a == 0:
        return 0
    top = a >> 31
    count = 0
    while count < 31 and a >> (30 - count) & 1 == top:
        count += 1
    return count


UNARY: dict[str, tuple[int, int, Callable[[int], int]]] = {
    "p.abs": (0x02, 0, lambda a: abs(signed(a))),
    "p.ff1": (0x08, 0, lambda a: (a & -a).bit_length() - 1 if a else 32),
    "p.fl1": (0x08, 1, lambda a: a.bit_length() - 1 if a else 32),
    "p.clb": (0x08, 2, leading_sign_bits),
    "p.cnt": (0x08, 3, lambda a: a.bit_count()),
    "p.exths": (0x08, 4, lambda a: signed(a, 16)),
    "p.exthz": (0x08, 5, lambda a: a & 0xFFFF),
    "p.extbs": (0x08, 6, lambda a: signed(a, 8)),
    "p.extbz": (0x08, 7, lambda a: a & 0xFF),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    f7, f3, expected = UNARY[name]
    check(r_type(0x33, f3, f7, ACC, A, 0), lambda a, b, c: expected(a))


@pytest.mark.parametrize("imm", [0, 1, -1, 2047, -2048, 85])
def test_immediate(imm: int) -> None:
    for f3, expected in [
        (0, lambda a: a + imm),
        (2, lambda a: signed(a) < imm),
        (3, lambda a: a < imm & MASK),
        (4, lambda a: a ^ imm),
        (6, lambda a: a | imm),
        (7, lambda a: a & imm),
    ]:
        check(i_type(0x13, f3, ACC, A, imm), lambda a, b, c, e=expected: e(a))


@pytest.mark.parametrize("by", [0, 1, 15, 31])
def test_immediate_shifts(by: int) -> None:
    check(i_type(0x13, 1, ACC, A, by), lambda a, b, c: a << by)
    check(i_type(0x13, 5, ACC, A, by), lambda a, b, c: a >> by)
    check(i_type(0x13, 5, ACC, A, 0x400 | by), lambda a, b, c: signed(a) >> by)


@pytest.mark.parametrize(("width", "shift"), [(1, 0), (8, 4), (32, 0), (16, 31), (5, 27)])
def test_bit_fields(width: int, shift: int) -> None:
    f7 = 0x60 | width - 1
    bits = mask(width, shift)
    for f3, expected in [
        (0, lambda a, b, c: extract(a, width, shift)),
        (1, lambda a, b, c: (a & bits) >> shift),
        (2, lambda a, b, c: c & ~bits | a << shift & bits),
        (3, lambda a, b, c: a & ~bits),
        (4, lambda a, b, c: a | bits),
    ]:
        check(r_type(0x33, f3, f7, ACC, A, shift), expected)


@pytest.mark.parametrize("width", [0, 1, 8, 16, 31])
def test_clip_immediate(width: int) -> None:
    top = 1 << max(width - 1, 0)
    check(r_type(0x33, 1, 0x0A, ACC, A, width), lambda a, b, c: clip(signed(a), -top, top - 1))
    check(r_type(0x33, 2, 0x0A, ACC, A, width), lambda a, b, c: clip(signed(a), 0, top - 1))


@pytest.mark.parametrize("by", [0, 1, 7, 31])
@pytest.mark.parametrize("rounded", [False, True])
def test_normalised(by: int, rounded: bool) -> None:
    """Results shifted right, rounded or not; products of halves, signed or not, low or high."""
    half = 1 << by - 1 if rounded and by else 0
    high = 4 if rounded else 0

    def shifted(value: int, is_signed: bool) -> int:
        value = value + half & MASK
        return (signed(value) if is_signed else value) >> by

    for top in range(4):
        is_signed, shift = bool(top & 2), 16 * (top & 1)

        def product(a: int, b: int, s: bool = is_signed, at: int = shift) -> int:
            a, b = a >> at & 0xFFFF, b >> at & 0xFFFF
            return signed(a, 16) * signed(b, 16) if s else a * b

        f7 = top << 5 | by
        check(
            r_type(0x5B, 0 | high, f7, ACC, A, B),
            lambda a, b, c, p=product, s=is_signed: shifted(p(a, b), s),
        )
        check(
            r_type(0x5B, 1 | high, f7, ACC, A, B),
            lambda a, b, c, p=product, s=is_signed: shifted(c + p(a, b), s),
        )
    for unsigned in (0, 1):
        f7 = unsigned << 6 | by
        check(
            r_type(0x5B, 2 | high, f7, ACC, A, B), lambda a, b, c, u=unsigned: shifted(a + b, not u)
        )
        check(
            r_type(0x5B, 3 | high, f7, ACC, A, B), lambda a, b, c, u=unsigned: shifted(a - b, not u)
        )


@pytest.mark.parametrize("rounded", [False, True])
def test_normalised_by_register(rounded: bool) -> None:
    high = 4 if rounded else 0

    def shifted(value: int, by: int, is_signed: bool) -> int:
        value = value + (1 << by - 1 if rounded and by else 0) & MASK
        return (signed(value) if is_signed else value) >> by

    for unsigned in (0, 1):
        f7 = unsigned << 6 | 0x20
        check(
            r_type(0x5B, 2 | high, f7, ACC, A, B),
            lambda a, b, c, u=unsigned: shifted(c + a, b & 31, not u),
        )
        check(
            r_type(0x5B, 3 | high, f7, ACC, A, B),
            lambda a, b, c, u=unsigned: shifted(c - a, b & 31, not u),
        )


# ---- packed integers


def lanes(value: int, width: int, is_signed: bool) -> list[int]:
    parts = [value >> at & (1 << width) - 1 for at in range(0, 32, width)]
    return [signed(part, width) for part in parts] if is_signed else parts


def joined(parts: list[int], width: int) -> int:
    return sum((part & (1 << width) - 1) << i * width for i, part in enumerate(parts))


LANE_OPS: dict[str, tuple[int, bool, Callable[[int, int, int], int]]] = {
    "add": (0x00, True, lambda a, b, w: a + b),
    "sub": (0x02, True, lambda a, b, w: a - b),
    "avg": (0x04, True, lambda a, b, w: signed(a + b, w) >> 1),
    "avgu": (0x06, False, lambda a, b, w: (a + b & (1 << w) - 1) >> 1),
    "min": (0x08, True, lambda a, b, w: min(a, b)),
    "minu": (0x0A, False, lambda a, b, w: min(a, b)),
    "max": (0x0C, True, lambda a, b, w: max(a, b)),
    "maxu": (0x0E, False, lambda a, b, w: max(a, b)),
    "srl": (0x10, False, lambda a, b, w: a >> (b & w - 1)),
    "sra": (0x12, True, lambda a, b, w: a >> (b & w - 1)),
    "sll": (0x14, False, lambda a, b, w: a << (b & w - 1)),
    "or": (0x16, True, lambda a, b, w: a | b),
    "xor": (0x18, True, lambda a, b, w: a ^ b),
    "and": (0x1A, True, lambda a, b, w: a & b),
    "cmpeq": (0x01, True, lambda a, b, w: -(a == b)),
    "cmpne": (0x03, True, lambda a, b, w: -(a != b)),
    "cmpgt": (0x05, True, lambda a, b, w: -(a > b)),
    "cmpge": (0x07, True, lambda a, b, w: -(a >= b)),
    "cmplt": (0x09, True, lambda a, b, w: -(a < b)),
    "cmple": (0x0B, True, lambda a, b, w: -(a <= b)),
    "cmpgtu": (0x0D, False, lambda a, b, w: -(a > b)),
    "cmpgeu": (0x0F, False, lambda a, b, w: -(a >= b)),
    "cmpltu": (0x11, False, lambda a, b, w: -(a < b)),
    "cmpleu": (0x13, False, lambda a, b, w: -(a <= b)),
}


def forms(op: int, width: int, imm: int) -> list[tuple[int, Callable[[int, bool], list[int]]]]:
    """Vector, scalar and immediate: the instruction, and its second operand as lanes."""
    byte, count = int(width == 8), 32 // width
    sci = r_type(0x57, 6 | byte, op << 1 | imm & 1, ACC, A, imm >> 1 & 31)
    return [
        (r_type(0x57, byte, op << 1, ACC, A, B), lambda b, s: lanes(b, width, s)),
        (r_type(0x57, 4 | byte, op << 1, ACC, A, B), lambda b, s: [lanes(b, width, s)[0]] * count),
        (sci, lambda b, s: [signed(imm, 6) if s else imm] * count),
    ]


@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize("name", LANE_OPS)
def test_lanes(name: str, width: int) -> None:
    op, is_signed, function = LANE_OPS[name]
    for imm in (5, 0x3F, 0x20):
        for word, second in forms(op, width, imm):

            def expected(
                a: int, b: int, c: int, of: Callable[[int, bool], list[int]] = second
            ) -> int:
                return joined(
                    [
                        function(x, y, width)
                        for x, y in zip(lanes(a, width, is_signed), of(b, is_signed), strict=True)
                    ],
                    width,
                )

            check(word, expected)


@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize(
    ("op", "first_signed", "second_signed"),
    [(0x20, False, False), (0x22, False, True), (0x26, True, True)],
)
def test_dot_products(op: int, first_signed: bool, second_signed: bool, width: int) -> None:
    for accumulate in (False, True):
        code = op + 8 if accumulate else op
        for word, second in forms(code, width, 0x2B):

            def expected(
                a: int,
                b: int,
                c: int,
                of: Callable[[int, bool], list[int]] = second,
                acc: bool = accumulate,
            ) -> int:
                products = zip(lanes(a, width, first_signed), of(b, second_signed), strict=True)
                return (c if acc else 0) + sum(x * y for x, y in products)

            check(word, expected)


def test_moving_lanes() -> None:
    def simd(op: int, f3: int, rs2: int = B, low: int = 0) -> int:
        return r_type(0x57, f3, op << 1 | low, ACC, A, rs2)

    def half(v: int, i: int) -> int:
        return v >> 16 * (i & 1) & 0xFFFF

    def byte(v: int, i: int) -> int:
        return v >> 8 * (i & 3) & 0xFF

    check(simd(0x34, 0), lambda a, b, c: a << 16 | b & 0xFFFF)
    check(simd(0x36, 1), lambda a, b, c: (a & 255) << 24 | (b & 255) << 16 | c & 0xFFFF)
    check(simd(0x38, 1), lambda a, b, c: (a & 255) << 8 | b & 255 | c & 0xFFFF0000)
    check(simd(0x1C, 0, 0), lambda a, b, c: joined([abs(x) for x in lanes(a, 16, True)], 16))
    check(simd(0x1C, 1, 0), lambda a, b, c: joined([abs(x) for x in lanes(a, 8, True)], 8))
    check(simd(0x30, 0), lambda a, b, c: joined([half(a, half(b, i)) for i in range(2)], 16))
    check(simd(0x30, 1), lambda a, b, c: joined([byte(a, byte(b, i)) for i in range(4)], 8))
    check(
        simd(0x32, 0),
        lambda a, b, c: joined(
            [half(a if half(b, i) & 2 else c, half(b, i)) for i in range(2)], 16
        ),
    )
    check(
        simd(0x32, 1),
        lambda a, b, c: joined([byte(a if byte(b, i) & 4 else c, byte(b, i)) for i in range(4)], 8),
    )
    for top, op in enumerate((0x30, 0x3A, 0x3C, 0x3E)):
        imm = 0b011011
        check(
            simd(op, 7, imm >> 1, imm & 1),
            lambda a, b, c, t=top, m=imm: joined(
                [byte(a, m), byte(a, m >> 2), byte(a, m >> 4), byte(a, t)], 8
            ),
        )
    for i in range(4):
        check(simd(0x1E, 7, i >> 1, i & 1), lambda a, b, c, i=i: signed(byte(a, i), 8))
        check(simd(0x24, 7, i >> 1, i & 1), lambda a, b, c, i=i: byte(a, i))
        check(
            simd(0x2C, 7, i >> 1, i & 1),
            lambda a, b, c, i=i: c & ~(255 << 8 * i) | (a & 255) << 8 * i,
        )
    for i in range(2):
        check(simd(0x1E, 6, 0, i), lambda a, b, c, i=i: signed(half(a, i), 16))
        check(simd(0x24, 6, 0, i), lambda a, b, c, i=i: half(a, i))
        check(
            simd(0x2C, 6, 0, i),
            lambda a, b, c, i=i: c & ~(0xFFFF << 16 * i) | (a & 0xFFFF) << 16 * i,
        )
