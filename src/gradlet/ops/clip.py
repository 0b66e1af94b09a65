"""Gradient clipping, by value and by the norm of all gradients together.

`clip` is a tensor of one number that lives beside the weights, so that it may change at run time.
"""

from __future__ import annotations

import numpy as np

from gradlet.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Work, register
from gradlet.ops.pointwise import same_index_axes

PARTS = 16
"""Partial sums of a norm: cores share them, and their number fixes the order of the sum."""


@register
class ClipValue(Op):
    name = "clip_value"
    inputs = ("g", "clip")
    exact = True
    overwrites = ("g",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        g, clip = ins
        return (np.clip(g, -clip, clip).reshape(g.shape),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("g", "y"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("clip", "value", {"count": site.outs[0].elements})


@register
class ClipSquares(Op):
    """Sums of squares of blocks of one gradient, on top of those of the gradients before."""

    name = "clip_squares"
    inputs = ("g", "before?")

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if len(ins) == 2 and ins[1] != (PARTS,):
            raise ShapeError(f"a norm has {PARTS} parts")
        return ((PARTS,),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        flat = ins[0].reshape(-1)
        block = -(-flat.size // PARTS)
        padded = np.zeros(PARTS * block, flat.dtype)
        padded[: flat.size] = flat
        parts = (padded.reshape(PARTS, block) ** 2).sum(axis=1)
        return (parts + ins[1] if len(ins) == 2 else parts,)

    def work(self, site: Site) -> Work:
        return Work(site.ins[0].elements, site.moved_bytes)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return ()

    def lower(self, site: Site) -> Lowering:
        return Lowering("clip", "squares", {"count": site.ins[0].elements})


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
        return Lowering("clip", "factor", {"count": PARTS})


@register
class ClipScale(Op):
    name = "clip_scale"
    inputs = ("g", "factor")
    overwrites = ("g",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return ((ins[0] * ins[1]).reshape(ins[0].shape),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("g", "y"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("clip", "scale", {"count": site.outs[0].elements})
