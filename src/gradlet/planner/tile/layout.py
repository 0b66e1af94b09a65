"""The structs that the runtime walks for a tiled call (gl_tiles.h), on a machine of 32 bits: the
one place that code generation, the tuner and the plan's accounts have them from. `held` is C that
does not compile where the header has them otherwise."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORD = 4
AXES, STAGES = 4, 3
"""Of a table and of a view, at most."""


@dataclass(frozen=True)
class Struct:
    """fields: name, the letter of its type for Python's `struct`, and how many there are. rest: the
    member of the header that comes behind them, whose length is open."""

    name: str
    fields: tuple[tuple[str, str, int], ...]
    rest: str = ""

    def _codes(self) -> list[str]:
        return [f"{count}{code}" for _, code, count in self.fields]

    @property
    def size(self) -> int:
        return struct.calcsize("<" + "".join(self._codes()))

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """What is not given is 0."""
        flat: list[int] = []
        for name, _, count in self.fields:
            value = values.get(name, 0)
            own = [*value] if isinstance(value, tuple) else [value]
            flat += [*own, *[0] * (count - len(own))]
        return struct.pack("<" + "".join(self._codes()), *flat)

    def initial(self, values: Mapping[str, Any]) -> str:
        """An initializer in C, with no braces around it."""
        found = []
        for name, _, _ in self.fields:
            value = values.get(name, 0)
            inside = ", ".join(map(str, value)) if isinstance(value, tuple) else ""
            found.append(f"{{{inside or 0}}}" if isinstance(value, tuple) else str(value))
        return ", ".join(found)

    def held(self) -> str:
        """C that holds the header to this."""
        at, lines = 0, []
        for name, code, count in self.fields:
            size = struct.calcsize(f"<{count}{code}")
            lines.append(_holds(f"{self.name}_{name}", f"{_offset(self.name, name)} == {at}"))
            lines.append(_holds(f"{self.name}_{name}_size", f"{_size(self.name, name)} == {size}"))
            at += size
        end = _offset(self.name, self.rest) if self.rest else f"sizeof({self.name})"
        return "".join([*lines, _holds(f"{self.name}_end", f"{end} == {at}")])


def _offset(name: str, member: str) -> str:
    return f"__builtin_offsetof({name}, {member})"


def _size(name: str, member: str) -> str:
    return f"sizeof((({name} *)0)->{member})"


def _holds(name: str, condition: str) -> str:
    """C99 has no _Static_assert."""
    return f"extern char holds_{name}[{condition} ? 1 : -1];\n"


def _of(code: str, names: str) -> tuple[tuple[str, str, int], ...]:
    return tuple((name, code, 1) for name in names.split())


TILING = Struct(
    "gl_tiling",
    (
        *_of("I", "first later last"),
        *_of("i", "repeat"),
        *_of("B", "axes views reductions double_buffered"),
        ("count", "i", AXES),
        *_of("H", "sizes last_sizes first_step steps"),
        *_of("I", "first_only skip releases"),
    ),
)
VIEW = Struct(
    "gl_tile_view",
    (
        *_of("I", "backing"),
        ("l1", "I", STAGES),
        *_of("B", "stages load store moved_by"),
        *_of("H", "regions first_step steps prefetched"),
    ),
)
STEP = Struct("gl_step", _of("H", "axis offsets"))
OFFSET = Struct("gl_offset", _of("i", "backing region"))
REGION = Struct("gl_region", _of("i", "bytes lines pitch planes plane_pitch"))
STATE = Struct("gl_view_state", _of("I", "backing at put_from put_to region put_region stage"))
FRAME = Struct("gl_frame", _of("I", "kernel last sizes last_sizes skips"), rest="t")


def held() -> str:
    """C for a file that includes gl_tiles.h."""
    return "".join(s.held() for s in (TILING, VIEW, STEP, OFFSET, REGION, STATE, FRAME))
