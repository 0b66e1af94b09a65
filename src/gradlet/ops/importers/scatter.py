"""How the front ends spell writes by index: elements put into lines or added to them, one-hot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.ir.graph import Shape
from gradlet.ops.concat import cut, join
from gradlet.ops.crop import sliced
from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.importers.lookup import fitted, flat_places, index_shape, lines_index, onnx_points
from gradlet.ops.integers import NOWHERE
from gradlet.ops.shape import reshaped, transposed


def _placed(imp: Importer, x: str, axis: int, index: str, new: str, add: bool) -> str:
    """new at its places in the lines of x, or added there."""
    if not add:
        return imp.add("put", [x, index, new], {"axis": axis})
    attrs = {"axis": axis, "length": imp.shape(x)[axis]}
    return imp.add("add", [x, imp.add("put_sum", [new, index], attrs)])


def _into_part(
    imp: Importer, x: str, axis: int, index: str, new: str, shape: Shape, add: bool
) -> str:
    """The same where the index is smaller than x: the rest of x stays as it is."""
    for dim, extent in enumerate(shape):
        own = imp.shape(x)[dim]
        if dim != axis and extent < own:
            first, rest = cut(imp, x, [extent, own - extent], dim)
            return join(imp, [_into_part(imp, first, axis, index, new, shape, add), rest], dim)
    return _placed(imp, x, axis, index, new, add)


def _scattered(
    imp: Importer, x: str, axis: int, value: Any, new: str | float, *, add: bool, negative: bool
) -> str:
    shape = index_shape(imp, value)
    if not shape:
        raise imp.unsupported("an index without dimensions")
    axis %= len(shape)
    index = lines_index(imp, value, imp.shape(x)[axis], axis, negative=negative)
    if isinstance(new, str):
        new = sliced(imp, fitted(imp, new, shape, axis), [(axis, 0, shape[axis], 1)])
    else:
        new = imp.constant(np.full(shape, new, np.float64))
    return _into_part(imp, x, axis, index, new, shape, add)


@from_torch("aten.scatter.src", "aten.scatter.value", "aten.scatter_add.default")
def _torch_scatter(imp: Importer, call: Call) -> str:
    x, axis, index, new = call.args[:4]
    source = float(new) if isinstance(new, int | float) else imp.tensor(new)
    add = "scatter_add" in call.target
    return _scattered(imp, imp.tensor(x), int(axis), index, source, add=add, negative=False)


@from_torch("aten.scatter_reduce.two", "aten.scatter.reduce", "aten.scatter.value_reduce")
def _torch_scatter_reduce(imp: Importer, call: Call) -> str:
    x, axis, index, new, how = call.args[:5]
    if how not in ("sum", "add"):
        raise imp.unsupported(f"scattering by '{how}'; replacing and adding (sum) are there")
    if not call.arg(5, True):
        raise imp.unsupported("a sum without what was there; use scatter_add on zeros")
    source = float(new) if isinstance(new, int | float) else imp.tensor(new)
    return _scattered(imp, imp.tensor(x), int(axis), index, source, add=True, negative=False)


@from_torch("aten.index_add.default", "aten.index_copy.default", "aten.index_fill.int_Scalar")
def _torch_rows(imp: Importer, call: Call) -> str:
    """Whole rows along a dimension."""
    x, axis, value, new = imp.tensor(call.args[0]), int(call.args[1]), call.args[2], call.args[3]
    shape = imp.shape(x)
    axis %= len(shape)
    (count,) = index_shape(imp, value)
    wide = (*shape[:axis], count, *shape[axis + 1 :])
    index = lines_index(imp, value, shape[axis], 0, negative=False)
    index = reshaped(imp, index, [count if dim == axis else 1 for dim in range(len(shape))])
    if "index_fill" in call.target:
        source = imp.constant(np.full(wide, float(new), np.float64))
    else:
        source = imp.tensor(new)
    add = "index_add" in call.target
    source = affine(imp, source, float(call.arg(4, 1))) if add else source
    return _placed(imp, x, axis, index, source, add)


def put_points(
    imp: Importer, x: str, dims: Sequence[int], indices: Sequence[Any], new: str, *, add: bool
) -> str:
    """x[.., index, .., index, ..] = new, or += new, as PyTorch and numpy mean it."""
    shape = imp.shape(x)
    rest = [dim for dim in range(len(shape)) if dim not in dims]
    together = list(range(dims[0], dims[-1] + 1)) == list(dims)
    front = [*dims, *rest]
    flat = flat_places(imp, indices, [shape[dim] for dim in dims])
    places = flat.shape if isinstance(flat, np.ndarray) else imp.shape(flat)
    index = imp.constant(flat.astype(np.int32)) if isinstance(flat, np.ndarray) else flat
    count = int(np.prod(places, dtype=int))
    lead = dims[0] if together else 0  # of the dimensions that no index has, before the places
    wide = [shape[dim] for dim in rest]
    wide = [*wide[:lead], *places, *wide[lead:]]
    new = new if imp.shape(new) == tuple(wide) else imp.add("expand", [new], {"shape": tuple(wide)})
    order = [*range(lead, lead + len(places)), *range(lead), *range(lead + len(places), len(wide))]
    source = reshaped(imp, transposed(imp, new, order), (count, -1))
    lines = reshaped(imp, transposed(imp, x, front), (-1, imp.shape(source)[1]))
    y = _placed(imp, lines, 0, reshaped(imp, index, (count, 1)), source, add)
    y = reshaped(imp, y, [shape[dim] for dim in front])
    return transposed(imp, y, [front.index(dim) for dim in range(len(shape))])


def _adds(imp: Importer, call: Call) -> bool:
    how = call.attrs.get("reduction", "none")
    if how not in ("none", "add"):
        raise imp.unsupported(f"scattering by '{how}'; replacing and adding are there")
    return bool(how == "add")


@from_onnx("ScatterElements", "Scatter")
def _onnx_scatter_elements(imp: Importer, call: Call) -> str:
    x, index, new = imp.param(call.args[0]), call.args[1], imp.param(call.args[2])
    axis, add = int(call.attrs.get("axis", 0)), _adds(imp, call)
    return _scattered(imp, x, axis, index, new, add=add, negative=True)


@from_onnx("ScatterND")
def _onnx_scatter_nd(imp: Importer, call: Call) -> str:
    x, new = imp.param(call.args[0]), imp.param(call.args[2])
    indices = onnx_points(imp, call.args[1])
    return put_points(imp, x, list(range(len(indices))), indices, new, add=_adds(imp, call))


def one_hot(imp: Importer, index: str, classes: int, axis: int) -> str:
    """1 where the place along a new dimension is the index, else 0."""
    shape = imp.shape(index)
    axis %= len(shape) + 1
    column = reshaped(imp, index, (*shape[:axis], 1, *shape[axis:]))
    ones = imp.constant(np.ones(imp.shape(column), np.float32))
    return imp.add("put_sum", [ones, column], {"axis": axis, "length": classes})


@from_torch("aten.one_hot.default")
def _torch_one_hot(imp: Importer, call: Call) -> str:
    classes = int(call.arg(1, -1))
    if classes < 1:
        raise imp.unsupported("as many classes as the data have; give num_classes")
    return one_hot(imp, imp.tensor(call.args[0]), classes, -1)


@from_onnx("OneHot")
def _onnx_one_hot(imp: Importer, call: Call) -> str:
    """Two values instead of 0 and 1; an index that is no class has the first everywhere."""
    classes = int(imp.static(call.args[1]).reshape(()))
    known = imp.fixed(call.args[0])
    if known is not None:
        whole = np.where(known < 0, known + classes, known).astype(np.int64)
        index = imp.constant(np.where((whole >= 0) & (whole < classes), whole, NOWHERE))
    else:
        index = imp.tensor(call.args[0])
        if imp.dtype(index) == "f32" and imp.producer(index) is None:
            raise imp.unsupported("OneHot of an input of floats; make it int64")
        index = imp.add("flat_index", [index], {"size": classes})
    y = one_hot(imp, index, classes, int(call.attrs.get("axis", -1)))
    values = imp.fixed(call.args[2])
    if values is not None:
        off, on = (float(value) for value in values.reshape(2))
        return affine(imp, y, on - off, off)
    first, second = cut(imp, imp.tensor(call.args[2]), [1, 1], 0)
    return imp.add("add", [imp.add("mul", [y, imp.add("sub", [second, first])]), first])
