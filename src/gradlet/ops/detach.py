"""A value that counts as a constant from here on: no gradient passes."""

from __future__ import annotations

from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import Lowering, register
from gradlet.ops.importer import Call, Importer, from_torch
from gradlet.ops.lib.pointwise import Pointwise, strided_copy


@register
class Detach(Pointwise):
    name = "detach"
    inputs = ("x",)
    linear = True
    exact = True
    view = True
    stops = True

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0],)

    def lower(self, site: Site) -> Lowering:
        return strided_copy((site.outs[0].elements,), (1,))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.detach()"


@from_torch("aten.detach.default", "aten.detach_.default")
def _torch_detach(imp: Importer, call: Call) -> str:
    return imp.add("detach", [imp.tensor(call.args[0])])
