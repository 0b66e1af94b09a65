"""Further spellings of views and copies, by which PyTorch's own layers and their users write."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.shape import swapped


@from_torch("aten.unflatten.int")
def _torch_unflatten(imp: Importer, call: Call) -> str:
    x, (dim, sizes) = imp.tensor(call.args[0]), call.args[1:3]
    shape = imp.shape(x)
    dim %= len(shape)
    parts = [int(n) for n in sizes]
    if -1 in parts:
        known = int(np.prod([n for n in parts if n != -1], dtype=int))
        parts[parts.index(-1)] = shape[dim] // max(known, 1)
    return imp.add("reshape", [x], {"shape": (*shape[:dim], *parts, *shape[dim + 1 :])})


@from_torch("aten.mT.default", "aten.adjoint.default", "aten.matrix_H.default")
def _torch_turned(imp: Importer, call: Call) -> str:
    return swapped(imp, imp.tensor(call.args[0]))


@from_torch("aten.swapaxes.default", "aten.swapdims.default")
def _torch_swapaxes(imp: Importer, call: Call) -> str:
    return swapped(imp, imp.tensor(call.args[0]), *call.args[1:3])


@from_torch("aten.movedim.int", "aten.movedim.intlist")
def _torch_movedim(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    rank = len(imp.shape(x))
    order = list(range(rank))
    sources, goals = (
        [d % rank for d in ([dims] if isinstance(dims, int) else dims)] for dims in call.args[1:3]
    )
    rest = iter(d for d in order if d not in sources)
    axes = [sources[goals.index(d)] if d in goals else next(rest) for d in order]
    return x if axes == order else imp.add("transpose", [x], {"axes": tuple(axes)})


@from_torch("aten.expand_as.default", "aten.view_as.default", "aten.reshape_as.default")
def _torch_like(imp: Importer, call: Call) -> str:
    x, other = (imp.tensor(value) for value in call.args[:2])
    op = "expand" if "expand" in call.target else "reshape"
    shape = imp.shape(other)
    return x if imp.shape(x) == shape else imp.add(op, [x], {"shape": shape})


@from_torch("aten.repeat.default", "aten.tile.default")
def _torch_repeat(imp: Importer, call: Call) -> str:
    x, times = imp.tensor(call.args[0]), [int(n) for n in call.args[1]]
    rank = len(imp.shape(x))
    if call.target == "aten.tile.default":
        times = [1] * (rank - len(times)) + times
    return repeated(imp, x, times)


@from_onnx("Tile")
def _onnx_tile(imp: Importer, call: Call) -> str:
    return repeated(imp, imp.param(call.args[0]), [int(n) for n in imp.static(call.args[1])])


def repeated(imp: Importer, x: str, times: Sequence[int]) -> str:
    """x laid side by side; `times` may have more dimensions than x."""
    shape = (1,) * (len(times) - len(imp.shape(x))) + imp.shape(x)
    if min(times) < 1:
        raise imp.unsupported("a tensor repeated less than once")
    result = tuple(n * count for n, count in zip(shape, times, strict=True))
    if result == imp.shape(x):
        return x
    y = x
    for axis in reversed(range(len(shape))):  # one by one: no kernel gets more than 3 dimensions
        if times[axis] > 1:
            before, behind = prod(shape[:axis]), shape[axis] * prod(result[axis + 1 :])
            y = imp.add("reshape", [y], {"shape": (before, 1, behind)})
            y = imp.add("expand", [y], {"shape": (before, times[axis], behind)})
    return imp.add("reshape", [y], {"shape": result})
