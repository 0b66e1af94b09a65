"""C names and literals for what the plan calls by free text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from gradlet.ir.graph import Array
from gradlet.ops.base import Size

NOT_FINITE = {
    "inf": "__builtin_inff()",
    "-inf": "-__builtin_inff()",
    "nan": '__builtin_nanf("")',
}
LONGEST = 60
"""Characters of an identifier's tail: C compilers need not look at more than 63."""


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """A distinct tail of a C identifier for each name, as close to it as C allows; also distinct in
    capital letters, of which macros are made."""
    result: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        stem = re.sub(r"\W", "_", name, flags=re.ASCII)[:LONGEST] or "_"
        candidate, count = stem, 2
        while candidate.upper() in taken:
            end = f"_{count}"
            candidate, count = stem[: LONGEST - len(end)] + end, count + 1
        taken.add(candidate.upper())
        result[name] = candidate
    return result


def literal(value: float | int) -> str:
    """A C literal that reads back as the same float32 or int32."""
    if isinstance(value, int | np.integer):
        return str(int(value)) if value > -(2**31) else "(-2147483647 - 1)"
    with np.errstate(over="ignore"):
        number = float(np.float32(value))
    if not np.isfinite(number):
        return NOT_FINITE[str(number)]
    text = f"{number:.9g}"
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"


def initializer(values: Array, per_line: int = 8, indent: str = "    ", form: str = "{}") -> str:
    """The elements of an array, row-major, between braces, each in this form."""
    flat = [form.format(literal(v)) for v in np.asarray(values).reshape(-1).tolist()]
    lines = [", ".join(flat[i : i + per_line]) for i in range(0, len(flat), per_line)]
    return "{\n" + ",\n".join(indent + line for line in lines) + "\n}"


def size_text(sizes: Mapping[str, Size]) -> str:
    """The sizes of a kernel call, as members of its struct."""
    return ", ".join(f".{name} = {_size(value)}" for name, value in sizes.items())


def _size(value: Size) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(str, value)) + "}"
    if isinstance(value, float) and np.isinf(value):
        return "__builtin_inff()" if value > 0 else "-__builtin_inff()"
    return f"{value!r}f" if isinstance(value, float) else str(value)


def comment(text: str) -> str:
    """Free text that can neither end nor continue a C comment, nor begin one within it.

    Only the letters of foreign scripts are kept of what is not ASCII: marks that change the
    direction of writing would hide code. Two question marks may begin a trigraph.
    """
    plain = "".join(c if _is_harmless(c) else "?" for c in text)
    for pair in ("*/", "/*", "//", "??"):
        plain = plain.replace(pair, " ".join(pair)).replace(pair, " ".join(pair))
    return plain.replace("\\", "|")


def _is_harmless(letter: str) -> bool:
    return " " <= letter <= "~" or (letter > "\x7f" and letter.isalpha())


def string(text: str) -> str:
    """A C string that holds exactly this text, as UTF-8, with its quotes."""
    return '"' + "".join(_escaped(byte) for byte in text.encode("utf-8", "replace")) + '"'


def _escaped(byte: int) -> str:
    """Three octal digits cannot be taken together with what follows."""
    plain = 32 <= byte < 127 and chr(byte) not in '"\\?'
    return chr(byte) if plain else f"\\{byte:03o}"
