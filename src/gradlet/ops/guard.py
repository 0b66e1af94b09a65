"""Indices that are none: what a model makes of them is NaN, and teaches nothing.

A lookup with a bad index reads zeros, so that all that is computed from it stays finite. That there
was one is told by `index_fault`, at the result of the model: it becomes NaN, and so does the loss;
on the way back the gradient stops there, whatever it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Size, integer, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.pointwise import Pointwise


@register
class IndexFault(Op):
    """NaN if an index leads out of its rows, or if another did before; else 0."""

    name = "index_fault"
    inputs = ("index", "before?")
    integers = ("index",)
    exact = True
    stops = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if len(ins) == 2 and ins[1] != (1,):
            raise ShapeError(f"a fault is one number, not {ins[1]}")
        return ((1,),)

    def check_dtypes(self, *ins: Tensor) -> None:
        if ins[0].dtype != "i32":
            raise ShapeError(f"'{ins[0].name}' holds {ins[0].dtype}; indices are integers")
        super().check_dtypes(*ins[1:])

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return ("f32",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        inside = (ins[0] >= 0) & (ins[0] < integer(attrs, "rows"))
        bad = not inside.all() or (len(ins) == 2 and bool(np.isnan(ins[1][0])))
        return (np.full(1, np.nan if bad else 0.0),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return ()

    def lower(self, site: Site) -> Lowering:
        sizes = {"count": site.ins[0].elements, "rows": integer(site.attrs, "rows")}
        return Lowering("guard", "fault", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        bad = f"(({ins[0]} < 0) | ({ins[0]} >= {attrs['rows']})).any().reshape(1)"
        before = f" | {ins[1]}.isnan()" if len(ins) == 2 else ""
        return f"torch.where({bad}{before}, torch.nan, 0.0).double()"


@register
class Guard(Pointwise):
    """x, or NaN everywhere if there was a fault."""

    name = "guard"
    inputs = ("x", "fault")
    overwrites = ("x",)
    exact = True
    whole = ("fault",)
    kernel = ("guard", "apply")
    sizes: ClassVar[Mapping[str, Size]] = {"rows": 0}

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[1] != (1,):
            raise ShapeError(f"a fault is one number, not {ins[1]}")
        return super().shape(attrs, *ins)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.where(np.isnan(ins[1][0]), np.nan, ins[0]),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add("guard_grad", [grads[0], site.node.inputs[1]])}

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"torch.where({ins[1]}.isnan(), torch.nan, {ins[0]})"


@register
class GuardGrad(Pointwise):
    """dy, or 0 everywhere if there was a fault."""

    name = "guard_grad"
    inputs = ("dy", "fault")
    outputs = ("dx",)
    overwrites = ("dy",)
    exact = True
    whole = ("fault",)
    kernel = ("guard", "grad")
    sizes: ClassVar[Mapping[str, Size]] = {"rows": 0}

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.where(np.isnan(ins[1][0]), 0.0, ins[0]),)
