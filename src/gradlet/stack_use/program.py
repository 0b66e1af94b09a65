"""A linked program: its code, its functions, and which of them stand in tables."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .decode import Step

MARK = "gl_call_site"
TABLES = (".rodata", ".data")
NUMBERS = "golden_"


class StackError(Exception):
    """The stack has no bound, or this is no program of ours."""


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
        self.decoded: dict[int, Step] = {}
        self.functions: dict[int, str] = {}
        self.labels: dict[str, int] = {}
        self.marks: set[int] = set()
        self.numbers: list[range] = []
        for section in self.sections:
            if section.kind == 2:
                self._read_symbols(section)
        self.named = frozenset(filter(self.is_code, self.labels.values()))
        self.table_words = self._table_words()

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

    def code_digest(self, names: Sequence[str]) -> bytes:
        """Of all that a way through the code depends on, if it begins at these names."""
        marked = self.functions, self.marks, self.named, self.table_words
        places = [*(self.address(name) for name in names), *map(sorted, marked)]
        texts = [(s.address, self.data[s.offset : s.offset + s.size]) for s in self.code]
        return hashlib.sha256(repr((places, texts)).encode()).digest()

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

    def _table_words(self) -> set[int]:
        """Words of tables that are addresses of code. Weights and golden data are no tables."""
        found = set()
        for section in self.sections:
            if section.kind == 1 and section.name in TABLES:
                first = section.address + (-section.address) % 4
                for at in range(first, section.address + section.size - 3, 4):
                    place = section.offset + at - section.address
                    (word,) = struct.unpack_from("<I", self.data, place)
                    if self.is_code(word) and not any(at in numbers for numbers in self.numbers):
                        found.add(word)
        return found

    def pointers(self) -> set[int]:
        """Functions that stand in tables."""
        return self.table_words & self.named

    def cases(self, start: int) -> set[int]:
        """Places within a function that stand in tables, as for a switch."""
        end = min((f for f in self.functions if f > start), default=1 << 32)
        return {word for word in self.table_words - self.named if start < word < end}


def loaded_bytes(data: bytes) -> int:
    """Code and constants of an ELF file, or of a part of one that is not linked yet."""
    sections = Program(data).sections
    return sum(s.size for s in sections if s.kind == 1 and (s.is_code or "rodata" in s.name))
