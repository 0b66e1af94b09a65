"""Whole numbers as numbers, and numbers as indices.

What a model computes with integers is computed in float32, which holds them exactly up to 2^24;
front ends refuse models whose indices would come out otherwise (`passes/whole_numbers.py`).
Only what looks something up holds integers; a front end converts where it has to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Axis, Emitter, Lowering, Op, ShapeError, integer, register
from gradlet.ops.lib.pointwise import (
    broadcast,
    broadcast_axes,
    broadcast_strides,
    merge,
    padded,
    same_index_axes,
)

NOWHERE = -(2**31)  # an index that is in no table
LARGEST = 2.0**30


class _Integers(Op):
    """No gradient passes a whole number."""

    exact = True
    stops = True

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        return {}


@register
class Number(_Integers):
    """Rounded where float32 has no such number: beyond 2^24 that is every other one, and more."""

    name = "number"
    inputs = ("x",)
    integers = ("x",)
    exact = False

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def check_dtypes(self, *ins: Tensor) -> None:
        if ins[0].dtype != "i32":
            raise ShapeError(f"'{ins[0].name}' is a number already")

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return ("f32",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0].astype(np.float64),)

    def magnitude(
        self, attrs: Attrs, ins: Sequence[Array], results: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        held = results[0].astype(np.float32) == results[0]
        return (np.where(held, 0.0, results[0]),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("x", "y"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("integer", "number", {"count": site.outs[0].elements})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.double()"


@register
class ToIndex(_Integers):
    """The whole number that a number is; one that is far too large, or none, leads nowhere."""

    name = "to_index"
    inputs = ("x",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return ("i32",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        near = np.abs(ins[0]) <= LARGEST
        return (np.where(near, np.where(near, ins[0], 0), NOWHERE).astype(np.int32),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("x", "y"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("integer", "to_index", {"count": site.outs[0].elements})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.long()"


@register
class FlatIndex(_Integers):
    """before * size + index: where an element of a further dimension lies if all are one. What is
    negative counts from the end; where either leads out of its dimension, the result is nowhere."""

    name = "flat_index"
    inputs = ("index", "before?")
    integers = ("index", "before")

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if integer(attrs, "size") < 1:
            raise ShapeError("a dimension without elements")
        return (broadcast(*ins),)

    def check_dtypes(self, *ins: Tensor) -> None:
        for tensor in ins:
            if tensor.dtype != "i32":
                raise ShapeError(f"'{tensor.name}' holds {tensor.dtype}; indices are integers")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        size = integer(attrs, "size")
        index, before = np.broadcast_arrays(ins[0], ins[1] if len(ins) == 2 else np.int32(0))
        inside = (index >= -size) & (index < size) & (before >= 0)
        flat = before.astype(np.int64) * size + np.where(index < 0, index + size, index)
        return (np.where(inside, flat, NOWHERE).astype(np.int32),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        shapes = {slot: t.shape for slot, t in self.slots(site) if slot != "y"}
        return broadcast_axes(site.outs[0].shape, shapes)

    def lower(self, site: Site) -> Lowering:
        result = site.outs[0].shape
        strides = [broadcast_strides(tensor.shape, result) for tensor in site.ins]
        extents, steps = merge(result, [*strides, (0,) * len(result)][:2])
        sizes = {"index_step": padded(steps[0], 0), "before_step": padded(steps[1], 0)}
        size = integer(site.attrs, "size")
        return Lowering("index", "flat", {"extent": padded(extents, 1), **sizes, "size": size})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        before = f" + {attrs['size']} * {ins[1]}" if len(ins) == 2 else ""
        return f"({ins[0]} % {attrs['size']}{before})"
