"""Gradient clipping, by value and by the norm of all gradients together.

`clip` is a tensor of one number that lives beside the weights, so that it may change at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Size, Span, Work, integer, register
from gradlet.ops.lib.pointwise import Pointwise, row_major
from gradlet.ops.lib.tiling import Region

PARTS = 16
"""Partial sums of a norm, each of every 16th element: cores share them, their number fixes the
order of the sum, and neighbours of the elements, wherever they begin, know their parts."""


@register
class ClipValue(Pointwise):
    name = "clip_value"
    inputs = ("g", "clip")
    exact = True
    overwrites = ("g",)
    whole = ("clip",)
    kernel = ("clip", "value")
    sizes: ClassVar[Mapping[str, Size]] = {"begin": 0}

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        g, clip = ins
        return (np.clip(g, -clip, clip).reshape(g.shape),)


@register
class ClipSquares(Op):
    """Sums of squares of the elements of one gradient, on top of those of the gradients before;
    the first element belongs to the part `begin`."""

    name = "clip_squares"
    inputs = ("g", "before?")
    adds_once = ("before",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if len(ins) == 2 and ins[1] != (PARTS,):
            raise ShapeError(f"a norm has {PARTS} parts")
        return ((PARTS,),)

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return (F32.name,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        flat, begin = ins[0].reshape(-1), clip_begin(attrs)
        padded = np.zeros(-(-(begin + flat.size) // PARTS) * PARTS, flat.dtype)
        padded[begin : begin + flat.size] = flat
        parts = (padded.reshape(-1, PARTS) ** 2).sum(axis=0)
        return (parts + ins[1] if len(ins) == 2 else parts,)

    def work(self, site: Site) -> Work:
        return Work(site.ins[0].elements, site.moved_bytes)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        """The outermost dimension, as its parts are whole lines of neighbours."""
        for dim, extent in enumerate(site.ins[0].shape):
            if extent > 1:
                return (Axis(f"dim{dim}", extent, (Span("g", dim),), reduction=True),)
        return ()

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        strides = row_major(site.ins[0].shape)
        first = sum(low * step for (low, _), step in zip(parts["g"], strides, strict=True))
        return {"begin": (clip_begin(site.attrs) + first) % PARTS}

    def lower(self, site: Site) -> Lowering:
        sizes = {"count": site.ins[0].elements, "begin": clip_begin(site.attrs)}
        return Lowering("clip", "squares", sizes)


def clip_begin(attrs: Attrs) -> int:
    return integer(attrs, "begin") if "begin" in attrs else 0


@register
class ClipFactor(Op):
    """What all gradients are multiplied by: limit / norm, at most 1, as PyTorch computes it."""

    name = "clip_factor"
    inputs = ("squares", "clip")

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return ((1,),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        squares, clip = ins
        return (np.minimum(1.0, clip / (np.sqrt(squares.sum()) + 1e-6)),)

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, PARTS + 2)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return ()

    def lower(self, site: Site) -> Lowering:
        return Lowering("clip", "factor", {"count": PARTS, "begin": 0})


@register
class ClipScale(Pointwise):
    name = "clip_scale"
    inputs = ("g", "factor")
    overwrites = ("g",)
    whole = ("factor",)
    kernel = ("clip", "scale")
    sizes: ClassVar[Mapping[str, Size]] = {"begin": 0}

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return ((ins[0] * ins[1]).reshape(ins[0].shape),)
