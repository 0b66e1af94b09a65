"""Maps of one dimension as planes of height 1, and maps without a batch as a batch of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradlet.ir.graph import Array, Attrs, Shape
from gradlet.ops.base import Axis, ints
from gradlet.ops.importer import Importer
from gradlet.ops.lib.tiling import Region


def planes(shape: Shape) -> Shape:
    """The shape of a map or a weight with a height, which is 1 if it has none."""
    return shape if len(shape) == 4 else (*shape[:2], 1, *shape[2:])


def plane_box(region: Region) -> Region:
    return region if len(region) == 4 else (*region[:2], (0, 1), *region[2:])


def lifted(attrs: Attrs) -> Attrs:
    """The attributes of the same convolution over two dimensions."""
    if len(ints(attrs, "stride")) == 2:
        return attrs
    left, right = ints(attrs, "padding")
    ones = {k: (1, *ints(attrs, k)) for k in ("stride", "dilation", "size", "kernel") if k in attrs}
    return {**attrs, "padding": (0, left, 0, right), **ones}


def as_planes(*arrays: Array) -> list[Array]:
    return [array.reshape(planes(array.shape)) for array in arrays]


def without_height(array: Array, attrs: Attrs) -> Array:
    return array if len(ints(attrs, "stride")) == 2 else array[:, :, 0]


def without_rows(axes: Sequence[Axis], attrs: Attrs) -> tuple[Axis, ...]:
    """The loops over operands that have no height: columns are their dimension 2."""
    if len(ints(attrs, "stride")) == 2:
        return tuple(axes)
    return tuple(
        replace(
            axis,
            spans=tuple(replace(span, dim=2 if span.dim == 3 else span.dim) for span in axis.spans),
        )
        for axis in axes
        if axis.name != "rows"
    )


def batched(imp: Importer, op: str, operands: list[str], attrs: Attrs, rank: int) -> str:
    """Add an op over maps of this rank, also to a map without a batch dimension."""
    shape = imp.shape(operands[0])
    if len(shape) == rank:
        return imp.add(op, operands, attrs)
    operands = [imp.add("reshape", [operands[0]], {"shape": (1, *shape)}), *operands[1:]]
    y = imp.add(op, operands, attrs)
    return imp.add("reshape", [y], {"shape": imp.shape(y)[1:]})
