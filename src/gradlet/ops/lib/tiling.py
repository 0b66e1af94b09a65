"""A part of a node as a node of its own: what it touches of every operand, in smaller shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gradlet.ir.graph import Attrs, Shape, Site, Tensor

if TYPE_CHECKING:
    from gradlet.ops.base import Op

Ranges = Mapping[str, tuple[int, int]]
"""Steps [begin, end) of some of a node's axes; all of the others are whole."""
Region = tuple[tuple[int, int], ...]
"""The range [low, high) of each dimension."""


def regions(site: Site, op: Op, ranges: Ranges) -> dict[str, Region]:
    """What a tile touches of each operand and result, by slot.

    No region is empty: where a tile needs nothing of an operand, it gets the nearest elements. Of
    operands that are added once, only the first tile of a reduction has a part.
    """
    tiled = [axis for axis in op.axes(site) if axis.name in ranges]
    first = all(ranges[axis.name][0] == 0 for axis in tiled if axis.reduction)
    found: dict[str, Region] = {}
    for slot, tensor in op.slots(site):
        if slot in op.adds_once and not first:
            continue
        region = [(0, extent) for extent in tensor.shape]
        for axis in tiled:
            for span in axis.spans:
                if span.operand == slot:
                    low, high = span.range(*ranges[axis.name], tensor.shape[span.dim])
                    low = min(low, tensor.shape[span.dim] - 1)
                    region[span.dim] = (low, max(high, low + 1))
        found[slot] = tuple(region)
    return found


def tile_shape(region: Region) -> Shape:
    return tuple(high - low for low, high in region)


def slice_attrs(shape: Shape, dim: int, begin: int, end: int) -> Attrs:
    """Attributes of the slice that takes [begin, end) of one dimension."""
    size = tuple(end - begin if d == dim else extent for d, extent in enumerate(shape))
    start = tuple(begin if d == dim else 0 for d in range(len(shape)))
    return {"start": start, "step": (1,) * len(shape), "size": size}


def shrunk(site: Site, op: Op, parts: Mapping[str, Region], attrs: Attrs) -> Site:
    """The node with these attributes over these parts of its operands."""

    def part(slot: str, tensor: Tensor) -> Tensor:
        return replace(tensor, shape=tile_shape(parts[slot]))

    slots = op.slots(site)
    ins = [part(*pair) for pair in slots[: len(site.ins)] if pair[0] in parts]
    outs = [part(*pair) for pair in slots[len(site.ins) :]]
    node = replace(site.node, inputs=tuple(tensor.name for tensor in ins), attrs=attrs)
    return Site(node, tuple(ins), tuple(outs))
