"""Updates: plain SGD with weight decay, and the reset of a gradient accumulator.

`hyper` is a small tensor [learning rate, weight decay] that lives beside the weights, so that a
schedule changes it at run time.
"""

from __future__ import annotations

import numpy as np

from gradlet.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Work, register
from gradlet.ops.pointwise import same_index_axes

HYPER = ("lr", "weight_decay")


@register
class Sgd(Op):
    name = "sgd"
    inputs = ("w", "g", "hyper")
    outputs = ("w_next",)
    overwrites = ("w",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[0] != ins[1]:
            raise ShapeError("weight and gradient differ in shape")
        if ins[2] != (len(HYPER),):
            raise ShapeError(f"hyper-parameters are {HYPER}")
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        w, g, (lr, weight_decay) = ins
        return (w - lr * (g + weight_decay * w),)

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, 2 * site.outs[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("w", "g", "w_next"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("sgd", "update", {"count": site.outs[0].elements})


@register
class Reset(Op):
    name = "reset"
    inputs = ("x",)
    exact = True
    overwrites = ("x",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.zeros_like(ins[0]),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("x", "y"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("unary", "reset", {"count": site.outs[0].elements})
