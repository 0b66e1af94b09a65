"""How much stack the cores of a linked program need: an upper bound, found in its machine code.

Every function is walked along its jumps, with the distance of sp from where it was on entry; what
it calls is added. A call through a pointer may reach every function whose address is taken, in the
code or in a table; one that is marked (gl_call() in gl.h) only those of them that call nothing.
Recursion, and stack that grows in a loop, have no bound: StackError.

Needs nothing but Python, since every project for a device has a copy: `make device` runs it.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

START, TEAM, RESERVED, MARK = "_start", "gl_team", "gl_stack", "gl_call_site"
GUARD = 16
"""Bytes at the end of each stack that nobody may touch: the program looks at them at times."""
ALIGN = 16
RA, SP = 1, 2
FEW = 4
DEEPEST, WORD, UNIMPLEMENTED = 1 << 20, 1 << 32, 0xC0001073
TABLES = (".rodata", ".data")
NUMBERS = "golden_"


class StackError(Exception):
    """There is no bound, or it is more than what is reserved."""


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    address: int
    offset: int
    size: int
    is_code: bool
    link: int


class Program:
    """Sections and symbols of an ELF file for RV32."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF" or data[4] != 1:
            raise StackError("this is not a 32-bit ELF file")
        self.data = data
        (table,) = struct.unpack_from("<I", data, 32)
        size, count = struct.unpack_from("<HH", data, 46)
        (names,) = struct.unpack_from("<H", data, 50)
        (self._names,) = struct.unpack_from("<I", data, table + size * names + 16)
        self.sections = [self._section(table + size * number) for number in range(count)]
        self.code = [s for s in self.sections if s.is_code and s.kind == 1]
        self.functions: dict[int, str] = {}
        self.labels: dict[str, int] = {}
        self.marks: set[int] = set()
        self.numbers: list[range] = []
        for section in self.sections:
            if section.kind == 2:
                self._read_symbols(section)
        self.named = frozenset(filter(self.is_code, self.labels.values()))

    def _section(self, at: int) -> Section:
        name, kind, flags, address, offset, size, link = struct.unpack_from("<7I", self.data, at)
        return Section(
            self._text(self._names + name), kind, address, offset, size, bool(flags & 4), link
        )

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode(errors="replace")

    def _read_symbols(self, section: Section) -> None:
        strings = self.sections[section.link].offset
        for at in range(section.offset, section.offset + section.size, 16):
            name_at, value, size, info, _, index = struct.unpack_from("<IIIBBH", self.data, at)
            name = self._text(strings + name_at)
            if not index or not name or name.startswith(("$", ".L")):
                continue
            if name.startswith(MARK):
                self.marks.add(value)
            elif info & 15 == 2:
                self.functions[value] = name
            elif name.startswith(NUMBERS):
                self.numbers.append(range(value, value + size))
            self.labels.setdefault(name, value)

    def address(self, name: str) -> int:
        if name not in self.labels:
            raise StackError(f"the program has no {name}")
        return self.labels[name]

    def is_code(self, address: int) -> bool:
        return any(s.address <= address < s.address + s.size for s in self.code)

    def word(self, address: int) -> int:
        """Two or four bytes of code, as long as the instruction is."""
        for section in self.code:
            place = address - section.address
            if 0 <= place <= section.size - 2:
                (half,) = struct.unpack_from("<H", self.data, section.offset + place)
                if half & 3 != 3 or place > section.size - 4:
                    return int(half)
                return int(struct.unpack_from("<I", self.data, section.offset + place)[0])
        raise StackError(f"{self.where(address)}: no code is there")

    def where(self, address: int) -> str:
        before = [start for start in self.functions if start <= address]
        start = max(before, default=0)
        return f"{self.functions.get(start, 'address 0')}+{address - start:#x}"

    def pointers(self) -> set[int]:
        """Words of tables that are functions. Weights and golden data are no tables."""
        found = set()
        for section in self.sections:
            if section.kind == 1 and section.name in TABLES:
                first = section.address + (-section.address) % 4
                for at in range(first, section.address + section.size - 3, 4):
                    (word,) = struct.unpack_from(
                        "<I", self.data, section.offset + at - section.address
                    )
                    if word in self.named and not any(at in numbers for numbers in self.numbers):
                        found.add(word)
        return found


