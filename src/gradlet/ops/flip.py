"""Dimensions walked backwards; the op is its own adjoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, ints, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_torch
from gradlet.ops.lib.pointwise import row_major, same_index_axes, strided_copy


@register
class Flip(Op):
    name = "flip"
    inputs = ("x",)
    linear = True
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if any(axis not in range(len(ins[0])) for axis in ints(attrs, "axes")):
            raise ShapeError(f"axes {ints(attrs, 'axes')} are outside the shape")
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.flip(ins[0], ints(attrs, "axes")),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add("flip", [grads[0]], site.attrs)}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("x", "y"), ints(site.attrs, "axes"))

    def lower(self, site: Site) -> Lowering:
        shape, turned = site.outs[0].shape, ints(site.attrs, "axes")
        strides = row_major(shape)
        walked = tuple(-step if dim in turned else step for dim, step in enumerate(strides))
        return strided_copy(shape, walked, sum((shape[dim] - 1) * strides[dim] for dim in turned))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.flip({ints(attrs, 'axes')})"


def flipped(imp: Importer, x: str, axes: Sequence[int]) -> str:
    """x backwards along these dimensions, as far as there is anything to turn round."""
    shape = imp.shape(x)
    turned = tuple(sorted({axis % len(shape) for axis in axes if shape[axis] > 1}))
    return imp.add("flip", [x], {"axes": turned}) if turned else x


@from_torch("aten.flip.default")
def _torch_flip(imp: Importer, call: Call) -> str:
    return flipped(imp, imp.tensor(call.args[0]), call.args[1])
