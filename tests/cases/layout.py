"""Rows in the other layouts: of every op over feature maps, the same row with channels last, and in
pairs if the op has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradlet.ir.graph import Shape
from gradlet.ops import OPS
from gradlet.ops.lib.channels import PAIRED, MapOp, last_order, paired_shape
from tests.cases.base import Case


def other_layouts(row: Case) -> Iterator[Case]:
    op = OPS[row.op]
    if isinstance(op, MapOp):
        slots = [slot.rstrip("?") for slot in op.inputs]
        shapes = tuple(
            tuple(shape[dim] for dim in last_order(len(shape))) if slot in op.maps else shape
            for slot, shape in zip(slots, row.shapes, strict=False)
        )
        yield replace(row, shapes=shapes, attrs={**row.attrs, "layout": "hwc"})
        if PAIRED in op.layouts and row.attrs.get("groups", 1) in (1, shapes_of(row)["x"][1]):
            yield from channels_in_pairs(op, row)


def shapes_of(row: Case) -> dict[str, Shape]:
    slots = (slot.rstrip("?") for slot in OPS[row.op].inputs)
    return dict(zip(slots, row.shapes, strict=False))


def channels_in_pairs(op: MapOp, row: Case) -> Iterator[Case]:
    """Depthwise rows that make several channels of one have no pairs. Of others that make an odd
    number of channels there is a second one, with a channel more: fast kernels make pairs."""
    shapes = shapes_of(row)
    if row.attrs["groups"] != 1 and shapes["w"][0] != shapes["x"][1]:
        return
    yield _in_pairs(op, row, shapes)
    made = shapes["w"][0]
    if made % 2 and row.attrs["groups"] == 1:
        more = {**shapes, "w": (made + 1, *shapes["w"][1:])}
        yield _in_pairs(op, row, {**more, "b": (made + 1,)} if "b" in shapes else more)


def _in_pairs(op: MapOp, row: Case, shapes: dict[str, Shape]) -> Case:
    turned = tuple(
        paired_shape(shape, op.paired_dim(row.attrs, slot)) if slot in op.maps else shape
        for slot, shape in shapes.items()
    )
    return replace(row, shapes=turned, attrs={**row.attrs, "layout": PAIRED})
