"""The largest or smallest elements of every line along a dimension, in order, and their places."""

from __future__ import annotations

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Work, integer, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.pointwise import same_index_axes, split_at


@register
class Sort(Op):
    """The first `count` of the sorted elements: largest first, or smallest first. Of equal ones
    that comes first which stands first; NaN counts as the largest."""

    name = "sort"
    inputs = ("x",)
    outputs = ("y", "order")
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        axis, count = integer(attrs, "axis"), integer(attrs, "count")
        if axis not in range(len(ins[0])):
            raise ShapeError(f"there is no dimension {axis}")
        if not 1 <= count <= ins[0][axis]:
            raise ShapeError(f"{count} of {ins[0][axis]} elements")
        return ((*ins[0][:axis], count, *ins[0][axis + 1 :]),) * 2

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return (ins[0], "i32")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        x, axis = ins[0], integer(attrs, "axis")
        keys = (x, np.isnan(x)) if not attrs["largest"] else (-x, ~np.isnan(x))
        first = [slice(None)] * axis + [slice(integer(attrs, "count"))]
        order = np.lexsort(keys, axis)[tuple(first)]
        return (np.take_along_axis(x, order, axis), order.astype(np.int32))

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        axis = integer(site.attrs, "axis")
        attrs = {"axis": axis, "length": site.ins[0].shape[axis]}
        return {"x": emit.add("put_sum", [grads[0], site.node.outputs[1]], attrs)}

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        but = (integer(site.attrs, "axis"),)
        return same_index_axes(site.outs[0].shape, ("x", "y", "order"), but)

    def lower(self, site: Site) -> Lowering:
        axis, shape = integer(site.attrs, "axis"), site.ins[0].shape
        sizes = {
            **split_at(shape, axis, length=shape[axis], count=integer(site.attrs, "count")),
            "largest": int(bool(site.attrs["largest"])),
        }
        return Lowering("sort", "lines", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        how = f"dim={attrs['axis']}, descending={bool(attrs['largest'])}, stable=True"
        first = f"part.narrow({attrs['axis']}, 0, {attrs['count']})"
        return f"tuple({first} for part in {ins[0]}.sort({how}))"
