"""The memory of a plan as C arrays: one per region, with what it holds at first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradlet.emit.names import comment, initializer
from gradlet.graph import Array
from gradlet.plan.model import FAR, NEAR, REGIONS, Plan

WORD = 4
QUALIFIERS = {
    region: "const " if region.endswith("constants") else ""
    for region in REGIONS
    if not region.endswith("arena")
}
SECTIONS = {"weights": "data", "constants": "rodata"}  # by GL_IN of the port


def mixed_regions(plan: Plan) -> set[str]:
    """Regions of weights and constants with integers among them."""
    places = plan.buffer_of()
    integers = (t for t in plan.graph.tensors.values() if t.dtype == "i32" and t.name in places)
    return {places[tensor.name].region for tensor in integers} & set(QUALIFIERS)


def regions(plan: Plan) -> Iterator[dict[str, Any]]:
    for region, qualifier in QUALIFIERS.items():
        words = -(-plan.region_bytes(region) // WORD)
        if words:
            text = _region_text(plan, region, words)
            element = f"{plan.prefix}_word" if region in mixed_regions(plan) else "float"
            kind = {"qualifier": qualifier, "element": element, "level": _level(plan, region)}
            section = SECTIONS[region.removeprefix(NEAR).removeprefix(FAR)]
            yield {"name": region, **kind, "kind": section, "words": words, "text": text}


def _level(plan: Plan, region: str) -> str:
    return next((b.level for b in plan.buffers if b.region == region), plan.level.name)


def arenas(plan: Plan) -> Iterator[dict[str, Any]]:
    for region in (f"{place}arena" for place in ("", NEAR, FAR)):
        words = -(-plan.region_bytes(region) // WORD)
        if words:
            yield {"name": region, "words": words, "level": _level(plan, region)}


def _region_text(plan: Plan, region: str, words: int) -> str:
    """The initial bytes of a region, tensor by tensor, gaps as zeros."""
    lines, at = [], 0
    mixed = region in mixed_regions(plan)
    for buffer in sorted((b for b in plan.buffers if b.region == region), key=lambda b: b.offset):
        start = buffer.offset // WORD
        if start > at:
            lines.append("    " + ("{0.0f}, " if mixed else "0.0f, ") * (start - at))
        value = plan.graph.data[buffer.name]
        shape = "x".join(map(str, value.shape))
        lines.append(f"    /* {comment(buffer.name)} {shape} */")
        lines.append(initializer(value, member=_member(value) if mixed else "")[2:-2] + ",")
        at = start + value.size
    assert at == words, f"{region} ends at word {at}, not {words}"
    return "\n".join(lines)


def _member(value: Array) -> str:
    return "f32" if value.dtype.kind == "f" else "i32"
