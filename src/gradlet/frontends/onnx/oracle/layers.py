"""Products, convolutions, pooling, norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from gradlet.frontends.onnx.oracle.base import NotWritten, Operator, at, operator


@operator("MatMul")
def _matmul(op: Operator, args: Sequence[Any]) -> Any:
    return torch.matmul(*args)


@operator("Einsum")
def _einsum(op: Operator, args: Sequence[Any]) -> Any:
    return torch.einsum(op.get("equation").replace(" ", ""), *args)


@operator("Gemm")
def _gemm(op: Operator, args: Sequence[Any]) -> Any:
    a = args[0].T if op.get("transA", 0) else args[0]
    b = args[1].T if op.get("transB", 0) else args[1]
    y = op.get("alpha", 1.0) * (a @ b)
    return y if at(args, 2) is None else y + op.get("beta", 1.0) * args[2]


def _window(op: Operator, x: Any, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilations, and padding as all begins and then all ends."""
    dims = len(kernel)
    strides = list(op.get("strides") or [1] * dims)
    dilations = list(op.get("dilations") or [1] * dims)
    automatic = op.get("auto_pad", "NOTSET")
    if automatic in ("NOTSET", "VALID"):
        pads = op.get("pads") if automatic == "NOTSET" else None
        return strides, dilations, list(pads or [0] * (2 * dims))
    begins, ends = [], []
    for extent, size, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        total = max((-(-extent // stride) - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        small, large = total // 2, total - total // 2
        begins.append(large if automatic == "SAME_LOWER" else small)
        ends.append(small if automatic == "SAME_LOWER" else large)
    return strides, dilations, begins + ends


def _padded(x: Any, pads: Sequence[int], value: float = 0.0) -> Any:
    dims = len(pads) // 2
    order = [pads[i + half * dims] for i in reversed(range(dims)) for half in (0, 1)]
    return F.pad(x, order, value=value)


@operator("Conv")
def _conv(op: Operator, args: Sequence[Any]) -> Any:
    x, w, bias = args[0], args[1], at(args, 2)
    strides, dilations, pads = _window(op, x, w.shape[2:])
    function = (F.conv1d, F.conv2d, F.conv3d)[w.ndim - 3]
    return function(_padded(x, pads), w, bias, strides, 0, dilations, op.get("group", 1))


@operator("ConvTranspose")
def _conv_transpose(op: Operator, args: Sequence[Any]) -> Any:
    """The whole result without padding, then what padding cuts off."""
    x, w, bias = args[0], args[1], at(args, 2)
    dims = w.ndim - 2
    strides = list(op.get("strides") or [1] * dims)
    dilations = list(op.get("dilations") or [1] * dims)
    more = list(op.get("output_padding") or [0] * dims)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    full = function(x, w, None, strides, 0, 0, op.get("group", 1), dilations)
    full = _padded(full, [0] * dims + more)
    pads = list(op.get("pads") or [0] * (2 * dims))
    automatic, wanted = op.get("auto_pad", "NOTSET"), op.get("output_shape")
    if automatic.startswith("SAME") and wanted is None:
        wanted = [extent * stride for extent, stride in zip(x.shape[2:], strides, strict=True)]
    if wanted is not None:
        sizes = zip(full.shape[2:], wanted[-dims:], strict=True)
        full = _padded(full, [0] * dims + [max(want - have, 0) for have, want in sizes])
        total = [have - want for have, want in zip(full.shape[2:], wanted[-dims:], strict=True)]
        half = [extent // 2 for extent in total]
        rest = [extent - part for extent, part in zip(total, half, strict=True)]
        pads = half + rest if automatic == "SAME_UPPER" else rest + half
    for axis in range(dims):
        extent = full.shape[axis + 2] - pads[axis] - pads[axis + dims]
        full = full.narrow(axis + 2, pads[axis], extent)
    return full if bias is None else full + bias.reshape(-1, *[1] * dims)


def _overhang(op: Operator, x: Any, kernel: Sequence[int], window: Any) -> list[int]:
    """What a last window that is not whole needs beyond the padding."""
    strides, dilations, pads = window
    rest = []
    for i, size in enumerate(kernel):
        extent = x.shape[2 + i] + pads[i] + pads[i + len(kernel)]
        span = (size - 1) * dilations[i] + 1
        count = (extent - span) // strides[i] + 1
        if op.get("ceil_mode", 0):
            count = -(-(extent - span) // strides[i]) + 1
            if (count - 1) * strides[i] >= x.shape[2 + i] + pads[i]:
                count -= 1  # it would begin in the padding
        rest.append(max((count - 1) * strides[i] + span - extent, 0))
    return rest


@operator("MaxPool")
def _max_pool(op: Operator, args: Sequence[Any]) -> Any:
    (x,), kernel = args, list(op.get("kernel_shape"))
    if len([name for name in op.outputs if name]) > 1:
        raise NotWritten("with indices")
    strides, dilations, pads = window = _window(op, x, kernel)
    rest = _overhang(op, x, kernel, window)
    dims = len(kernel)
    ends = [a + b for a, b in zip(pads[dims:], rest, strict=True)]
    wide = _padded(x, pads[:dims] + ends, float("-inf"))
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    return function(wide, kernel, strides, 0, dilations)


@operator("AveragePool", "LpPool")
def _average_pool(op: Operator, args: Sequence[Any]) -> Any:
    """Sums of windows over counts of windows: a convolution with ones."""
    (x,), kernel = args, list(op.get("kernel_shape"))
    strides, dilations, pads = window = _window(op, x, kernel)
    rest, dims = _overhang(op, x, kernel, window), len(kernel)
    function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    ones = torch.ones([1, 1, *kernel], dtype=x.dtype)

    def sums(value: Any, edge: float) -> Any:
        value = value.reshape(-1, 1, *value.shape[2:])
        value = _padded(_padded(value, pads, edge), [0] * dims + rest)
        return function(value, ones, None, strides, 0, dilations)

    if op.kind == "LpPool":
        p = op.get("p", 2)
        y = sums(x.abs() ** p, 0.0) ** (1 / p)
    else:
        y = sums(x, 0.0) / sums(torch.ones_like(x), float(op.get("count_include_pad", 0)))
    return y.reshape(*x.shape[:2], *y.shape[2:])


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(op: Operator, args: Sequence[Any]) -> Any:
    (x,) = args
    axes = list(range(2, x.ndim))
    if op.kind == "GlobalAveragePool":
        return x.mean(axes, keepdim=True)
    if op.kind == "GlobalMaxPool":
        return x.amax(axes, keepdim=True)
    p = op.get("p", 2)
    return (x.abs() ** p).sum(axes, keepdim=True) ** (1 / p)


@operator("BatchNormalization")
def _batch_norm(op: Operator, args: Sequence[Any]) -> Any:
    """In training mode also the running statistics; the variance is that of the batch as it is."""
    x, scale, bias, mean, var = args
    shape = [-1, *[1] * (x.ndim - 2)]
    running = ()
    if op.get("training_mode", 0):
        axes, keep = [axis for axis in range(x.ndim) if axis != 1], op.get("momentum", 0.9)
        now = x.mean(axes), x.var(axes, correction=0)
        pairs = zip((mean, var), now, strict=True)
        running = tuple(old * keep + new.detach() * (1 - keep) for old, new in pairs)
        mean, var = now
    inverse = scale / torch.sqrt(var + op.get("epsilon", 1e-5))
    y = (x - mean.reshape(shape)) * inverse.reshape(shape) + bias.reshape(shape)
    return (y, *running)


@operator("InstanceNormalization")
def _instance_norm(op: Operator, args: Sequence[Any]) -> Any:
    x, scale, bias = args
    return F.group_norm(x, x.shape[1], scale, bias, op.get("epsilon", 1e-5))


@operator("GroupNormalization")
def _group_norm(op: Operator, args: Sequence[Any]) -> Any:
    """Weights are one per channel since opset 21, before one per group."""
    x, *weights = args
    groups = op.get("num_groups")
    each = x.shape[1] // groups
    scale, bias = (w if op.opset >= 21 else w.repeat_interleave(each) for w in weights)
    return F.group_norm(x, groups, scale, bias, op.get("epsilon", 1e-5))


@operator("LayerNormalization", "RMSNormalization")
def _layer_norm(op: Operator, args: Sequence[Any]) -> Any:
    x, scale, bias = args[0], at(args, 1), at(args, 2)
    axes = list(range(op.get("axis", -1) % x.ndim, x.ndim))
    centred = op.kind == "LayerNormalization"
    mean = x.mean(axes, keepdim=True) if centred else torch.zeros((), dtype=x.dtype)
    square = (x - mean).square().mean(axes, keepdim=True)
    inverse = torch.rsqrt(square + op.get("epsilon", 1e-5))
    y = (x - mean) * inverse * (1.0 if scale is None else scale)
    y = y if bias is None else y + bias
    return (y, mean, inverse) if centred else y


@operator("LpNormalization")
def _lp_norm(op: Operator, args: Sequence[Any]) -> Any:
    x, axis, p = args[0], op.get("axis", -1), op.get("p", 2)
    size = (x.abs() if p == 1 else x.square()).sum(axis, keepdim=True)
    size = torch.where(size == 0, 1.0, size)  # what is 0 throughout stays so
    return x / (size if p == 1 else torch.sqrt(size))


@operator("MeanVarianceNormalization")
def _mean_variance(op: Operator, args: Sequence[Any]) -> Any:
    (x,), axes = args, list(op.get("axes") or [0, 2, 3])
    mean = x.mean(axes, keepdim=True)
    return (x - mean) / (((x * x).mean(axes, keepdim=True) - mean * mean).sqrt() + 1e-9)


@operator("LRN")
def _lrn(op: Operator, args: Sequence[Any]) -> Any:
    (x,), size = args, op.get("size")
    before = (size - 1) // 2
    square = x.square().reshape(x.shape[0], 1, x.shape[1], -1)
    wide = F.pad(square, (0, 0, before, size - 1 - before))
    sums = wide.unfold(2, size, 1).sum(-1).reshape(x.shape)
    scale = op.get("bias", 1.0) + op.get("alpha", 1e-4) / size * sums
    return x / scale ** op.get("beta", 0.75)


@operator("Resize")
def _resize(op: Operator, args: Sequence[Any]) -> Any:
    """Along each axis by itself a product with a constant matrix. ONNX's evaluator makes it, from
    the unit matrix; that it does so along all axes at once is what the whole is held against."""
    from gradlet.frontends.onnx.oracle.agreement import evaluated

    x = args[0]
    if op.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotWritten("that keeps the aspect ratio")
    if op.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise NotWritten("of a part")
    axes = [axis % x.ndim for axis in op.get("axes") or range(x.ndim)]
    given = [at(args, i) for i in (1, 2, 3)]
    roi, scales, sizes = (None if v is None or not v.numel() else v for v in given)
    for place, axis in enumerate(axes):
        own = {
            "roi": None if roi is None else roi.reshape(2, -1)[:, place],
            "scales": None if scales is None else scales[place : place + 1],
            "sizes": None if sizes is None else sizes[place : place + 1],
        }
        unit = torch.eye(x.shape[axis], dtype=torch.float64)
        names = ["unit", *(name if value is not None else "" for name, value in own.items())]
        fed = {"unit": unit, **{name: value for name, value in own.items() if value is not None}}
        (matrix,) = evaluated(op, fed, names, {"axes": [1]})
        moved = x.movedim(axis, -1) @ torch.as_tensor(matrix).to(x.dtype)
        x = moved.movedim(-1, axis)
    return x
