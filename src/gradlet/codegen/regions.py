"""The memory of a plan as C arrays: one per region, and the file with what they hold at first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gradlet.codegen.names import comment
from gradlet.ir.elements import F32, I32, Element
from gradlet.ir.graph import Array
from gradlet.planner.model import FARTHEST, L1, REGIONS, Buffer, Plan

WORD = 4
QUALIFIERS = {
    region: "const " if region.endswith("constants") else ""
    for region in REGIONS
    if not region.endswith("arena")
}
SECTIONS = {"weights": "data", "constants": "rodata"}  # by GL_IN and GL_SECTION of the port
STEP = 16
"""Bytes; every region begins at a multiple of it in the file."""


def mixed_regions(plan: Plan) -> set[str]:
    """Regions of weights and constants that are no plain array of floats."""
    places = plan.buffer_of()
    others = (t for t in plan.graph.tensors.values() if t.element != F32 and t.name in places)
    return {places[tensor.name].region for tensor in others} & set(QUALIFIERS)


def word_members(plan: Plan) -> list[dict[str, str]]:
    """What a word of memory may be read as: a number, or several narrow ones."""
    present = {tensor.element for tensor in plan.graph.tensors.values()} | {F32, I32}
    return [
        {"c": element.c, "name": element.name, "count": _count(element)}
        for element in sorted(present, key=lambda e: (e not in (F32, I32), e.name))
    ]


def _count(element: Element) -> str:
    per_word = WORD // element.bytes
    return f"[{per_word}]" if per_word > 1 else ""


def place(prefix: str, region: str, offset: int, element: Element | None) -> str:
    """C for an address in a region of words, or in a plain array if there is no element."""
    first = f"&{prefix}_{region}[{offset // WORD}]"
    if element is None:
        return first
    return f"{first}.{element.name}{'[0]' if _count(element) else ''}"


def regions(plan: Plan) -> Iterator[dict[str, Any]]:
    mixed = mixed_regions(plan)
    for region, first in region_starts(plan).items():
        words = -(-plan.region_bytes(region) // WORD)
        kind = SECTIONS[region.removeprefix(L1).removeprefix(FARTHEST)]
        qualifier, level = QUALIFIERS[region], _level(plan, region)
        element = f"{plan.prefix}_word" if region in mixed else "float"
        where = f"__attribute__((aligned({plan.level.align}))) GL_IN({level}, {kind})"
        yield {
            "name": region,
            "qualifier": qualifier,
            "element": element,
            "level": level,
            "kind": kind,
            "words": words,
            "first": first,
            "bytes": WORD * words,
            "mixed": region in mixed,
            "declaration": f"{qualifier}{element} {plan.prefix}_{region}[{words}] {where}",
            "rows": [_row(plan, buffer) for buffer in _initialised(plan, region)],
        }


def region_starts(plan: Plan) -> dict[str, int]:
    """Where each region that has initial values begins in the file."""
    starts, at = {}, 0
    for region in QUALIFIERS:
        size = plan.region_bytes(region)
        if size:
            starts[region] = at
            at = -(-(at + size) // STEP) * STEP
    return starts


def initial_bytes(plan: Plan) -> bytes:
    """The regions as they are at first, one behind the other, little-endian; gaps are zeros."""
    starts = region_starts(plan)
    last = max(starts, key=lambda region: starts[region], default="")
    words = -(-plan.region_bytes(last) // WORD)
    data = bytearray(starts[last] + WORD * words if last else 0)
    for region, first in starts.items():
        for buffer in _initialised(plan, region):
            start = first + buffer.offset
            value = stored_value(plan, buffer.name)
            data[start : start + value.nbytes] = value.tobytes()
    return bytes(data)


def stored_value(plan: Plan, name: str) -> Array:
    """What a tensor holds at first, as it lies in memory."""
    stored = plan.graph.tensors[name].element.stored(plan.graph.data[name])
    return np.ascontiguousarray(stored).reshape(-1)


def _initialised(plan: Plan, region: str) -> list[Buffer]:
    return sorted((b for b in plan.buffers if b.region == region), key=lambda b: b.offset)


def _row(plan: Plan, buffer: Buffer) -> str:
    """A tensor as a tuple in Python: its first word, words, i or f, its name and shape. Words of
    narrow elements are written as whole numbers."""
    tensor = plan.graph.tensors[buffer.name]
    shape, code = "x".join(map(str, tensor.shape)), "f" if tensor.element == F32 else "i"
    label = f"{comment(buffer.name)} {shape}"
    return repr((buffer.offset // WORD, -(-tensor.bytes // WORD), code, label))


def _level(plan: Plan, region: str) -> str:
    return next((b.level for b in plan.buffers if b.region == region), plan.level.name)


def arenas(plan: Plan) -> Iterator[dict[str, Any]]:
    for region in (f"{place}arena" for place in ("", L1, FARTHEST)):
        words = -(-plan.region_bytes(region) // WORD)
        if words:
            yield {"name": region, "words": words, "level": _level(plan, region)}
