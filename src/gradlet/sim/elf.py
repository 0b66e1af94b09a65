"""Names for addresses: the symbol table of an ELF file."""

from __future__ import annotations

import bisect
import struct

_SYMTAB = 2
_FUNCTION_OR_LABEL = (0, 2)
_OBJECT = 1


class Symbols:
    """The labels and functions of a program; empty if it has none or is damaged."""

    def __init__(self, data: bytes) -> None:
        try:
            found = _read(data)
        except (struct.error, IndexError, ValueError):
            found = []
        pairs = sorted({(address, name) for address, name, kind in found if kind != _OBJECT})
        self._places = {name: address for address, name, _ in found}
        self._addresses = [address for address, _ in pairs]
        self._names = [name for _, name in pairs]

    def name(self, address: int) -> str:
        """`symbol+offset`, or the plain address."""
        index = bisect.bisect_right(self._addresses, address) - 1
        if index < 0 or address - self._addresses[index] > 0x100000:
            return f"{address:#010x}"
        offset = address - self._addresses[index]
        return self._names[index] + (f"+{offset:#x}" if offset else "")

    def address(self, name: str) -> int | None:
        """Where a symbol is, if it exists: code or data."""
        return self._places.get(name)


def _read(data: bytes) -> list[tuple[int, str, int]]:
    if data[:4] != b"\x7fELF":
        return []
    (shoff,) = struct.unpack_from("<I", data, 32)
    shentsize, shnum = struct.unpack_from("<HH", data, 46)
    if shentsize < 40:
        return []
    for number in range(shnum):
        section = struct.unpack_from("<10I", data, shoff + number * shentsize)
        if section[1] == _SYMTAB:
            strings = struct.unpack_from("<10I", data, shoff + section[6] * shentsize)
            return _symbols(data, section[4], section[5], strings[4])
    return []


def _symbols(data: bytes, offset: int, size: int, strings: int) -> list[tuple[int, str, int]]:
    found = []
    for at in range(offset, min(offset + size, len(data)) - 15, 16):
        name_at, value, _, info, _, index = struct.unpack_from("<IIIBBH", data, at)
        start = strings + name_at
        name = data[start : data.index(b"\0", start)].decode(errors="replace")
        kind = info & 15
        if (
            name
            and index
            and kind in (*_FUNCTION_OR_LABEL, _OBJECT)
            and not name.startswith(("$", ".L", "gl_call_site"))
        ):
            found.append((value, name, kind))
    return found
