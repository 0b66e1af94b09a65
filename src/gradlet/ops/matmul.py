"""Matrix products: fully connected layers, matrix-matrix and batched products.

The layout says which operand is stored transposed: `nn` a[m,k] b[k,n], `nt` a[m,k] b[n,k],
`tn` a[k,m] b[k,n]. A product's gradients are products again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, Op, ShapeError, Span, Work, register
from gradlet.ops.emitter import Emitter, Gradients, Names


@dataclass(frozen=True)
class Extents:
    """The loops of a product; `lead` are the dimensions of the result before the last two."""

    batch: int
    m: int
    n: int
    k: int
    lead: Shape


def extents(layout: str, a: Shape, b: Shape) -> Extents:
    if len(a) < 2 or len(b) < 2:
        raise ShapeError("both operands need at least two dimensions")
    rows_a, cols_a = a[-2:]
    rows_b, cols_b = b[-2:]
    m, k = (cols_a, rows_a) if layout == "tn" else (rows_a, cols_a)
    n, k_b = (rows_b, cols_b) if layout == "nt" else (cols_b, rows_b)
    if k != k_b:
        raise ShapeError(f"the inner sizes {k} and {k_b} differ")
    if len(b) == 2:
        if layout == "tn" and len(a) != 2:
            raise ShapeError("a transposed left operand must have the rank of the right one")
        lead = a[:-2]
        return Extents(1, int(np.prod(lead, dtype=int)) * m, n, k, lead)
    if a[:-2] != b[:-2]:
        raise ShapeError(f"the batch dimensions {a[:-2]} and {b[:-2]} differ")
    return Extents(int(np.prod(a[:-2], dtype=int)), m, n, k, a[:-2])


@register
class Matmul(Op):
    name = "matmul"
    inputs = ("a", "b", "bias?")
    adds_once = ("bias",)
    linear = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        e = extents(str(attrs["layout"]), ins[0], ins[1])
        if len(ins) == 3 and ins[2] != (e.n,):
            raise ShapeError(f"the bias has shape {ins[2]}, not ({e.n},)")
        m = ins[0][-1] if attrs["layout"] == "tn" else ins[0][-2]
        return ((*e.lead, m, e.n),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        a, b = ins[:2]
        if attrs["layout"] == "nt":
            b = b.swapaxes(-1, -2)
        if attrs["layout"] == "tn":
            a = a.swapaxes(-1, -2)
        product = np.matmul(a, b)
        return (product + ins[2] if len(ins) == 3 else product,)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        a, b = site.node.inputs[:2]
        dy = grads[0]
        layout = str(site.attrs["layout"])
        result: dict[str, str] = {}
        if "a" in wanted:
            args, mode = {
                "nn": ((dy, b), "nt"),
                "nt": ((dy, b), "nn"),
                "tn": ((b, dy), "nt"),
            }[layout]
            result["a"] = emit.add("matmul", args, {"layout": mode})
        if "b" in wanted:
            if len(site.ins[1].shape) == 2:  # the rows of all batches add up in one product
                a, dy = as_rows(emit, a), as_rows(emit, dy)
            args, mode = {
                "nn": ((a, dy), "tn"),
                "nt": ((dy, a), "tn"),
                "tn": ((a, dy), "nn"),
            }[layout]
            result["b"] = emit.add("matmul", args, {"layout": mode})
        if "bias" in wanted:
            rank = len(site.outs[0].shape)
            result["bias"] = emit.add("sum", [grads[0]], {"axes": tuple(range(rank - 1))})
        return result

    def rows_dim(self, site: Site, slot: str) -> int | None:
        of_weight = slot == "b" and site.attrs["layout"] == "nt" and len(site.ins[1].shape) == 2
        return len(site.outs[0].shape) - 1 if slot == "bias" or of_weight else None

    def work(self, site: Site) -> Work:
        e = extents(str(site.attrs["layout"]), site.ins[0].shape, site.ins[1].shape)
        return Work(e.batch * e.m * e.n * e.k, site.moved_bytes)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        layout = str(site.attrs["layout"])
        a, b = site.ins[0].shape, site.ins[1].shape
        rank_a, rank_b, rank_y = len(a), len(b), len(site.outs[0].shape)
        m_dim, k_dim_a = (rank_a - 1, rank_a - 2) if layout == "tn" else (rank_a - 2, rank_a - 1)
        n_dim, k_dim_b = (rank_b - 2, rank_b - 1) if layout == "nt" else (rank_b - 1, rank_b - 2)
        bias = [Span("bias", 0)] if len(site.ins) == 3 else []
        axes = []
        for dim in range(rank_y - 2):
            shared = [Span("b", dim)] if rank_b > 2 else []
            axes.append(Axis(f"batch{dim}", a[dim], (Span("a", dim), *shared, Span("y", dim))))
        return (
            *axes,
            Axis("rows", a[m_dim], (Span("a", m_dim), Span("y", rank_y - 2))),
            Axis("columns", b[n_dim], (Span("b", n_dim), *bias, Span("y", rank_y - 1))),
            Axis("inner", a[k_dim_a], (Span("a", k_dim_a), Span("b", k_dim_b)), reduction=True),
        )

    def lower(self, site: Site) -> Lowering:
        layout = str(site.attrs["layout"])
        e = extents(layout, site.ins[0].shape, site.ins[1].shape)
        return Lowering("gemm", layout, {"batch": e.batch, "m": e.m, "n": e.n, "k": e.k})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        a = f"{ins[0]}.mT" if attrs["layout"] == "tn" else ins[0]
        b = f"{ins[1]}.mT" if attrs["layout"] == "nt" else ins[1]
        bias = f" + {ins[2]}" if len(ins) == 3 else ""
        return f"{a} @ {b}{bias}"


def as_rows(emit: Emitter, name: str) -> str:
    shape = emit.shape(name)
    if len(shape) == 2:
        return name
    rows = int(np.prod(shape[:-1], dtype=int))
    return emit.add("reshape", [name], {"shape": (rows, shape[-1])})
