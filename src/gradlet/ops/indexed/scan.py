"""Running sums along a dimension, from either end, with or without the element itself."""

from __future__ import annotations

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, integer, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.lib.pointwise import same_index_axes, split_at


@register
class CumSum(Op):
    name = "cumsum"
    counts = True
    inputs = ("x",)
    linear = True
    additions = 1

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if integer(attrs, "axis") not in range(len(ins[0])):
            raise ShapeError(f"there is no dimension {attrs['axis']}")
        return super().shape(attrs, *ins)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        axis = integer(attrs, "axis")
        x = np.flip(ins[0], axis) if attrs["reverse"] else ins[0]
        y = np.cumsum(x, axis)
        y = y - x if attrs["exclusive"] else y
        return (np.flip(y, axis) if attrs["reverse"] else y,)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        back = {**site.attrs, "reverse": not site.attrs["reverse"]}
        return {"x": emit.add("cumsum", [grads[0]], back)}

    def roundings(self, site: Site, out: Tensor) -> float:
        return float(out.shape[integer(site.attrs, "axis")])

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("x", "y"), (integer(site.attrs, "axis"),))

    def lower(self, site: Site) -> Lowering:
        axis, shape = integer(site.attrs, "axis"), site.outs[0].shape
        sizes = {
            **split_at(shape, axis, length=shape[axis]),
            "reverse": int(bool(site.attrs["reverse"])),
            "exclusive": int(bool(site.attrs["exclusive"])),
        }
        return Lowering("scan", "sum", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        axis, x = attrs["axis"], ins[0]
        turned = f"{x}.flip({axis})" if attrs["reverse"] else x
        y = f"{turned}.cumsum({axis})"
        y = f"{y}.flip({axis})" if attrs["reverse"] else y
        return f"({y} - {x})" if attrs["exclusive"] else y


def _cumsum(imp: Importer, x: str, axis: int, *, reverse: bool, exclusive: bool) -> str:
    attrs = {"axis": axis % len(imp.shape(x)), "reverse": reverse, "exclusive": exclusive}
    return imp.add("cumsum", [x], attrs)


@from_torch("aten.cumsum.default", "aten.cumsum_.default")
def _torch_cumsum(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    return _cumsum(imp, x, int(call.args[1]), reverse=False, exclusive=False)


@from_onnx("CumSum")
def _onnx_cumsum(imp: Importer, call: Call) -> str:
    x, axis = imp.tensor(call.args[0]), int(imp.static(call.args[1]).reshape(()))
    reverse, exclusive = (bool(call.attrs.get(key, 0)) for key in ("reverse", "exclusive"))
    return _cumsum(imp, x, axis, reverse=reverse, exclusive=exclusive)
