"""Layers and reductions that are made of several nodes: norms, distances, products, gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradlet.ops.compare import above
from gradlet.ops.concat import cut, join
from gradlet.ops.elementwise import affine, operand
from gradlet.ops.extreme import largest
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.importers.padding import pad
from gradlet.ops.reduce import chosen_axes, onnx_axes, summed
from gradlet.ops.shape import reshaped, transposed


def norm(imp: Importer, x: str, order: float, axes: Sequence[int] | None, keepdim: bool) -> str:
    """The length of vectors; where it is 0 its gradient is 0 too."""
    if order == 2:
        return imp.add("root", [summed(imp, imp.add("mul", [x, x]), axes, keepdim)])
    size = imp.add("abs", [x])
    if order == 1:
        return summed(imp, size, axes, keepdim)
    if order == float("inf"):
        chosen = chosen_axes(imp, x, axes)
        return largest(imp, size, chosen, keepdim, first=False, least=False)
    raise imp.unsupported(f"a norm of order {order}; 1, 2 and infinity are there")


def _axes(value: Any) -> list[int] | None:
    if value is None:
        return None
    return [int(value)] if isinstance(value, int) else [int(axis) for axis in value]


@from_torch("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim", "aten.norm.Scalar")
def _torch_norm(imp: Importer, call: Call) -> str:
    x, order, axes = imp.tensor(call.args[0]), float(call.arg(1, 2)), _axes(call.arg(2))
    return norm(imp, x, order, axes, bool(call.arg(3, False)))


@from_torch("aten.pairwise_distance.default")
def _torch_pairwise_distance(imp: Importer, call: Call) -> str:
    away = imp.add("sub", [imp.tensor(value) for value in call.args[:2]])
    away = affine(imp, away, 1.0, float(call.arg(3, 1e-6)))
    return norm(imp, away, float(call.arg(2, 2)), [-1], bool(call.arg(4, False)))


@from_torch("aten.cosine_similarity.default")
def _torch_cosine_similarity(imp: Importer, call: Call) -> str:
    """PyTorch raises a norm to eps unseen by autograd: its gradient is that of the plain norm."""
    dim, floor = int(call.arg(2, 1)), {"low": float(call.arg(3, 1e-8)), "high": float("inf")}
    sides = []
    for value in call.args[:2]:
        x = imp.tensor(value)
        length = norm(imp, x, 2, [dim], True)
        lifted = imp.add("sub", [imp.add("clamp", [length], floor), length])
        raised = imp.add("add", [length, imp.add("detach", [lifted])])
        sides.append(imp.add("div", [x, raised]))
    return summed(imp, imp.add("mul", sides), [dim], False)


@from_torch("aten._weight_norm.default")
def _torch_weight_norm(imp: Importer, call: Call) -> str:
    """A direction and a length: v * g / |v|, with one length for each index of a dimension."""
    v, g, dim = imp.param(call.args[0]), imp.param(call.args[1]), int(call.arg(2, 0))
    rank = len(imp.shape(v))
    axes = [d for d in range(rank) if dim == -1 or d != dim % rank]
    return imp.add("mul", [v, imp.add("div", [g, norm(imp, v, 2, axes, True)])])


@from_torch("aten.renorm.default")
def _torch_renorm(imp: Importer, call: Call) -> str:
    """Slices that are longer than allowed are cut to that length."""
    x, order, dim, most = imp.tensor(call.args[0]), *(call.args[1:4])
    rank = len(imp.shape(x))
    length = norm(imp, x, float(order), [d for d in range(rank) if d != dim % rank], True)
    share = affine(imp, imp.add("reciprocal", [affine(imp, length, 1.0, 1e-7)]), float(most))
    longer = above(imp, length, float(most))
    kept = imp.add("masked_fill", [share, longer], {"value": 1.0, "keep": True})
    return imp.add("mul", [x, kept])


def logsumexp(imp: Importer, x: str, axes: Sequence[int] | None, keepdim: bool) -> str:
    chosen = chosen_axes(imp, x, axes)
    top = largest(imp, x, chosen, True, first=False, least=False)
    total = summed(imp, imp.add("exp", [imp.add("sub", [x, top])]), chosen, True)
    y = imp.add("add", [imp.add("log", [total]), top])
    shape = imp.shape(y)
    return y if keepdim else reshaped(imp, y, [n for d, n in enumerate(shape) if d not in chosen])


@from_torch("aten.logsumexp.default")
def _torch_logsumexp(imp: Importer, call: Call) -> str:
    return logsumexp(imp, imp.tensor(call.args[0]), _axes(call.args[1]), bool(call.arg(2, False)))


def _logaddexp(imp: Importer, a: str, b: str) -> str:
    """The larger one, and what the other adds to it: nothing overflows."""
    top = imp.add("maximum", [a, b])
    less = imp.add("neg", [imp.add("abs", [imp.add("sub", [a, b])])])
    return imp.add("add", [top, imp.add("log", [affine(imp, imp.add("exp", [less]), 1.0, 1.0)])])


@from_torch("aten.logaddexp.default")
def _torch_logaddexp(imp: Importer, call: Call) -> str:
    return _logaddexp(imp, *(imp.tensor(value) for value in call.args[:2]))


def _scan(imp: Importer, y: str, dim: int, of_two: Callable[[Importer, str, str], str]) -> str:
    """Each element takes in the one before, then the one two before, four before, and so on."""
    shape = imp.shape(y)
    extent, reach = shape[dim] if shape else 1, 1
    while reach < extent:
        first, later = cut(imp, y, [reach, extent - reach], dim)
        earlier, _ = cut(imp, y, [extent - reach, reach], dim)
        y = join(imp, [first, of_two(imp, later, earlier)], dim)
        reach *= 2
    return y


@from_torch("aten.logcumsumexp.default")
def _torch_logcumsumexp(imp: Importer, call: Call) -> str:
    return _scan(imp, imp.tensor(call.args[0]), int(call.args[1]), _logaddexp)


@from_torch("aten.cumprod.default", "aten.cumprod_.default")
def _torch_cumprod(imp: Importer, call: Call) -> str:
    """Right at zeros as well: nothing is divided."""
    return _scan(imp, imp.tensor(call.args[0]), int(call.args[1]), _times)


def _times(imp: Importer, a: str, b: str) -> str:
    return imp.add("mul", [a, b])


def product(imp: Importer, x: str, axes: Sequence[int] | None, keepdim: bool) -> str:
    """The first half times the second, until one is left: right at zeros as well."""
    chosen, full = chosen_axes(imp, x, axes), imp.shape(x)
    for axis in chosen:
        while (extent := imp.shape(x)[axis]) > 1:
            half = extent // 2
            first, second, *rest = cut(imp, x, [half, half, *[1] * (extent % 2)], axis)
            x = join(imp, [imp.add("mul", [first, second]), *rest], axis)
    return x if keepdim else reshaped(imp, x, [n for d, n in enumerate(full) if d not in chosen])


@from_torch("aten.prod.dim_int", "aten.prod.default")
def _torch_prod(imp: Importer, call: Call) -> str:
    axes = _axes(call.args[1]) if call.target == "aten.prod.dim_int" else None
    return product(imp, imp.tensor(call.args[0]), axes, axes is not None and bool(call.arg(2)))


@from_onnx("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSum")
@from_onnx("ReduceLogSumExp")
def _onnx_reductions(imp: Importer, call: Call) -> str:
    x, keepdim = imp.tensor(call.args[0]), bool(call.attrs.get("keepdims", 1))
    axes = onnx_axes(imp, call)
    if axes == []:  # nothing is reduced; what is done to each element is
        axes, keepdim = None, True
        x = reshaped(imp, x, (1, *imp.shape(x)))
        y = _reduced(imp, call.target, x, [0], keepdim)
        return reshaped(imp, y, imp.shape(x)[1:])
    return _reduced(imp, call.target, x, axes, keepdim)


def _reduced(imp: Importer, name: str, x: str, axes: Sequence[int] | None, keepdim: bool) -> str:
    match name:
        case "ReduceL1" | "ReduceL2":
            return norm(imp, x, float(name[-1]), axes, keepdim)
        case "ReduceSumSquare":
            return summed(imp, imp.add("mul", [x, x]), axes, keepdim)
        case "ReduceProd":
            return product(imp, x, axes, keepdim)
        case "ReduceLogSum":
            return imp.add("log", [summed(imp, x, axes, keepdim)])
    return logsumexp(imp, x, axes, keepdim)


@from_torch("aten.glu.default")
def _torch_glu(imp: Importer, call: Call) -> str:
    x, dim = imp.tensor(call.args[0]), int(call.arg(1, -1))
    half = imp.shape(x)[dim] // 2
    value, gate = cut(imp, x, [half, half], dim)
    return imp.add("mul", [value, imp.add("sigmoid", [gate])])


@from_torch("aten.addcmul.default", "aten.addcdiv.default", "aten.lerp.Scalar", "aten.lerp.Tensor")
def _torch_three(imp: Importer, call: Call) -> str:
    x, a = (imp.tensor(value) for value in call.args[:2])
    if "lerp" in call.target:
        away = imp.add("sub", [a, x])
        share = call.args[2]
        if isinstance(share, int | float):
            return imp.add("add", [x, affine(imp, away, float(share))])
        return imp.add("add", [x, imp.add("mul", [away, operand(imp, share)])])
    op = "mul" if "addcmul" in call.target else "div"
    both = imp.add(op, [a, imp.tensor(call.args[2])])
    return imp.add("add", [x, affine(imp, both, float(call.arg(3, 1)))])


@from_torch("aten.bilinear.default")
def _torch_bilinear(imp: Importer, call: Call) -> str:
    """Rows of the left side times the weights [out, left, right], then the right side's rows."""
    left, right, w = (imp.tensor(value) for value in call.args[:3])
    out, inner, width = imp.shape(w)
    lead = imp.shape(left)[:-1]
    factor = reshaped(imp, transposed(imp, w, (1, 0, 2)), (inner, out * width))
    rows = reshaped(imp, left, (-1, inner))
    y = reshaped(imp, imp.add("matmul", [rows, factor], {"layout": "nn"}), (-1, out, width))
    column = reshaped(imp, right, (imp.shape(rows)[0], 1, width))
    y = reshaped(imp, summed(imp, imp.add("mul", [y, column]), [2], False), (*lead, out))
    return y if call.arg(3) is None else imp.add("add", [y, imp.param(call.args[3])])


