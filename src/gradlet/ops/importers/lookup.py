"""How the front ends spell lookups: rows, elements of lines, and points by several indices.

Indices that are known beforehand become slices where they are evenly spaced. Others are looked up
on the device, where negative ones count from the end if they do so in the front end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.ir.graph import Array, Shape
from gradlet.ops.crop import sliced
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.indexed.gather import NONE
from gradlet.ops.shape import reshaped, transposed


class Made(str):
    """The name of a tensor, in place of an operand of the front end."""


def fixed(imp: Importer, value: Any) -> Array | None:
    """The value of an operand, of an array, or of nothing that is known."""
    if isinstance(value, np.ndarray):
        return value
    return None if isinstance(value, Made) else imp.fixed(value)


def tensor(imp: Importer, value: Any) -> str:
    return value if isinstance(value, Made) else imp.tensor(value)


def inside(imp: Importer, known: Array, extent: int) -> Array:
    """Indices known beforehand, counted from the start."""
    if known.dtype == bool:
        raise imp.unsupported("a choice by booleans; give the indices")
    if known.min(initial=0) < -extent or known.max(initial=0) >= extent:
        raise imp.unsupported(f"indices from {known.min()} to {known.max()} into {extent} rows")
    return np.where(known < 0, known + extent, known).astype(np.int32)


def index_operand(imp: Importer, value: Any, extent: int, *, negative: bool) -> str:
    """Indices as a tensor; `negative` ones may be among those that come at run time."""
    known = fixed(imp, value)
    if known is not None:
        return imp.constant(inside(imp, known, extent))
    index = tensor(imp, value)
    if negative and not (imp.dtype(index) == "i32" and _is_place(imp, index)):
        return imp.add("flat_index", [index], {"size": extent})
    return index


def _is_place(imp: Importer, index: str) -> bool:
    """Whether a tensor of integers is what sorting made, or an input: a row as it is."""
    node = imp.producer(index)
    return node is None or node.op == "sort"


def _stride(rows: Array) -> int:
    """The step between neighbours, if it is always the same."""
    flat = rows.reshape(-1)
    step = int(flat[1] - flat[0]) if flat.size > 1 else 1
    return step if flat.size and step > 0 and (np.diff(flat) == step).all() else 0


def along(imp: Importer, x: str, axis: int, index: Any, *, skip: int = NONE) -> str:
    """Elements of one dimension by an operand of indices, whose dimensions take its place. The row
    `skip` gets no gradient."""
    shape = imp.shape(x)
    axis %= len(shape)
    known = fixed(imp, index)
    rows = None if known is None else inside(imp, known, shape[axis])
    if rows is not None and skip not in rows and (step := _stride(rows)):
        first, last = int(rows.reshape(-1)[0]), int(rows.reshape(-1)[-1])
        y = sliced(imp, x, [(axis, first, last + 1, step)])
        return reshaped(imp, y, (*shape[:axis], *rows.shape, *shape[axis + 1 :]))
    where = index_operand(imp, index, shape[axis], negative=skip == NONE)
    return _looked_up(imp, x, axis, where, skip)


def _looked_up(imp: Importer, x: str, axis: int, index: str, skip: int = NONE) -> str:
    if axis == 0:
        return imp.add("gather", [x, index], {"skip": skip})
    shape, places = imp.shape(x), imp.shape(index)
    count = int(np.prod(places, dtype=int))
    shared = tuple(count if dim == axis else 1 for dim in range(len(shape)))
    y = imp.add("take", [x, reshaped(imp, index, shared)], {"axis": axis})
    return reshaped(imp, y, (*shape[:axis], *places, *shape[axis + 1 :]))


def flat_places(imp: Importer, indices: Sequence[Any], extents: Sequence[int]) -> Any:
    """Indices into several dimensions as indices into the one that they are together: an array if
    all are known, else the name of a tensor."""
    known = [fixed(imp, value) for value in indices]
    if all(value is not None for value in known):
        rows = [inside(imp, v, n) for v, n in zip(known, extents, strict=True) if v is not None]
        return np.ravel_multi_index(np.broadcast_arrays(*rows), tuple(extents))
    flat: list[str] = []
    for value, extent in zip(indices, extents, strict=True):
        index = index_operand(imp, value, extent, negative=False)
        flat = [imp.add("flat_index", [index, *flat], {"size": extent})]
    return flat[0]


def points(imp: Importer, x: str, dims: Sequence[int], indices: Sequence[Any]) -> str:
    """x[.., index, .., index, ..] as PyTorch and numpy mean it."""
    shape = imp.shape(x)
    if len(dims) == 1:
        return along(imp, x, dims[0], indices[0])
    together = list(range(dims[0], dims[-1] + 1)) == list(dims)
    first = dims[0] if together else 0
    rest = [dim for dim in range(len(shape)) if dim not in dims]
    order = [*rest[:first], *dims, *rest[first:]]
    x = transposed(imp, x, order)
    extents = [shape[dim] for dim in dims]
    flat = flat_places(imp, indices, extents)
    own = imp.shape(x)
    line = reshaped(imp, x, (*own[:first], -1, *own[first + len(dims) :]))
    if isinstance(flat, np.ndarray):
        return _known_along(imp, line, first, flat)
    return _looked_up(imp, line, first, flat)


def _known_along(imp: Importer, x: str, axis: int, rows: Array) -> str:
    if step := _stride(rows):
        flat, shape = rows.reshape(-1), imp.shape(x)
        y = sliced(imp, x, [(axis, int(flat[0]), int(flat[-1]) + 1, step)])
        return reshaped(imp, y, (*shape[:axis], *rows.shape, *shape[axis + 1 :]))
    return _looked_up(imp, x, axis, imp.constant(rows.astype(np.int32)))


def chosen(imp: Importer, values: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Dimensions and their indices; booleans known beforehand are the places where they hold."""
    dims: list[int] = []
    indices: list[Any] = []
    dim = 0
    for value in values:
        known = None if value is None else fixed(imp, value)
        if known is not None and known.dtype == bool:
            for places in known.nonzero():
                dims.append(dim)
                indices.append(places)
                dim += 1
            continue
        if value is not None:
            dims.append(dim)
            indices.append(value)
        dim += 1
    return dims, indices


