"""How the front ends spell matrix products: vectors, broadcast batches, scaled sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Shape
from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.lib.pointwise import broadcast


def product(imp: Importer, a: str, b: str) -> str:
    """a times b as both front ends mean it: vectors are rows or columns, batches are repeated."""
    row, column = len(imp.shape(a)) == 1, len(imp.shape(b)) == 1
    if row:
        a = _viewed(imp, a, (1, *imp.shape(a)))
    if column:
        b = _viewed(imp, b, (*imp.shape(b), 1))
    y = imp.add("matmul", _same_batch(imp, a, b), {"layout": "nn"})
    shape = list(imp.shape(y))
    if row:
        del shape[-1 if column else -2]
    if column:
        del shape[-1]
    return _viewed(imp, y, tuple(shape))


def _same_batch(imp: Importer, a: str, b: str) -> list[str]:
    """The operands with the batch dimensions that the op wants: those of a, and none or those of b.

    Repeating costs memory, so a right factor that is the same for all batches stays a matrix.
    """
    shape_a, shape_b = imp.shape(a), imp.shape(b)
    lead = broadcast(shape_a[:-2], shape_b[:-2])
    if np.prod(shape_b[:-2], dtype=int) == 1:
        b = _viewed(imp, b, shape_b[-2:])
        return [_viewed(imp, a, (*lead, *shape_a[-2:])), b]
    return [_repeated(imp, a, lead), _repeated(imp, b, lead)]


def _repeated(imp: Importer, x: str, lead: Shape) -> str:
    shape = imp.shape(x)
    if shape[:-2] == lead:
        return x
    return imp.add("expand", [x], {"shape": (*lead, *shape[-2:])})


def _viewed(imp: Importer, x: str, shape: Shape) -> str:
    return x if imp.shape(x) == shape else imp.add("reshape", [x], {"shape": shape})


def _plus(imp: Importer, y: str, c: str, alpha: float, beta: float) -> str:
    """alpha * y + beta * c; what beta 0 leaves out may even be infinite."""
    if beta == 0:
        return affine(imp, y, alpha)
    return imp.add("add", [affine(imp, y, alpha), affine(imp, c, beta)])


def _linear(imp: Importer, x: str, operands: Sequence[str]) -> str:
    """x times the transposed weight, plus a bias; a lone vector is a batch of one."""
    shape = imp.shape(x)
    if len(shape) != 1:
        return imp.add("matmul", [x, *operands], {"layout": "nt"})
    row = imp.add("reshape", [x], {"shape": (1, shape[0])})
    y = imp.add("matmul", [row, *operands], {"layout": "nt"})
    return imp.add("reshape", [y], {"shape": imp.shape(y)[1:]})


@from_torch("aten.linear.default")
def _torch_linear(imp: Importer, call: Call) -> str:
    x, weight, bias = call.arg(0), call.arg(1), call.arg(2)
    return _linear(imp, imp.tensor(x), [imp.param(v) for v in (weight, bias) if v is not None])


@from_torch("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
@from_torch("aten.mv.default", "aten.dot.default", "aten.inner.default")
def _torch_matmul(imp: Importer, call: Call) -> str:
    a, b = (imp.tensor(value) for value in call.args[:2])
    if call.target == "aten.inner.default" and len(imp.shape(b)) > 1:
        return imp.add("matmul", [a, b], {"layout": "nt"})
    return product(imp, a, b)


@from_torch("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def _torch_addmm(imp: Importer, call: Call) -> str:
    """The first operand may be broadcast; a bias of one number per column is the product's own."""
    c, a, b = (imp.tensor(value) for value in call.args[:3])
    beta, alpha = float(call.arg(3, 1)), float(call.arg(4, 1))
    if alpha == beta == 1 and len(imp.shape(b)) == 2 and imp.shape(c) == imp.shape(b)[1:]:
        return imp.add("matmul", [a, b, c], {"layout": "nn"})
    return _plus(imp, product(imp, a, b), c, alpha, beta)


@from_onnx("MatMul")
def _onnx_matmul(imp: Importer, call: Call) -> str:
    return product(imp, imp.param(call.args[0]), imp.param(call.args[1]))


@from_onnx("Gemm")
def _onnx_gemm(imp: Importer, call: Call) -> str:
    alpha, beta = float(call.attrs.get("alpha", 1.0)), float(call.attrs.get("beta", 1.0))
    trans_a, trans_b = call.attrs.get("transA", 0), call.attrs.get("transB", 0)
    a, b = imp.tensor(call.args[0]), imp.param(call.args[1])
    if any(len(imp.shape(name)) != 2 for name in (a, b)):
        raise imp.unsupported("Gemm of other than matrices")
    if trans_a and trans_b:
        a = imp.add("transpose", [a], {"axes": (1, 0)})
        trans_a = 0
    attrs = {"layout": "tn" if trans_a else ("nt" if trans_b else "nn")}
    if call.arg(2) is None or beta == 0:
        return affine(imp, imp.add("matmul", [a, b], attrs), alpha)
    c = imp.param(call.args[2])
    if alpha == beta == 1 and imp.shape(c) == (imp.shape(b)[-2 if trans_b else -1],):
        return imp.add("matmul", [a, b, c], attrs)
    return _plus(imp, imp.add("matmul", [a, b], attrs), c, alpha, beta)


@from_toml("matmul")
def _toml_matmul(imp: Importer, call: Call) -> str:
    layout = call.attrs.get("layout", "nn")
    if layout not in ("nn", "nt", "tn"):
        raise imp.unsupported(f"layout '{layout}'; there are nn, nt and tn")
    return imp.add("matmul", call.args, {"layout": layout})


@from_toml("linear")
def _toml_linear(imp: Importer, call: Call) -> str:
    x = call.args[0]
    features = int(call.need("out"))
    fan_in = imp.shape(x)[-1]
    operands = [imp.param(("weight", (features, fan_in), fan_in))]
    if call.attrs.get("bias", True):
        operands.append(imp.param(("bias", (features,), fan_in)))
    return _linear(imp, x, operands)
