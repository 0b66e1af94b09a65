"""A value that counts as a constant from here on: no gradient passes."""

from __future__ import annotations

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Emitter, Gradients, Lowering, Names, Op, Size, register
from gradlet.ops.importer import Call, Importer, from_torch
from gradlet.ops.lib.pointwise import padded, same_index_axes


@register
class Detach(Op):
    name = "detach"
    inputs = ("x",)
    linear = True
    exact = True
    view = True
    stops = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0],)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("x", "y"))

    def lower(self, site: Site) -> Lowering:
        sizes: dict[str, Size] = {
            "extent": padded((site.outs[0].elements,), 1),
            "x_step": padded((1,), 0),
            "x_start": 0,
        }
        return Lowering("permute", "copy", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.detach()"


@from_torch("aten.detach.default", "aten.detach_.default")
def _torch_detach(imp: Importer, call: Call) -> str:
    return imp.add("detach", [imp.tensor(call.args[0])])
