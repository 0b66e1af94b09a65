"""Rows of a table by index: embeddings. How the front ends spell lookups is in lookup.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Span, Work, integer, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_toml

NONE = -1  # no row is left out


def _check_index(table: Tensor, index: Tensor) -> None:
    if table.dtype == "i32":
        raise ShapeError(f"'{table.name}' holds integers; floating point is needed")
    if index.dtype != "i32":
        raise ShapeError(f"'{index.name}' holds {index.dtype}; indices are integers")


@register
class Gather(Op):
    """w[index]. The row `skip` gets no gradient, as the one that pads sentences should not."""

    name = "gather"
    inputs = ("w", "index")
    integers = ("index",)
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if not ins[0]:
            raise ShapeError("a table needs rows")
        return ((*ins[1], *ins[0][1:]),)

    def check_dtypes(self, *ins: Tensor) -> None:
        _check_index(ins[0], ins[1])

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        w, index = ins
        inside = _inside(index, len(w))
        rows = w[np.where(inside, index, 0)]
        return (np.where(inside.reshape(*index.shape, *[1] * (w.ndim - 1)), rows, 0.0),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        attrs = {"rows": site.ins[0].shape[0], "skip": site.attrs["skip"]}
        return {"w": emit.add("gather_grad", [grads[0], site.node.inputs[1]], attrs)}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return _axes(site, site.ins[0].shape, "w", "y")

    def lower(self, site: Site) -> Lowering:
        table, index = site.ins
        width = table.elements // table.shape[0]
        sizes = {"rows": table.shape[0], "count": index.elements, "width": width, "skip": NONE}
        return Lowering("gather", "rows", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        if integer(attrs, "skip") == NONE:
            return f"{ins[0]}[{ins[1]}]"
        return f"F.embedding({ins[1]}, {ins[0]}, {attrs['skip']})"


@register
class GatherGrad(Op):
    """Each row's sum over the places that it was taken to, in their order."""

    name = "gather_grad"
    inputs = ("dy", "index")
    outputs = ("dw",)
    integers = ("index",)
    linear = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[0][: len(ins[1])] != ins[1]:
            raise ShapeError("the gradient does not fit the indices")
        return ((integer(attrs, "rows"), *ins[0][len(ins[1]) :]),)

    def check_dtypes(self, *ins: Tensor) -> None:
        _check_index(ins[0], ins[1])

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dw = np.zeros(self.shape(attrs, ins[0].shape, ins[1].shape)[0], ins[0].dtype)
        inside = _inside(ins[1], len(dw))
        np.add.at(dw, ins[1][inside], ins[0][inside])
        if attrs["skip"] != NONE:
            dw[integer(attrs, "skip")] = 0
        return (dw,)

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def roundings(self, site: Site, out: Tensor) -> float:
        return 1 + site.ins[1].elements  # all indices may be one

    def axes(self, site: Site) -> tuple[Axis, ...]:
        axes, places = _axes(site, site.outs[0].shape, "dw", "dy"), len(site.ins[1].shape)
        return (*(replace(axis, reduction=True) for axis in axes[:places]), *axes[places:])

    def lower(self, site: Site) -> Lowering:
        table, index = site.outs[0], site.ins[1]
        sizes = {"rows": table.shape[0], "count": index.elements}
        sizes |= {"width": table.elements // table.shape[0], "skip": integer(site.attrs, "skip")}
        return Lowering("gather", "grad", sizes)


def _inside(index: Array, rows: int) -> Array:
    """Which indices name a row; the others read zeros and add to nothing, as in the kernels."""
    return (index >= 0) & (index < rows)


def _axes(site: Site, table: Shape, table_name: str, rows_name: str) -> tuple[Axis, ...]:
    """Along the indices, each on its own; then along the columns of the table."""
    index = site.ins[1].shape
    places = [
        Axis(f"place{dim}", n, (Span("index", dim), Span(rows_name, dim)))
        for dim, n in enumerate(index)
    ]
    columns = [
        Axis(f"column{dim}", n, (Span(table_name, dim), Span(rows_name, len(index) + dim - 1)))
        for dim, n in enumerate(table)
        if dim > 0
    ]
    return (*places, *columns)


@from_toml("embedding")
def _toml_embedding(imp: Importer, call: Call) -> str:
    rows, width = int(call.need("rows")), int(call.need("width"))
    table = imp.param(("weight", (rows, width), width))
    return imp.add("gather", [table, call.args[0]], {"skip": NONE})