@dataclass(frozen=True)
class Step:
    """What an instruction means for the way through the code and for sp.

    kind: branch, jump, call, return, loop or stop; empty for one that goes on to the next. target:
    where to, if it says so itself, else `rs` plus `number` tells. rd: the register that it sets,
    to `rs` plus `number` if there is one, else to something; a call leaves its way back there.
    below: bytes under sp that it touches.
    """

    size: int
    kind: str = ""
    rd: int = 0
    rs: int = 0
    number: int | None = None
    target: int | None = None
    below: int = 0


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
        case 2, 0b000 | 0b010:  # c.slli, c.lwsp
            return Step(2, rd=rd)
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
    rd, code, rs, immediate = word >> 7 & 31, word >> 12 & 7, word >> 15 & 31, _signed(word >> 20, 12)
    match word & 127:
        case 0x37:  # lui
            return Step(4, rd=rd, number=word & ~4095)
        case 0x17:  # auipc
            return Step(4, rd=rd, number=at + (word & ~4095))
        case 0x6F:  # jal
            return Step(4, "call" if rd else "jump", rd=rd, target=at + _gathered(word, JUMP))
        case 0x67:  # jalr
            return Step(4, "call" if rd else "jump", rd=rd, rs=rs, number=immediate)
        case 0x63:
            return Step(4, "branch", target=at + _gathered(word, BRANCH))
        case 0x13:  # addi and others
            return Step(4, rd=rd, rs=rs, number=None if code else immediate)
        case 0x03:  # loads
            return Step(4, rd=rd, below=-immediate if rs == SP and code not in (3, 6, 7) else 0)
        case 0x23:  # stores
            return Step(4, below=-_gathered(word, STORE) if rs == SP and code < 3 else 0)
        case 0x0B:  # loads that move their pointer on
            return Step(4, rd=SP if rs == SP else rd)
        case 0x2B:  # stores that do
            return Step(4, rd=SP if rs == SP else 0)
        case 0x7B:  # hardware loops: start, end, both at once
            ahead = at + 2 * (rs if code == 5 else word >> 20)
            return Step(4, "loop", rd=rd, rs=code, target=ahead)
        case 0x73 if word == UNIMPLEMENTED:
            return Step(4, "stop")
        case 0x33:
            return Step(4, rd=rd, rs=rs)
        case _:
            return Step(4, rd=rd)


@dataclass(frozen=True)
class Place:
    """What is known where an instruction begins. depth: bytes on the stack of this function.

    sp: "stack"; "none" before start-up has set it; "lent" while a kernel keeps something else
    there, up to the end of the function, since it comes back from anywhere: what is then taken
    from it counts, what is given back does not. known: registers that hold constants, one of few.
    """

    depth: int
    sp: str
    known: Mapping[int, frozenset[int]]

    def met(self, other: Place) -> Place:
        """What holds by either way."""
        known = {
            register: values | other.known[register]
            for register, values in self.known.items()
            if register in other.known and len(values | other.known[register]) <= FEW
        }
        same = self.sp == other.sp
        return Place(max(self.depth, other.depth), self.sp if same else "lent", known)


@dataclass
class Function:
    """depth: bytes of its own. calls: to (address, register with the way back), at these depths;
    pointer: the depth at a call of any function; marked: of any that calls nothing."""

    depth: int = 0
    calls: dict[tuple[int, int], int] = field(default_factory=dict)
    pointer: int | None = None
    marked: int | None = None
    lends: bool = False
    taken: set[int] = field(default_factory=set)

    @property
    def is_block(self) -> bool:
        """Whether gl_call() may reach it: it takes sp for something else, or calls nothing."""
        calls = self.calls or self.pointer is not None or self.marked is not None
        return self.lends or not calls


