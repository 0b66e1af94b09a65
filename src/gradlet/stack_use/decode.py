"""Instructions of RISC-V and Xpulpv2, as far as they matter for sp and the way of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RA, SP = 1, 2
UNIMPLEMENTED = 0xC0001073


@dataclass(frozen=True)
class Step:
    """What an instruction means for the way through the code and for sp.

    kind: branch, jump, call, loop or stop; alloca where sp less something unknown is computed; else
    empty. target: where to, if it says so itself, else `rs` plus `number` tells. rd: the register
    that it sets, to `rs` plus `number` if there is one, else to something; a call leaves its way
    back there.
    below: bytes under sp from where on it loads or stores, if it does so by sp.
    """

    size: int
    kind: str = ""
    rd: int = 0
    rs: int = 0
    number: int | None = None
    target: int | None = None
    below: int | None = None


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def _gathered(word: int, places: Sequence[tuple[int, int]]) -> int:
    """The signed number whose bits lie scattered over an instruction: (place, bit) of each."""
    value = sum((word >> place & 1) << bit for place, bit in places)
    return _signed(value, 1 + max(bit for _, bit in places))


def _run(high: int, low: int, bit: int) -> list[tuple[int, int]]:
    return [(low + i, bit + i) for i in range(high - low + 1)]


C_JUMP = (*[(12, 11), (11, 4), (10, 9), (9, 8), (8, 10), (7, 6), (6, 7)], *_run(5, 3, 1), (2, 5))
C_BRANCH = ((12, 8), (11, 4), (10, 3), (6, 7), (5, 6), (4, 2), (3, 1), (2, 5))
C_SP = ((12, 9), (6, 4), (5, 6), (4, 8), (3, 7), (2, 5))
C_SMALL = ((12, 5), *_run(6, 2, 0))
BRANCH = ((31, 12), (7, 11), *_run(30, 25, 5), *_run(11, 8, 1))
JUMP = ((31, 20), *_run(19, 12, 12), (20, 11), *_run(30, 21, 1))
STORE = (*_run(31, 25, 5), *_run(11, 7, 0))


def decode(word: int, at: int) -> Step:
    """An instruction of RV32IMC_Zicsr_Zfinx or Xpulpv2 at this address."""
    return _decode_half(word, at) if word & 3 != 3 else _decode_word(word, at)


def _decode_half(word: int, at: int) -> Step:
    rd = word >> 7 & 31
    match word & 3, word >> 13:
        case 0, 0b000 if word == 0:
            return Step(2, "stop")
        case 0, 0b000 | 0b010:  # c.addi4spn, c.lw
            return Step(2, rd=8 + (word >> 2 & 7))
        case 1, 0b000:  # c.addi
            return Step(2, rd=rd, rs=rd, number=_gathered(word, C_SMALL))
        case 1, 0b001:  # c.jal
            return Step(2, "call", rd=RA, target=at + _gathered(word, C_JUMP))
        case 1, 0b010:  # c.li
            return Step(2, rd=rd, number=_gathered(word, C_SMALL))
        case 1, 0b011 if rd == SP:  # c.addi16sp
            return Step(2, rd=SP, rs=SP, number=_gathered(word, C_SP))
        case 1, 0b011:  # c.lui
            return Step(2, rd=rd, number=_gathered(word, C_SMALL) << 12)
        case 1, 0b100:  # arithmetic
            return Step(2, rd=8 + (word >> 7 & 7))
        case 1, 0b101:  # c.j
            return Step(2, "jump", target=at + _gathered(word, C_JUMP))
        case 1, 0b110 | 0b111:  # c.beqz, c.bnez
            return Step(2, "branch", target=at + _gathered(word, C_BRANCH))
        case 2, 0b000:  # c.slli
            return Step(2, rd=rd)
        case 2, 0b010:  # c.lwsp
            return Step(2, rd=rd, below=0)
        case 2, 0b110:  # c.swsp
            return Step(2, below=0)
        case 2, 0b100:
            return _decode_register_move(word >> 12 & 1, rd, word >> 2 & 31)
        case _:  # stores
            return Step(2)


def _decode_register_move(adds: int, rd: int, rs: int) -> Step:
    if rs:  # c.add, c.mv
        return Step(2, rd=rd, rs=rd) if adds else Step(2, rd=rd, rs=rs, number=0)
    if rd == 0:  # c.ebreak
        return Step(2, "stop")
    return Step(2, "call", rd=RA, rs=rd, number=0) if adds else Step(2, "jump", rs=rd, number=0)


def _decode_word(word: int, at: int) -> Step:
    rd, code, rs = word >> 7 & 31, word >> 12 & 7, word >> 15 & 31
    match word & 127:
        case 0x37:  # lui
            return Step(4, rd=rd, number=word & ~4095)
        case 0x17:  # auipc
            return Step(4, rd=rd, number=at + (word & ~4095))
        case 0x6F:  # jal
            return Step(4, "call" if rd else "jump", rd=rd, target=at + _gathered(word, JUMP))
        case 0x67:  # jalr
            kind = "call" if rd else "jump"
            return Step(4, kind, rd=rd, rs=rs, number=_signed(word >> 20, 12))
        case 0x63:
            return Step(4, "branch", target=at + _gathered(word, BRANCH))
        case 0x13 | 0x33:
            return _decode_arithmetic(word, rd, code, rs)
        case 0x03 | 0x23 | 0x0B | 0x2B:
            return _decode_access(word, rd, code, rs)
        case 0x7B:  # hardware loops: start, end, both at once
            target = at + 2 * (rs if code == 5 else word >> 20)
            return Step(4, "loop", rd=rd, rs=code, target=target)
        case 0x73 if word == UNIMPLEMENTED:
            return Step(4, "stop")
        case _:
            return Step(4, rd=rd)


def _decode_arithmetic(word: int, rd: int, code: int, rs: int) -> Step:
    immediate = word & 127 == 0x13
    aligns = immediate and code == 7  # andi
    subtracts = not immediate and code == 0 and word >> 25 == 0x20
    if rs == SP and (aligns or subtracts):
        return Step(4, "alloca", rd=rd)
    adds = immediate and code == 0
    return Step(4, rd=rd, rs=rs, number=_signed(word >> 20, 12) if adds else None)


def _decode_access(word: int, rd: int, code: int, rs: int) -> Step:
    by_sp = rs == SP
    match word & 127:
        case 0x03:  # loads; those of codes 3, 6 and 7 take their offset from a register
            plain = by_sp and code not in (3, 6, 7)
            return Step(4, rd=rd, below=-_signed(word >> 20, 12) if plain else None)
        case 0x23:  # stores
            return Step(4, below=-_gathered(word, STORE) if by_sp and code < 3 else None)
        case 0x0B:  # loads that move their pointer on
            return Step(4, rd=SP if by_sp else rd)
        case _:  # stores that do
            return Step(4, rd=SP if by_sp else 0)
