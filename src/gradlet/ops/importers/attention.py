"""How PyTorch spells attention: products, a scale, a mask and a softmax, which are ops of ours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradlet.ir.graph import Array
from gradlet.ops.dropout import drop
from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_torch
from gradlet.ops.importers.matmul import product
from gradlet.ops.mask import add_constant
from gradlet.ops.shape import swapped


@from_torch("aten.scaled_dot_product_attention.default")
def _torch_attention(imp: Importer, call: Call) -> str:
    query, key, value, mask, p, causal, scale, grouped = [*call.args, *[None] * 8][:8]
    q, k, v = (imp.tensor(operand) for operand in (query, key, value))
    if grouped:
        k, v = (_for_each_head(imp, x, imp.shape(q)[-3]) for x in (k, v))
    width = imp.shape(q)[-1]
    factor = 1 / math.sqrt(width) if scale is None else float(scale)
    if width <= imp.shape(k)[-2]:  # whatever is smaller is scaled
        scores = product(imp, affine(imp, q, factor), swapped(imp, k))
    else:
        scores = affine(imp, product(imp, q, swapped(imp, k)), factor)
    if causal:
        rows, columns = imp.shape(scores)[-2:]
        scores = add_constant(imp, scores, _below_diagonal(rows, columns))
    if mask is not None:
        scores = _masked(imp, scores, mask)
    weights = imp.add("softmax", [scores], {"axis": len(imp.shape(scores)) - 1})
    return product(imp, drop(imp, weights, float(p or 0.0)), v)


def _for_each_head(imp: Importer, x: str, heads: int) -> str:
    """Keys or values of a few heads, repeated for the neighbouring heads of the queries."""
    *lead, own, length, width = imp.shape(x)
    if own == heads:
        return x
    apart = imp.add("reshape", [x], {"shape": (*lead, own, 1, length, width)})
    wide = imp.add("expand", [apart], {"shape": (*lead, own, heads // own, length, width)})
    return imp.add("reshape", [wide], {"shape": (*lead, heads, length, width)})


def _below_diagonal(rows: int, columns: int) -> Array:
    return np.triu(np.full((rows, columns), -np.inf, np.float32), 1)


def _masked(imp: Importer, scores: str, mask: Any) -> str:
    """A mask of booleans tells what takes part; one of numbers is added."""
    known = imp.fixed(mask)
    if known is None:
        return imp.add("add", [scores, imp.tensor(mask)])
    if known.dtype == bool:
        known = np.where(known, 0.0, -np.inf)
    if np.isneginf(known).all(axis=-1).any():
        raise imp.unsupported("a mask with a row in which nothing takes part")
    return add_constant(imp, scores, known)
