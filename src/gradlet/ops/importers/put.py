"""A tensor with some of its elements replaced, at places that are known beforehand.

It is made of pieces: what is kept and what is new, joined. Where the places are no region, both are
put one after the other, and the result is looked up in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.ir.graph import Array, Shape
from gradlet.ops.crop import sliced
from gradlet.ops.importer import Call, Importer, from_torch
from gradlet.ops.importers.lookup import chosen
from gradlet.ops.importers.scatter import put_points


def put(imp: Importer, x: str, places: Array, value: str) -> str:
    """x with `value` at these places, which are numbers of its elements, none of them twice."""
    shape = imp.shape(x)
    value = spread(imp, value, places.shape)
    order = _order(places)
    if order != tuple(sorted(order)):
        value, places = imp.add("transpose", [value], {"axes": order}), places.transpose(order)
    flat = places.reshape(-1)
    if flat.size == 0:
        return x
    if flat.size == _count(shape) and (np.diff(flat) == 1).all():
        return _as(imp, value, shape)
    region = _region(flat, shape)
    if region is not None:
        return _joined(imp, x, _as(imp, value, tuple(b - a for a, b in region)), region, 0)
    return _looked_up(imp, x, flat, value)


def _order(places: Array) -> tuple[int, ...]:
    """The dimensions of a view by their steps, the largest first: those of a permutation become
    the ones that it was made from."""
    corner = (0,) * places.ndim
    steps = [
        int(places[(*corner[:d], 1, *corner[d + 1 :])] - places[corner]) if size > 1 else 0
        for d, size in enumerate(places.shape)
    ]
    moved = sorted((d for d in range(places.ndim) if places.shape[d] > 1), key=lambda d: -steps[d])
    turn = iter(moved)
    return tuple(next(turn) if size > 1 else d for d, size in enumerate(places.shape))


def _as(imp: Importer, x: str, shape: Shape) -> str:
    return x if imp.shape(x) == shape else imp.add("reshape", [x], {"shape": shape})


def spread(imp: Importer, x: str, shape: Shape) -> str:
    """x, broadcast to a shape."""
    own = imp.shape(x)
    while len(own) > len(shape) and own[0] == 1:
        own = own[1:]
    x = _as(imp, x, own)
    return x if own == shape else imp.add("expand", [x], {"shape": shape})


def _region(flat: Array, shape: Shape) -> list[tuple[int, int]] | None:
    """The ranges of the dimensions that the places are, all of them and in order."""
    along = np.unravel_index(flat, shape) if shape else ()
    region = [(int(index.min()), int(index.max()) + 1) for index in along]
    if _count(tuple(b - a for a, b in region)) != flat.size:
        return None
    inside = _numbers(shape)[tuple(slice(a, b) for a, b in region)].reshape(-1)
    return region if (inside == flat).all() else None


def _joined(imp: Importer, x: str, value: str, region: Sequence[tuple[int, int]], dim: int) -> str:
    """x with the value in a region; before the dimension `dim` x is no larger than that."""
    if dim == len(region):
        return value
    (begin, end), size = region[dim], imp.shape(x)[dim]
    middle = x if (begin, end) == (0, size) else sliced(imp, x, [(dim, begin, end, 1)])
    parts = [sliced(imp, x, [(dim, 0, begin, 1)])] if begin else []
    parts.append(_joined(imp, middle, value, region, dim + 1))
    parts += [sliced(imp, x, [(dim, end, size, 1)])] if end < size else []
    return parts[0] if len(parts) == 1 else imp.add("concat", parts, {"axis": dim})


def _looked_up(imp: Importer, x: str, flat: Array, value: str) -> str:
    shape = imp.shape(x)
    count = _count(shape)
    index = np.arange(count)
    index[flat] = count + np.arange(flat.size)
    both = imp.add(
        "concat", [_as(imp, x, (count, 1)), _as(imp, value, (flat.size, 1))], {"axis": 0}
    )
    found = imp.add("gather", [both, imp.constant(index.astype(np.int32))], {"skip": -1})
    return _as(imp, found, shape)


@from_torch("aten.copy_.default", "aten.copy.default")
def _torch_copy(imp: Importer, call: Call) -> str:
    return spread(imp, imp.tensor(call.args[1]), imp.shape(imp.tensor(call.args[0])))


@from_torch("aten.fill_.Scalar", "aten.fill_.Tensor", "aten.fill.Scalar", "aten.zero_.default")
def _torch_fill(imp: Importer, call: Call) -> str:
    shape = imp.shape(imp.tensor(call.args[0]))
    if hasattr(call.arg(1), "meta"):
        return spread(imp, imp.tensor(call.args[1]), shape)
    number = 0.0 if "zero" in call.target else float(call.args[1])
    return imp.constant(np.full(shape, number, np.float64))


@from_torch("aten.slice_scatter.default", "aten.select_scatter.default")
def _torch_scatter(imp: Importer, call: Call) -> str:
    x, value = (imp.tensor(v) for v in call.args[:2])
    shape = imp.shape(x)
    dim = int(call.arg(2, 0)) % len(shape)
    index: Any = slice(*(call.arg(i) for i in (3, 4, 5)))
    if "select" in call.target:
        index = int(call.args[3])
    return put(imp, x, _numbers(shape)[(*(slice(None),) * dim, index)], value)


@from_torch("aten.index_put.default", "aten.index_put_.default")
def _torch_index_put(imp: Importer, call: Call) -> str:
    x, value, add = imp.tensor(call.args[0]), imp.tensor(call.args[2]), bool(call.arg(3, False))
    known = [slice(None) if i is None else imp.fixed(i) for i in call.args[1]]
    if any(index is None for index in known) and imp.kind(call.args[1][0]) == "bool":
        return _put_by_mask(imp, x, call.args[1], value, add=add)
    if add or any(index is None for index in known):
        return put_points(imp, x, *chosen(imp, call.args[1]), value, add=add)
    places = _numbers(imp.shape(x))[tuple(known)]
    if len(np.unique(places)) != places.size:
        raise imp.unsupported("an element is written twice; write each one once")
    return put(imp, x, places, value)


def _put_by_mask(imp: Importer, x: str, masks: Sequence[Any], value: str, *, add: bool) -> str:
    """x[mask] = value with a mask from the data, over the first dimensions: one value for all."""
    mask, shape = imp.tensor(masks[0]), imp.shape(x)
    rest = shape[len(imp.shape(mask)) :]
    own = imp.shape(value)
    if len(masks) > 1 or add or len(own) > len(rest):
        raise imp.unsupported(
            "a mask from the data beside values for each place; torch.where(mask, value, x) does it"
        )
    mask = _as(imp, mask, (*imp.shape(mask), *(1,) * len(rest)))
    return imp.add("select", [mask, value, x])


def _count(shape: Shape) -> int:
    return int(np.prod(shape, dtype=int))


def _numbers(shape: Shape) -> Array:
    return np.arange(_count(shape)).reshape(shape)