@from_torch("aten.softshrink.default")
def _torch_softshrink(imp: Importer, call: Call) -> str:
    x, edge = imp.tensor(call.args[0]), float(call.arg(1, 0.5))
    return imp.add("sub", [x, imp.add("clamp", [x], {"low": -edge, "high": edge})])


@from_torch("aten.rrelu.default")
def _torch_rrelu(imp: Importer, call: Call) -> str:
    if call.arg(3, False):
        raise imp.unsupported("random slopes; call .eval() on it for their mean, or use LeakyReLU")
    slope = (float(call.arg(1, 1 / 8)) + float(call.arg(2, 1 / 3))) / 2
    return imp.add("leaky_relu", [imp.tensor(call.args[0])], {"slope": slope})


def _channel_means(imp: Importer, planes: str, size: int) -> str:
    attrs = {"kernel": (size, 1), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    return imp.add("avg_pool2d", [planes], {**attrs, "count_include_pad": True})


@from_onnx("LRN")
def _onnx_lrn(imp: Importer, call: Call) -> str:
    x, size = imp.tensor(call.args[0]), int(call.need("size"))
    n, c, *rest = imp.shape(x)
    squares = reshaped(imp, imp.add("mul", [x, x]), (n, 1, c, -1))
    after = [0, 0, size // 2, 0]
    means = _channel_means(imp, pad(imp, squares, [0, 0, (size - 1) // 2, 0], after), size)
    scale = affine(
        imp, means, float(call.attrs.get("alpha", 1e-4)), float(call.attrs.get("bias", 1.0))
    )
    divisor = imp.add("pow", [scale], {"exponent": float(call.attrs.get("beta", 0.75))})
    return imp.add("div", [x, reshaped(imp, divisor, (n, c, *rest))])


@from_onnx("Mean")
def _onnx_mean(imp: Importer, call: Call) -> str:
    """The mean of several tensors, element by element."""
    total, *rest = (imp.param(value) for value in call.args)
    for name in rest:
        total = imp.add("add", [total, name])
    return affine(imp, total, 1 / len(call.args))


@from_onnx("ThresholdedRelu")
def _onnx_thresholded_relu(imp: Importer, call: Call) -> str:
    numbers = {"threshold": float(call.attrs.get("alpha", 1.0)), "fill": 0.0}
    return imp.add("threshold", [imp.tensor(call.args[0])], numbers)


@from_onnx("Shrink")
def _onnx_shrink(imp: Importer, call: Call) -> str:
    x, edge = imp.tensor(call.args[0]), float(call.attrs.get("lambd", 0.5))
    bias = float(call.attrs.get("bias", 0.0))
    if bias == 0:
        return imp.add("hardshrink", [x], {"edge": edge})
    if bias != edge:
        raise imp.unsupported("a bias other than 0 or lambd")
    return imp.add("sub", [x, imp.add("clamp", [x], {"low": -edge, "high": edge})])


@from_onnx("MeanVarianceNormalization")
def _onnx_mean_variance(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    rank = len(imp.shape(x))
    axes = tuple(sorted(int(axis) % rank for axis in call.attrs.get("axes", (0, 2, 3))))
    return imp.add("normalize", [x], {"axes": axes, "eps": 1e-18, "center": True})


@from_torch("aten.diff.default")
def _torch_diff(imp: Importer, call: Call) -> str:
    times, dim = int(call.arg(1, 1)), int(call.arg(2, -1))
    given = [value for value in (call.arg(3), call.args[0], call.arg(4)) if value is not None]
    x = join(imp, [imp.tensor(value) for value in given], dim)
    for _ in range(times):
        extent = imp.shape(x)[dim]
        ends = [cut(imp, x, sizes, dim) for sizes in ([1, extent - 1], [extent - 1, 1])]
        x = imp.add("sub", [ends[0][1], ends[1][0]])
    return x


@from_onnx("GlobalLpPool")
def _onnx_global_lp_pool(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    axes = list(range(2, len(imp.shape(x))))
    return norm(imp, x, float(call.attrs.get("p", 2)), axes, True)