@from_torch("aten.embedding.default")
def _torch_embedding(imp: Importer, call: Call) -> str:
    table = imp.tensor(call.args[0])
    skip = int(call.arg(2, NONE))
    skip = skip % imp.shape(table)[0] if skip >= 0 else NONE
    if fixed(imp, call.args[1]) is not None:
        return along(imp, table, 0, call.args[1], skip=skip)
    return imp.add("gather", [table, imp.tensor(call.args[1])], {"skip": skip})


@from_torch("aten.index_select.default")
def _torch_index_select(imp: Importer, call: Call) -> str:
    return along(imp, imp.tensor(call.args[0]), int(call.args[1]), call.args[2])


@from_torch("aten.index.Tensor")
def _torch_index(imp: Importer, call: Call) -> str:
    """x[:, index, :, index]: some dimensions by operands of indices, all of the others."""
    dims, indices = chosen(imp, call.args[1])
    return points(imp, imp.tensor(call.args[0]), dims, indices)


@from_onnx("Gather")
def _onnx_gather(imp: Importer, call: Call) -> str:
    return along(imp, imp.param(call.args[0]), int(call.attrs.get("axis", 0)), call.args[1])


def fitted(imp: Importer, x: str, shape: Shape, axis: int) -> str:
    """x cut to a shape in all dimensions but one, as an index may be smaller than it."""
    cuts = [(d, 0, n, 1) for d, n in enumerate(shape) if d != axis and n != imp.shape(x)[d]]
    return sliced(imp, x, cuts) if cuts else x


