"""C names and literals for what the plan calls by free text."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from gradlet.graph import Array


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """A distinct tail of a C identifier for each name, as close to it as C allows."""
    result: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        stem = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
        candidate, count = stem, 2
        while candidate in taken:
            candidate, count = f"{stem}_{count}", count + 1
        taken.add(candidate)
        result[name] = candidate
    return result


def literal(value: float | int) -> str:
    """A C literal that reads back as the same float32 or int32."""
    if isinstance(value, int | np.integer):
        return str(int(value)) if value > -(2**31) else "(-2147483647 - 1)"
    text = f"{float(np.float32(value)):.9g}"
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"


def initializer(values: Array, per_line: int = 8, indent: str = "    ", member: str = "") -> str:
    """The elements of an array, row-major, between braces; of a union's member, if it is one."""
    flat = [literal(v) for v in np.asarray(values).reshape(-1).tolist()]
    flat = [f"{{.{member} = {text}}}" for text in flat] if member else flat
    lines = [", ".join(flat[i : i + per_line]) for i in range(0, len(flat), per_line)]
    return "{\n" + ",\n".join(indent + line for line in lines) + "\n}"


def comment(text: str) -> str:
    """Free text that cannot end a C comment."""
    return text.replace("*/", "* /").replace("\n", " ")
