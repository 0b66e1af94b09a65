"""Elements of every line along a dimension by index: taken, put back, added up, replaced.

An index has one entry per element, or is `shared` by all lines: then all of its other dimensions
are 1. Where the index leads out of the line, nothing is put, and 0 is taken (see guard.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Span, Work, integer, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.pointwise import same_index_axes, split_at

TORCH = """
def _put(y, index, x, axis, add):
    index = index.expand(x.shape)
    return y.scatter_add(axis, index, x) if add else y.scatter(axis, index, x)
"""


def _count(attrs: Attrs, of: Shape, index: Shape) -> int:
    """How many elements of each line are meant; the shapes have to fit."""
    axis = integer(attrs, "axis")
    if len(of) != len(index) or axis not in range(len(of)):
        raise ShapeError("operand and index need the same number of dimensions")
    rest = [(n, m) for dim, (n, m) in enumerate(zip(of, index, strict=True)) if dim != axis]
    if any(n != m for n, m in rest) and any(m != 1 for _, m in rest):
        raise ShapeError(f"an index of {index} does not fit {of} in other dimensions than {axis}")
    return index[axis]


def _with(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


class _Lines(Op):
    """x and y are the small and the large side, or the other way round; `index` goes along with
    the small one."""

    integers = ("index",)

    def check_dtypes(self, *ins: Tensor) -> None:
        if ins[1].dtype != "i32":
            raise ShapeError(f"'{ins[1].name}' holds {ins[1].dtype}; indices are integers")
        super().check_dtypes(*(tensor for n, tensor in enumerate(ins) if n != 1))

    def _axes(self, site: Site, operands: Sequence[str]) -> tuple[Axis, ...]:
        """Every dimension but that of the lines; a shared index is needed whole."""
        axis, index = integer(site.attrs, "axis"), site.ins[1].shape
        return tuple(
            replace(a, spans=(*a.spans, Span("index", d))) if index[d] == a.size else a
            for a in same_index_axes(site.outs[0].shape, operands, (axis,))
            for d in (a.spans[0].dim,)
        )

    def _lower(self, site: Site, mode: str, large: Shape, small: Shape) -> Lowering:
        axis, index = integer(site.attrs, "axis"), site.ins[1]
        sizes = {
            **split_at(large, axis, length=large[axis], count=small[axis]),
            "shared": int(index.shape != small),
        }
        return Lowering("lines", mode, sizes)


@register
class Take(_Lines):
    """y[.., i, ..] = x[.., index[.., i, ..], ..]"""

    name = "take"
    inputs = ("x", "index")
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (_with(ins[0], integer(attrs, "axis"), _count(attrs, *ins)),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        x, axis = ins[0], integer(attrs, "axis")
        index = np.broadcast_to(ins[1], _with(x.shape, axis, ins[1].shape[axis]))
        inside = (index >= 0) & (index < x.shape[axis])
        taken = np.take_along_axis(x, np.where(inside, index, 0), axis)
        return (np.where(inside, taken, 0.0),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        axis = integer(site.attrs, "axis")
        attrs = {"axis": axis, "length": site.ins[0].shape[axis]}
        return {"x": emit.add("put_sum", [grads[0], site.node.inputs[1]], attrs)}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        axis = integer(site.attrs, "axis")
        along = Axis("places", site.outs[0].shape[axis], (Span("index", axis), Span("y", axis)))
        return (*self._axes(site, ("x", "y")), along)

    def lower(self, site: Site) -> Lowering:
        return self._lower(site, "take", site.ins[0].shape, site.outs[0].shape)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"{ins[0]}.take_along_dim({ins[1]}, {attrs['axis']})"


@register
class PutSum(_Lines):
    """y is 0 but for y[.., index[.., i, ..], ..] += x[.., i, ..], in the order of i."""

    name = "put_sum"
    inputs = ("x", "index")
    linear = True
    torch_source = TORCH

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        axis = integer(attrs, "axis")
        if _count(attrs, *ins) != ins[0][axis]:
            raise ShapeError(f"{ins[0][axis]} elements for {ins[1][axis]} places")
        return (_with(ins[0], axis, integer(attrs, "length")),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        x, axis, length = ins[0], integer(attrs, "axis"), integer(attrs, "length")
        y = np.zeros(_with(x.shape, axis, length), x.dtype)
        _put(y, ins[1], x, axis, add=True)
        return (y,)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        attrs = {"axis": site.attrs["axis"]}
        return {"x": emit.add("take", [grads[0], site.node.inputs[1]], attrs)}

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def roundings(self, site: Site, out: Tensor) -> float:
        return 1 + site.ins[1].shape[integer(site.attrs, "axis")]  # all indices may be one

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return self._axes(site, ("x", "y"))

    def lower(self, site: Site) -> Lowering:
        return self._lower(site, "put_sum", site.outs[0].shape, site.ins[0].shape)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        axis, x = attrs["axis"], ins[0]
        empty = f"{x}.new_zeros({x}.shape[:{axis}] + ({attrs['length']},) + {x}.shape[{axis} + 1:])"
        return f"_put({empty}, {ins[1]}, {x}, {axis}, True)"


@register
class Put(_Lines):
    """y = x but for y[.., index[.., i, ..], ..] = new[.., i, ..]; of several the last one stays,
    and as in PyTorch each of them gets the gradient."""

    name = "put"
    inputs = ("x", "index", "new")
    exact = True
    overwrites = ("x",)
    torch_source = TORCH

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        x, index, new = ins
        if new != _with(x, integer(attrs, "axis"), _count(attrs, x, index)):
            raise ShapeError(f"elements of {new} for places of {index}")
        return (x,)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        y = ins[0].copy()
        _put(y, ins[1], ins[2], integer(attrs, "axis"), add=False)
        return (y,)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        operands, attrs = [grads[0], site.node.inputs[1]], {"axis": site.attrs["axis"]}
        result = {}
        if "x" in wanted:
            result["x"] = emit.add("erase", operands, attrs)
        if "new" in wanted:
            result["new"] = emit.add("take", operands, attrs)
        return result

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return self._axes(site, ("x", "new", "y"))

    def lower(self, site: Site) -> Lowering:
        return self._lower(site, "put", site.ins[0].shape, site.ins[2].shape)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"_put({ins[0]}, {ins[1]}, {ins[2]}, {attrs['axis']}, False)"


@register
class Erase(_Lines):
    """y = x but for zeros at the indices."""

    name = "erase"
    inputs = ("x", "index")
    exact = True
    overwrites = ("x",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        _count(attrs, *ins)
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        y, axis = ins[0].copy(), integer(attrs, "axis")
        nothing = np.zeros(_with(y.shape, axis, ins[1].shape[axis]))
        _put(y, ins[1], nothing, axis, add=False)
        return (y,)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return self._axes(site, ("x", "y"))

    def lower(self, site: Site) -> Lowering:
        x, axis = site.ins[0].shape, integer(site.attrs, "axis")
        return self._lower(site, "erase", x, _with(x, axis, site.ins[1].shape[axis]))


def _put(y: Array, index: Array, x: Array, axis: int, *, add: bool) -> None:
    """Into y, line by line, in the order of the index."""
    index = np.broadcast_to(index, x.shape)
    for line in np.ndindex(*(n for dim, n in enumerate(x.shape) if dim != axis)):
        whole = (*line[:axis], slice(None), *line[axis:])
        inside = (index[whole] >= 0) & (index[whole] < y.shape[axis])
        places, values = index[whole][inside], x[whole][inside]
        if add:
            np.add.at(y[whole], places, values)
        else:
            y[whole][places] = values
