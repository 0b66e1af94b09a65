"""Whole numbers as numbers, and numbers as indices.

What a model computes with integers is computed in float32, which holds them exactly up to 2^24;
front ends refuse models whose indices would come out otherwise (`passes/whole_numbers.py`).
Only what looks something up holds integers; a front end converts where it has to.
"""

from __future__ import annotations

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Arrays, Lowering, ShapeError, integer, register
from gradlet.ops.lib.pointwise import Broadcast, Pointwise

NOWHERE = -(2**31)  # an index that is in no table
LARGEST = 2.0**30


@register
class Number(Pointwise):
    name = "number"
    stops = True
    kernel = ("integer", "number")
    inputs = ("x",)
    integers = ("x",)

    def check_dtypes(self, *ins: Tensor) -> None:
        if ins[0].dtype != "i32":
            raise ShapeError(f"'{ins[0].name}' is a number already")

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return ("f32",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0].astype(np.float64),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """Rounded where float32 has no such number: beyond 2^24 half of them are, and more."""
        held = results[0].astype(np.float32) == results[0]
        return (np.where(held, 0.0, results[0]),)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.double()"


@register
class ToIndex(Pointwise):
    """The whole number that a number is; one that is far too large, or none, leads nowhere."""

    name = "to_index"
    inputs = ("x",)
    exact = True
    stops = True
    kernel = ("integer", "to_index")

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return ("i32",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        near = np.abs(ins[0]) <= LARGEST
        return (np.where(near, np.where(near, ins[0], 0), NOWHERE).astype(np.int32),)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.long()"


@register
class FlatIndex(Broadcast):
    """before * size + index: where an element of a further dimension lies if all are one. What is
    negative counts from the end; where either leads out of its dimension, the result is nowhere."""

    name = "flat_index"
    inputs = ("index", "before?")
    integers = ("index", "before")
    exact = True
    stops = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if integer(attrs, "size") < 1:
            raise ShapeError("a dimension without elements")
        return super().shape(attrs, *ins)

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

    def lower(self, site: Site) -> Lowering:
        sizes = {**self.walked(site), "size": integer(site.attrs, "size")}
        return Lowering("index", "flat", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        before = f" + {attrs['size']} * {ins[1]}" if len(ins) == 2 else ""
        return f"({ins[0]} % {attrs['size']}{before})"