def lines_index(imp: Importer, value: Any, extent: int, axis: int, *, negative: bool) -> str:
    """An index with an entry per element; one entry per place if all lines have the same."""
    known = fixed(imp, value)
    if known is None:
        return index_operand(imp, value, extent, negative=negative)
    one = known[tuple(slice(None) if dim == axis else slice(1) for dim in range(known.ndim))]
    return imp.constant(inside(imp, one if (known == one).all() else known, extent))


def _elements(imp: Importer, x: str, axis: int, index: Any, shape: Shape, negative: bool) -> str:
    """torch.gather: x[.., index[..], ..] element by element, of the index's shape."""
    if not shape:  # a number: the only element
        return x
    axis %= len(shape)
    name = lines_index(imp, index, imp.shape(x)[axis], axis, negative=negative)
    return imp.add("take", [fitted(imp, x, shape, axis), name], {"axis": axis})


def index_shape(imp: Importer, value: Any) -> Shape:
    known = fixed(imp, value)
    return tuple(known.shape) if known is not None else imp.shape(tensor(imp, value))


@from_torch("aten.gather.default")
def _torch_gather(imp: Importer, call: Call) -> str:
    x, axis, index = imp.tensor(call.args[0]), int(call.args[1]), call.args[2]
    return _elements(imp, x, axis, index, index_shape(imp, index), False)


@from_torch("aten.take_along_dim.default")
def _torch_take_along_dim(imp: Importer, call: Call) -> str:
    """Both operands are broadcast, but for the dimension of the lines."""
    x, index, axis = imp.tensor(call.args[0]), call.args[1], call.arg(2)
    if axis is None:
        x, axis = reshaped(imp, x, (-1,)), 0
        known = fixed(imp, index)
        index = known.reshape(-1) if known is not None else index
    own, wanted = imp.shape(x), index_shape(imp, index)
    if len(own) != len(wanted):
        raise imp.unsupported(f"an index of {list(wanted)} into {list(own)}")
    axis %= len(own)
    shape = [max(n, m) for n, m in zip(own, wanted, strict=True)]
    large = (*shape[:axis], own[axis], *shape[axis + 1 :])
    small = (*shape[:axis], wanted[axis], *shape[axis + 1 :])
    x = x if own == large else imp.add("expand", [x], {"shape": large})
    known = fixed(imp, index)
    if known is None and wanted != small:
        numbers = imp.add("expand", [tensor(imp, index)], {"shape": small})
        return imp.add("take", [x, numbers], {"axis": axis})
    return _elements(
        imp, x, axis, index if known is None else np.broadcast_to(known, small), small, False
    )


@from_onnx("GatherElements")
def _onnx_gather_elements(imp: Importer, call: Call) -> str:
    x, index, axis = imp.param(call.args[0]), call.args[1], int(call.attrs.get("axis", 0))
    return _elements(imp, x, axis, index, index_shape(imp, index), True)


def onnx_points(imp: Importer, value: Any, batch: Sequence[int] = ()) -> list[Any]:
    """The last dimension of an operand of indices taken apart, behind the places in the batch."""
    shape = index_shape(imp, value)
    known = fixed(imp, value)
    lead = [np.arange(n).reshape(-1, *(1,) * (len(shape) - 2 - d)) for d, n in enumerate(batch)]
    if known is not None:
        return [*lead, *np.moveaxis(known, -1, 0)]
    parts: list[Any] = []
    for place in range(shape[-1]):
        cut = sliced(imp, tensor(imp, value), [(len(shape) - 1, place, place + 1, 1)])
        parts.append(Made(reshaped(imp, cut, shape[:-1])))
    return [*lead, *parts]


@from_onnx("GatherND")
def _onnx_gather_nd(imp: Importer, call: Call) -> str:
    x, batch = imp.param(call.args[0]), int(call.attrs.get("batch_dims", 0))
    indices = onnx_points(imp, call.args[1], imp.shape(x)[:batch])
    return points(imp, x, list(range(len(indices))), indices)
