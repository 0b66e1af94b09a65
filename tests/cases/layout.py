"""Rows in the other layout: of every op over feature maps, the same row with channels last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradlet.ops import OPS
from gradlet.ops.lib.channels import MapOp, last_order
from tests.cases.base import Case


def channels_last(row: Case) -> Iterator[Case]:
    op = OPS[row.op]
    if isinstance(op, MapOp):
        slots = [slot.rstrip("?") for slot in op.inputs]
        shapes = tuple(
            tuple(shape[dim] for dim in last_order(len(shape))) if slot in op.maps else shape
            for slot, shape in zip(slots, row.shapes, strict=False)
        )
        yield replace(row, shapes=shapes, attrs={**row.attrs, "layout": "hwc"})
