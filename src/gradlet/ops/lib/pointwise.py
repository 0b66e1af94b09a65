"""What element-wise ops share: axes, broadcasting, and dimensions merged for the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Shape
from gradlet.ops.base import Axis, ShapeError, Span

MAX_RANK = 6  # of the strided kernels, after merging


class TooManyDimensions(GradletError):
    """More than a kernel has loops for."""


def same_index_axes(shape: Shape, operands: Sequence[str]) -> tuple[Axis, ...]:
    """One free axis per dimension; every operand has the shape of the result."""
    return tuple(
        Axis(f"dim{dim}", extent, tuple(Span(operand, dim) for operand in operands))
        for dim, extent in enumerate(shape)
    )


def broadcast(*shapes: Shape) -> Shape:
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise ShapeError("the shapes cannot be broadcast together") from None


def broadcast_axes(result: Shape, operands: Mapping[str, Shape]) -> tuple[Axis, ...]:
    """One free axis per dimension of the result y; an operand that repeats is needed whole."""
    axes = []
    for dim, extent in enumerate(result):
        spans = [Span("y", dim)]
        for operand, shape in operands.items():
            own = dim - (len(result) - len(shape))
            if own >= 0 and shape[own] == extent:
                spans.append(Span(operand, own))
        axes.append(Axis(f"dim{dim}", extent, tuple(spans)))
    return tuple(axes)


def row_major(shape: Shape) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def broadcast_strides(shape: Shape, result: Shape) -> tuple[int, ...]:
    """Element strides of an operand along the result's dimensions, 0 where it repeats."""
    padded = (1,) * (len(result) - len(shape)) + shape
    steps = row_major(padded)
    return tuple(0 if extent == 1 else step for extent, step in zip(padded, steps, strict=True))


def merge(extents: Shape, strides: Sequence[tuple[int, ...]]) -> tuple[Shape, list[Shape]]:
    """Drop dimensions of one element and join neighbours that every operand walks as one."""
    dims = [
        (extent, *(operand[i] for operand in strides))
        for i, extent in enumerate(extents)
        if extent != 1
    ]
    merged: list[tuple[int, ...]] = []
    for dim in dims:
        if merged and all(
            outer == inner * dim[0] for outer, inner in zip(merged[-1][1:], dim[1:], strict=True)
        ):
            merged[-1] = (merged[-1][0] * dim[0], *dim[1:])
        else:
            merged.append(dim)
    return tuple(d[0] for d in merged), [
        tuple(d[1 + k] for d in merged) for k in range(len(strides))
    ]


def padded(values: Sequence[int], fill: int) -> tuple[int, ...]:
    """Left-pad to the rank of the strided kernels."""
    if len(values) > MAX_RANK:
        raise TooManyDimensions(
            f"more than {MAX_RANK} dimensions that cannot be walked as one: {list(values)}"
        )
    return (fill,) * (MAX_RANK - len(values)) + tuple(values)
