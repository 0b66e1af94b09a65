"""Elements replaced by a number where a mask says so, and no gradient through them.

Minus infinity, which blocks a place of a softmax, is stored as a number so low that nothing is
left of its exponential, and so far from the end of the range that sums and scales stay finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradlet.ir.graph import Array, Attrs, Site
from gradlet.ops.base import Arrays, Lowering, number, register
from gradlet.ops.elementwise import reduce_to
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_torch
from gradlet.ops.lib.pointwise import Broadcast, broadcast

BLOCKED = -(2.0**100)


@register
class MaskedFill(Broadcast):
    """A number where the mask is positive, else x; or the other way round, to `keep` x there."""

    name = "masked_fill"
    inputs = ("x", "mask")
    overwrites = ("x",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.where(_replaced(attrs, ins[1]), number(attrs, "value"), ins[0]),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """x is copied; the number is rounded, unless float32 has it."""
        value = number(attrs, "value")
        inexact = value if value != float(np.float32(value)) else 0.0
        return (np.where(_replaced(attrs, ins[1]), inexact, np.zeros_like(results[0])),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        attrs = {**site.attrs, "value": 0.0}
        passed = emit.add("masked_fill", [grads[0], site.node.inputs[1]], attrs)
        return {"x": reduce_to(emit, passed, site.ins[0].shape)}

    def lower(self, site: Site) -> Lowering:
        value = number(site.attrs, "value")
        mode = "keep" if _keeps(site.attrs) else "fill"
        return Lowering("mask", mode, {**self.walked(site), "value": value})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        holds = "<= 0" if _keeps(attrs) else "> 0"
        return f"torch.where({ins[1]} {holds}, {number(attrs, 'value')!r}, {ins[0]})"


def _keeps(attrs: Attrs) -> bool:
    return bool(attrs.get("keep", False))


def _replaced(attrs: Attrs, mask: Array) -> Array:
    found: Array = mask <= 0 if _keeps(attrs) else mask > 0
    return found


def storable(imp: Importer, value: float) -> float:
    """A number that takes the place of others; minus infinity as what stands for it."""
    value = BLOCKED if value == -np.inf else value
    if not np.isfinite(value):
        raise imp.unsupported(f"{value} in a mask; only minus infinity blocks something")
    return value


def fill(imp: Importer, x: str, where: Array, value: float) -> str:
    """x with a number in the places that are true in a mask known beforehand."""
    value = storable(imp, value)
    result = broadcast(imp.shape(x), where.shape)
    if not where.any() and result == imp.shape(x):
        return x
    small = _compressed(where)
    if broadcast(imp.shape(x), small.shape) != result:
        small = where
    mask = imp.constant(small.astype(np.float32))
    return imp.add("masked_fill", [x, mask], {"value": value})


def _compressed(mask: Array) -> Array:
    """The mask without dimensions along which it does not change."""
    for axis in range(mask.ndim):
        first = mask.take([0], axis=axis)
        if (mask == first).all():
            mask = first
    while mask.ndim and mask.shape[0] == 1:
        mask = mask[0]
    return mask


def add_constant(imp: Importer, x: str, constant: Array) -> str:
    """x plus a constant that is minus infinity, or as good as that, in places."""
    blocked = constant <= BLOCKED
    if not np.isfinite(constant[~blocked]).all():
        raise imp.unsupported("a constant with NaN or infinity")
    rest = np.where(blocked, 0, constant).astype(np.float32)
    if rest.any():
        x = imp.add("add", [x, imp.constant(rest)])
    return fill(imp, x, blocked, -np.inf)


def uniform(imp: Importer, value: Any) -> float | None:
    """The number that an operand is everywhere, if it is known and one."""
    array = imp.fixed(value)
    if array is None or array.size == 0 or not (array == array.reshape(-1)[0]).all():
        return None
    return float(array.reshape(-1)[0])


def choose(imp: Importer, condition: Array, a: Any, b: Any) -> str:
    """a where the condition holds, else b; one of them may be a number."""
    for value, other, where in ((b, a, ~condition), (a, b, condition)):
        constant, known = uniform(imp, value), imp.fixed(value)
        if constant is not None and known is not None and imp.fixed(other) is None:
            shape = broadcast(where.shape, known.shape)
            return fill(imp, imp.param(other), np.broadcast_to(where, shape), constant)
    parts = [fill(imp, imp.param(v), w, 0.0) for v, w in ((a, ~condition), (b, condition))]
    return imp.add("add", parts)


@from_torch("aten.tril.default", "aten.triu.default")
def _torch_triangle(imp: Importer, call: Call) -> str:
    x, diagonal = imp.tensor(call.args[0]), int(call.arg(1, 0))
    rows, columns = np.indices(imp.shape(x)[-2:])
    above = columns - rows
    gone = above > diagonal if call.target == "aten.tril.default" else above < diagonal
    return fill(imp, x, gone, 0.0)
