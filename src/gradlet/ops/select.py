"""One of two tensors by a mask, element by element, and all that front ends make of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import Lowering, register
from gradlet.ops.compare import LARGEST, compared, truth
from gradlet.ops.elementwise import operand, reduce_to
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.lib.pointwise import Broadcast, broadcast
from gradlet.ops.mask import choose, fill, storable, uniform


@register
class Select(Broadcast):
    """a where the mask is positive, else b."""

    name = "select"
    inputs = ("mask", "a", "b")
    exact = True
    overwrites = inputs

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.where(ins[0] > 0, ins[1], ins[2]),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        found = {}
        for slot, tensor in zip(("a", "b"), site.ins[1:], strict=True):
            if slot in wanted:
                attrs: Attrs = {"value": 0.0, "keep": slot == "a"}
                passed = emit.add("masked_fill", [grads[0], site.node.inputs[0]], attrs)
                found[slot] = reduce_to(emit, passed, tensor.shape)
        return found

    def lower(self, site: Site) -> Lowering:
        return Lowering("select", "choose", self.walked(site))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"torch.where({ins[0]} > 0, {ins[1]}, {ins[2]})"


def replaced(imp: Importer, x: str, mask: str, value: float, *, keep: bool = False) -> str:
    """x with a number where the mask holds; to keep x there, everywhere else."""
    return imp.add("masked_fill", [x, mask], {"value": storable(imp, value), "keep": keep})


def selected(imp: Importer, mask: str, a: Any, b: Any) -> str:
    """a where the mask holds, else b; either may be a number."""
    for value, other, keep in ((b, a, True), (a, b, False)):
        number, known = uniform(imp, value), imp.fixed(value)
        if number is None or known is None:
            continue
        x = _tensor(imp, other)
        plain = broadcast(imp.shape(x), imp.shape(mask))
        if broadcast(plain, known.shape) == plain:
            return replaced(imp, x, mask, number, keep=keep)
    return imp.add("select", [mask, _tensor(imp, a), _tensor(imp, b)])


def _tensor(imp: Importer, value: Any) -> str:
    return operand(imp, value) if isinstance(value, int | float) else imp.param(value)


def _condition(imp: Importer, value: Any) -> Array | None:
    known = imp.fixed(value)
    return None if known is None else np.asarray(known, dtype=bool)


@from_torch("aten.masked_fill.Scalar", "aten.masked_fill_.Scalar")
@from_torch("aten.masked_fill.Tensor", "aten.masked_fill_.Tensor")
def _torch_masked_fill(imp: Importer, call: Call) -> str:
    x, mask, value = call.args[:3]
    known, number = _condition(imp, mask), uniform(imp, value)
    if known is not None and number is not None:
        return fill(imp, imp.tensor(x), known, number)
    return selected(imp, truth(imp, mask), value, x)


@from_torch("aten.where.self", "aten.where.Scalar")
@from_torch("aten.where.ScalarOther", "aten.where.ScalarSelf")
@from_onnx("Where")
def _where(imp: Importer, call: Call) -> str:
    condition, a, b = call.args[:3]
    known = _condition(imp, condition)
    if known is not None:
        return choose(imp, known, a, b)
    return selected(imp, truth(imp, condition), a, b)


def limited(imp: Importer, x: str, low: Any, high: Any) -> str:
    """x within bounds that are tensors; on a bound the gradient is that of x."""
    for bound, name in ((low, "lt"), (high, "gt")):
        if bound is not None:
            edge = operand(imp, bound)
            x = imp.add("select", [compared(imp, name, x, edge), edge, x])
    return x


@from_torch("aten.clamp.Tensor", "aten.clamp_.Tensor")
@from_torch("aten.clamp_min.Tensor", "aten.clamp_max.Tensor")
def _torch_clamp(imp: Importer, call: Call) -> str:
    x, low = imp.tensor(call.args[0]), call.arg(1)
    if "clamp_max" in call.target:
        return limited(imp, x, None, low)
    return limited(imp, x, low, None if "clamp_min" in call.target else call.arg(2))


@from_torch("aten.nan_to_num.default", "aten.nan_to_num_.default")
def _torch_nan_to_num(imp: Importer, call: Call) -> str:
    """Nothing passes where a number was put in."""
    x, nan = imp.tensor(call.args[0]), float(call.arg(1, 0.0))
    high, low = float(call.arg(2, LARGEST)), float(call.arg(3, -LARGEST))
    y = replaced(imp, x, imp.add("ne", [x, x]), nan)
    edges = ((imp.add("neg", [x]), low), (x, high))
    for size, value in edges:
        y = replaced(imp, y, imp.add("gt", [size, operand(imp, LARGEST)]), value)
    return y