class Walk:
    """One function, along all its ways."""

    def __init__(self, program: Program, start: int, link: int, sp: str = "stack") -> None:
        self.program, self.start, self.link = program, start, link
        self.found = Function()
        self.places: dict[int, Place] = {start: Place(0, sp, {0: frozenset([0])})}
        self.begins: dict[int, int] = {}
        self.loops: dict[int, int] = {}
        waiting = [start]
        while waiting:
            at = waiting.pop()
            for following, place in self._after(at, self.places[at]):
                before = self.places.get(following)
                merged = before.met(place) if before else place
                if merged.depth > DEEPEST:
                    raise StackError(f"{program.where(at)}: the stack grows in a loop")
                if merged != before:
                    self.places[following] = merged
                    waiting.append(following)

    def _after(self, at: int, place: Place) -> Iterator[tuple[int, Place]]:
        step = decode(self.program.word(at), at)
        behind = at + step.size
        if step.below > 0 and place.sp != "lent":
            self._need_stack(at, place)
            self.found.depth = max(self.found.depth, place.depth + step.below)
        match step.kind:
            case "stop":
                return
            case "branch":
                yield step.target or 0, place
            case "jump":
                yield from self._jump(at, step, place)
                return
            case "call":
                self._call(at, self._targets(step, place), step.rd, place)
                place = replace(place, known={0: place.known[0]})
            case "loop":
                self._loop(at, step)
            case _:
                place = self._computed(at, step, place)
        if at in self.loops:
            yield self.loops[at], place
        if behind in self.program.functions:  # as where a call does not come back
            self._call(at, frozenset([behind]), self.link, place)
        else:
            yield behind, place

    def _targets(self, step: Step, place: Place) -> frozenset[int]:
        if step.target is not None:
            return frozenset([step.target])
        values = place.known.get(step.rs, frozenset())
        return frozenset((value + (step.number or 0)) % WORD & ~1 for value in values)

    def _jump(self, at: int, step: Step, place: Place) -> Iterator[tuple[int, Place]]:
        if step.target is None and step.rs == self.link:
            return
        targets = self._targets(step, place)
        outside = {t for t in targets if t in self.program.functions and t != self.start}
        if outside or not targets:
            self._call(at, frozenset(outside), self.link, place)
        for target in targets - outside:
            yield target, place

    def _call(self, at: int, targets: frozenset[int], link: int, place: Place) -> None:
        """No target: it is in a pointer."""
        self._need_stack(at, place)
        found, depth = self.found, place.depth
        for target in targets:
            key = target, link
            found.calls[key] = max(found.calls.get(key, 0), depth)
        if not targets and at in self.program.marks:
            found.marked = max(found.marked or 0, depth)
        elif not targets:
            found.pointer = max(found.pointer or 0, depth)

    def _need_stack(self, at: int, place: Place) -> None:
        if place.sp == "none":
            raise StackError(f"{self.program.where(at)}: needs a stack where there is none yet")

    def _loop(self, at: int, step: Step) -> None:
        """rs: the kind of instruction."""
        assert step.target is not None
        if step.rs == 0:
            self.begins[step.rd] = step.target
        elif step.rs == 1:
            self.loops[step.target] = self.begins.get(step.rd, at)
        elif step.rs in (4, 5):
            self.loops[step.target] = at + step.size

    def _computed(self, at: int, step: Step, place: Place) -> Place:
        if step.rd == SP:
            return self._moved(at, step, place)
        if step.rd == 0:
            return place
        known = {r: values for r, values in place.known.items() if r != step.rd}
        values = place.known.get(step.rs)
        if step.number is not None and values:
            sums = frozenset((value + step.number) % WORD for value in values)
            known[step.rd] = sums
            if step.rs:  # the upper half alone is no address
                self.found.taken |= sums & self.program.named
        return replace(place, known=known)

    def _moved(self, at: int, step: Step, place: Place) -> Place:
        if step.rs != SP:
            self.found.lends = place.sp != "none"
            return replace(place, sp="lent" if self.found.lends else "stack")
        self._need_stack(at, place)
        if step.number is None:
            if place.sp == "stack":
                raise StackError(f"{self.program.where(at)}: takes stack that nobody can count")
            return place
        if place.sp == "lent" and step.number > 0:
            return place
        depth = place.depth - step.number
        if depth < 0:
            raise StackError(f"{self.program.where(at)}: gives back more stack than it took")
        self.found.depth = max(self.found.depth, depth)
        return replace(place, depth=depth)


class Analysis:
    """The call graph from start-up on. called: functions that others call by address."""

    def __init__(self, program: Program, called: Sequence[str] = ()) -> None:
        self.program = program
        self.functions: dict[tuple[int, int], Function] = {}
        self.taken = program.pointers() | {program.address(name) for name in called}
        start = program.address(START)
        self._needs: dict[tuple[int, int], int] = {}
        self.root = start, RA
        self.functions[self.root] = Walk(program, start, RA, "none").found
        self._walk_all()

    def _walk_all(self) -> None:
        while True:
            known = set(self.functions)
            wanted = {key for function in self.functions.values() for key in function.calls}
            wanted |= {(address, RA) for address in self.taken}
            for address, link in sorted(wanted - known):
                found = Walk(self.program, address, link).found
                self.functions[address, link] = found
                self.taken |= found.taken
            if not wanted - known:
                return

    def need(self) -> int:
        """Bytes of the deepest way, from an empty stack on."""
        return self._need(self.root, ())

    def _need(self, key: tuple[int, int], above: tuple[tuple[int, int], ...]) -> int:
        if key in above:
            names = [self.program.where(address) for address, _ in (*above, key)]
            raise StackError(f"no bound of the stack: {' calls '.join(names)}")
        if key not in self._needs:
            way = (*above, key)
            depths = [d + self._need(target, way) for target, d in self._calls(key)]
            self._needs[key] = max([self.functions[key].depth, *depths])
        return self._needs[key]

    def _calls(self, key: tuple[int, int]) -> Iterator[tuple[tuple[int, int], int]]:
        function = self.functions[key]
        yield from function.calls.items()
        for address in sorted(self.taken):
            if function.pointer is not None:
                yield (address, RA), function.pointer
            if function.marked is not None and self.functions[address, RA].is_block:
                yield (address, RA), function.marked


def stack_need(elf: bytes, called: Sequence[str] = ()) -> int:
    """Bytes that a core needs at most."""
    return Analysis(Program(elf), called).need()


def reserved_for(need: int) -> int:
    """What is set aside for a core: all stacks begin at a multiple of 16, as compilers want it."""
    return -(-need // ALIGN) * ALIGN + GUARD


def main() -> int:
    path = Path(sys.argv[1])
    try:
        program = Program(path.read_bytes())
        needed, reserved = reserved_for(Analysis(program).need()), program.address(RESERVED)
    except (StackError, OSError, struct.error) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    if needed > reserved:
        text = f"{path}: each core needs {needed} bytes of stack, and {reserved} are reserved"
        print(f"{text}; build the project again with this compiler", file=sys.stderr)
        return 1
    print(f"{path}: needs {needed} of the {reserved} bytes of stack of each core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
