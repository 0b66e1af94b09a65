"""What element-wise ops share: axes, broadcasting, and dimensions merged for the kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Size, Span

MAX_RANK = 6  # of the strided kernels, after merging


class TooManyDimensions(GradletError):
    """More than a kernel has loops for."""


def same_index_axes(
    shape: Shape, operands: Sequence[str], but: Collection[int] = ()
) -> tuple[Axis, ...]:
    """One free axis per dimension, but for some of them; along it, every operand has the shape of
    the result."""
    return tuple(
        Axis(f"dim{dim}", extent, tuple(Span(operand, dim) for operand in operands))
        for dim, extent in enumerate(shape)
        if dim not in but
    )


class Pointwise(Op):
    """An element of the result depends on those at its place alone, and on operands that are
    needed whole. The kernel takes their number and nothing else that a tile could change."""

    kernel: ClassVar[tuple[str, str]]  # family and mode
    sizes: ClassVar[Mapping[str, Size]] = {}  # that the kernel takes besides
    whole: ClassVar[tuple[str, ...]] = ()

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        alike = [s for n, s in zip(self.inputs, ins, strict=False) if n not in self.whole]
        if any(shape != ins[0] for shape in alike):
            raise ShapeError("the operands differ in shape")
        return super().shape(attrs, *ins)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        slots = [name for name, _ in self.slots(site) if name not in self.whole]
        return same_index_axes(site.outs[0].shape, slots)

    def lower(self, site: Site) -> Lowering:
        return Lowering(*self.kernel, {"count": site.outs[0].elements, **self.sizes})


class Broadcast(Op):
    """Operands that are repeated to one common shape."""

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (broadcast(*ins),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        """An operand that repeats is needed whole."""
        shapes = {slot: tensor.shape for slot, tensor in self.slots(site)[: len(site.ins)]}
        return broadcast_axes(site.outs[0].shape, shapes)

    def walked(self, site: Site) -> dict[str, Size]:
        """Extents, and the step of each operand; one that is left out stays at its place."""
        result, names = site.outs[0].shape, [slot.rstrip("?") for slot in self.inputs]
        strides = [broadcast_strides(tensor.shape, result) for tensor in site.ins]
        strides += [(0,) * len(result)] * (len(names) - len(strides))
        extents, merged = merge(result, strides)
        steps = {f"{n}_step": padded(step, 0) for n, step in zip(names, merged, strict=True)}
        return {"extent": padded(extents, 1), **steps}


def strided_copy(extents: Shape, strides: tuple[int, ...], start: int = 0) -> Lowering:
    """The kernel that copies elements from `start` on, in steps, to where they lie side by side."""
    merged, (step,) = merge(extents, [strides])
    sizes: dict[str, Size] = {"extent": padded(merged, 1), "x_step": padded(step, 0)}
    return Lowering("permute", "copy", {**sizes, "x_start": start})


def split_at(shape: Shape, axis: int, **along: int) -> dict[str, int]:
    """Sizes of lines along a dimension: how many groups of them there are, and how many lines lie
    side by side in a group."""
    outer, inner = (int(np.prod(part, dtype=int)) for part in (shape[:axis], shape[axis + 1 :]))
    return {"outer": outer, **along, "inner": inner}


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
