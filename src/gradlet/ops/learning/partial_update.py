"""Rows of a weight that are trained while the others are not: they are a parameter of their own,
and are put into their place at the start of every step."""

from __future__ import annotations

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, integer, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.pointwise import same_index_axes
from gradlet.ops.lib.tiling import slice_attrs


@register
class SetRows(Op):
    """w with `rows` in place of its own from `begin` on."""

    name = "set_rows"
    inputs = ("w", "rows")
    exact = True
    overwrites = ("w",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        w, rows = ins
        begin = integer(attrs, "begin")
        if not w or len(rows) != len(w) or rows[1:] != w[1:]:
            raise ShapeError("rows and weight differ in more than their number")
        if not 0 <= begin <= begin + rows[0] <= w[0]:
            raise ShapeError(f"{rows[0]} rows from {begin} on are not inside {w[0]}")
        return (w,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        w, rows = ins
        begin = integer(attrs, "begin")
        return (np.concatenate([w[:begin], rows, w[begin + len(rows) :]]),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        """Of the rows alone: the rest is frozen."""
        begin = integer(site.attrs, "begin")
        end = begin + site.ins[1].shape[0]
        attrs = slice_attrs(site.outs[0].shape, 0, begin, end)
        return {"rows": emit.add("slice", [grads[0]], attrs)} if "rows" in wanted else {}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("w", "rows", "y"), (0,))

    def lower(self, site: Site) -> Lowering:
        w, rows = site.ins
        begin = integer(site.attrs, "begin") * (w.elements // w.shape[0])
        sizes = {"count": w.elements, "begin": begin, "end": begin + rows.elements}
        return Lowering("rows", "set", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        w, rows = ins
        begin = integer(attrs, "begin")
        return f"torch.cat([{w}[:{begin}], {rows}, {w}[{begin} + {rows}.shape[0]:]])"
