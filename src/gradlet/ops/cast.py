"""Casts: the same numbers as another element type has them. One op for each type that computes."""

from __future__ import annotations

from typing import ClassVar

from gradlet.ir.elements import ELEMENTS, F32
from gradlet.ir.graph import Array, Attrs, Site, Tensor
from gradlet.ops.base import ShapeError, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.pointwise import Pointwise


class _Cast(Pointwise):
    inputs = ("x",)
    to: ClassVar[str]

    def check_dtypes(self, *ins: Tensor) -> None:
        super().check_dtypes(*ins)
        if {ins[0].dtype, self.to} & {F32.name} == set() or ins[0].dtype == self.to:
            raise ShapeError(f"'{ins[0].name}' holds {ins[0].dtype}; casts are from or to f32")

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return (self.to,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (ins[0],)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add(name_of(site.ins[0].dtype), [grads[0]])}

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.clone()"  # a tensor of its own, which has a gradient of its own


def name_of(dtype: str) -> str:
    """The op that casts to an element type."""
    return f"to_{dtype}"


for _element in ELEMENTS.values():
    if _element.is_float:
        _facts = {
            "name": name_of(_element.name),
            "to": _element.name,
            "exact": _element == F32,
            "kernel": ("cast", "widen" if _element == F32 else "narrow"),
        }
        register(type(f"To{_element.name.title()}", (_Cast,), _facts))
