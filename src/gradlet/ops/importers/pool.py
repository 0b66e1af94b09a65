"""How the front ends spell pooling: ceil mode, one dimension, global and adaptive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradlet.ir.graph import Attrs
from gradlet.ops.base import OPS, each, ints, pair
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.importers.adaptive_max import adaptive_max
from gradlet.ops.importers.padding import pad
from gradlet.ops.lib.line import batched
from gradlet.ops.lib.window import onnx_padding, toml_padding, window
from gradlet.ops.shape import reshaped

NO_INDICES = "(the places of the maxima, which nothing may read)"


def _attrs(
    kernel: Sequence[int] | int,
    stride: Sequence[int] | int,
    padding: tuple[int, ...],
    dilation: Sequence[int] | int,
    count_include_pad: bool | None = None,
) -> Attrs:
    attrs = {
        "kernel": pair(kernel),
        "stride": pair(stride),
        "padding": padding,
        "dilation": pair(dilation),
    }
    return attrs if count_include_pad is None else {**attrs, "count_include_pad": count_include_pad}


def _rounded_up(attrs: Attrs, size: Sequence[int]) -> Attrs:
    """Ceil mode: a last window need not be whole, if it starts before the padding at the end."""
    slide = window(attrs, ints(attrs, "kernel"))
    beyond = []
    for d in (0, 1):
        before, after = slide.padding[d], slide.padding[d + 2]
        rest = size[d] + before + after - slide.reach[d]
        count = -(-rest // slide.stride[d])
        if count * slide.stride[d] >= size[d] + before:
            count -= 1
        beyond.append(max(0, count * slide.stride[d] - rest))
    return {**attrs, "ceil": (beyond[0], beyond[1])} if any(beyond) else attrs


def _pool(imp: Importer, op: str, x: str, attrs: Attrs, *, ceil: bool = False) -> str:
    """Pool a map with or without a batch dimension."""
    attrs = _rounded_up(attrs, imp.shape(x)[-2:]) if ceil else attrs
    return batched(imp, op, [x], attrs, 4)


def _flat(imp: Importer, x: str, pooled: Callable[[str], str]) -> str:
    """Pool a line as a plane of height 1."""
    shape = imp.shape(x)
    y = pooled(imp.add("reshape", [x], {"shape": (*shape[:-1], 1, shape[-1])}))
    out = imp.shape(y)
    return imp.add("reshape", [y], {"shape": (*out[:-2], out[-1])})


def global_average(imp: Importer, x: str) -> str:
    """The mean of each plane, as [N, C, 1, 1]."""
    return _pool(imp, "avg_pool2d", x, _attrs(imp.shape(x)[-2:], 1, (0, 0, 0, 0), 1, True))


def _adaptive(imp: Importer, op: str, x: str, wanted: Sequence[int | None]) -> str:
    size = imp.shape(x)[-2:]
    result = pair([n if want is None else want for n, want in zip(size, wanted, strict=True)])
    if any(n % want for n, want in zip(size, result, strict=True)):
        if op == "max_pool2d":
            return adaptive_max(imp, x, result)
        return batched(imp, "resample2d", [x], {"size": result, "method": "mean"}, 4)
    count_pad = True if op == "avg_pool2d" else None
    kernel = [n // want for n, want in zip(size, result, strict=True)]
    stride = [1, 1] if result == (1, 1) else kernel
    return _pool(imp, op, x, _attrs(kernel, stride, (0, 0, 0, 0), 1, count_pad))


def _dims_of(call: Call) -> int:
    return int(call.target.partition("pool")[2][0])


def _torch_pool(
    imp: Importer, call: Call, op: str, windows: Sequence[Any], *, ceil: bool, **more: int
) -> str:
    """windows: kernels, strides, paddings and dilations."""
    dims, x = _dims_of(call), imp.tensor(call.args[0])
    sizes = [each(value, dims) for value in windows]
    if dims == 3:
        return _volume_pool(imp, op, x, sizes, ceil=ceil, **more)
    if dims == 1:
        sizes = [(0 if number == 2 else 1, *size) for number, size in enumerate(sizes)]
    kernel, stride, padding, dilation = sizes
    count_pad = bool(more["count_pad"]) if "count_pad" in more else None
    attrs = _attrs(kernel, stride, padding * 2, dilation, count_pad)
    if more.get("divisor"):
        attrs = {**attrs, "divisor": more["divisor"]}
    if dims == 1:
        return _flat(imp, x, lambda plane: _pool(imp, op, plane, attrs, ceil=ceil))
    return _pool(imp, op, x, attrs, ceil=ceil)


@from_torch(*(f"aten.max_pool{dims}d.default" for dims in (1, 2, 3)))
@from_torch("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def _torch_max_pool(imp: Importer, call: Call) -> str | Sequence[str]:
    _, kernel, stride, padding, dilation, ceil = call.args[:6]
    windows = (kernel, stride or kernel, padding, dilation)
    y = _torch_pool(imp, call, "max_pool2d", windows, ceil=bool(ceil))
    return [y, NO_INDICES] if "with_indices" in call.target else y


@from_torch(*(f"aten.avg_pool{dims}d.default" for dims in (1, 2, 3)))
def _torch_avg_pool(imp: Importer, call: Call) -> str:
    """Padding that counts, or does not, is one spelling where there is none."""
    _, kernel, stride, padding, ceil, count_pad, divisor = [*call.args, None][:7]
    counts = {"count_pad": int(bool(count_pad) or not any(each(padding, 1)))}
    counts["divisor"] = int(divisor or 0)
    windows = (kernel, stride or kernel, padding, 1)
    return _torch_pool(imp, call, "avg_pool2d", windows, ceil=bool(ceil), **counts)


@from_torch(*(f"aten.adaptive_avg_pool{dims}d.default" for dims in (1, 2, 3)))
@from_torch(*(f"aten.adaptive_max_pool{dims}d.default" for dims in (1, 2, 3)))
def _torch_adaptive_pool(imp: Importer, call: Call) -> str | Sequence[str]:
    x, wanted, dims = imp.tensor(call.args[0]), call.args[1], _dims_of(call)
    largest = "max" in call.target
    op = "max_pool2d" if largest else "avg_pool2d"
    if dims == 1:
        y = _flat(imp, x, lambda plane: _adaptive(imp, op, plane, (1, *wanted)))
    elif dims == 2:
        y = _adaptive(imp, op, x, wanted)
    else:
        y = adaptive_volume(imp, op, x, each(wanted, 3))
    return [y, NO_INDICES] if largest else y


@from_onnx("MaxPool", "AveragePool")
def _onnx_pool(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    rank = len(imp.shape(x))
    if rank == 3:
        lines = {k: [1, *call.attrs[k]] for k in _PER_DIM if k in call.attrs}
        start, end = call.attrs.get("pads", [0, 0])
        flat = Call(call.target, (), {**call.attrs, **lines, "pads": [0, start, 0, end]})
        return _flat(imp, x, lambda plane: _onnx_planes(imp, flat, plane))
    if rank == 5:
        planes, deep = _of_dims(call, (1, 2)), _of_dims(call, (0,))
        return _volume(
            imp, x, lambda p: _onnx_planes(imp, planes, p), lambda p: _onnx_planes(imp, deep, p)
        )
    if rank != 4:
        raise imp.unsupported("pooling over other than one, two or three spatial dimensions")
    return _onnx_planes(imp, call, x)


def _volume(imp: Importer, x: str, flat: Callable[[str], str], deep: Callable[[str], str]) -> str:
    """Windows over three dimensions: first within each plane, then over the depth, whose planes
    are lines. A tie goes to the first element of a window as it is read, which is PyTorch's too."""
    *lead, c, depth, h, w = imp.shape(x)
    n = lead[0] if lead else 1
    y = flat(reshaped(imp, x, (n, c * depth, h, w)))
    h, w = imp.shape(y)[2:]
    y = deep(reshaped(imp, y, (n, c, depth, h * w)))
    return reshaped(imp, y, (*lead, c, imp.shape(y)[2], h, w))


def _volume_pool(
    imp: Importer, op: str, x: str, windows: Sequence[Sequence[int]], *, ceil: bool, **more: int
) -> str:
    """Kernels, strides, paddings and dilations of the three dimensions."""
    kernel, stride, around, dilation = windows
    count_pad = bool(more.pop("count_pad", 0)) if op == "avg_pool2d" else None
    divisor = more.pop("divisor", 0)

    def pooled(y: str, dims: Sequence[int], total: int) -> str:
        rest = [1] * (2 - len(dims))
        own = [[values[d] for d in dims] + rest for values in (kernel, stride, dilation)]
        sides = ([around[d] for d in dims] + [0] * len(rest)) * 2
        if own[0] == own[1] == [1, 1] and not any(sides) and not total:
            return y
        attrs = _attrs(own[0], own[1], tuple(sides), own[2], count_pad)
        return _pool(imp, op, y, {**attrs, "divisor": total} if total else attrs, ceil=ceil)

    once = 1 if divisor else 0
    return _volume(imp, x, lambda y: pooled(y, (1, 2), divisor), lambda y: pooled(y, (0,), once))


def adaptive_volume(imp: Importer, op: str, x: str, wanted: Sequence[int | None]) -> str:
    size = imp.shape(x)[-3:]
    deep, *flat = (n if want is None else int(want) for n, want in zip(size, wanted, strict=True))
    return _volume(
        imp,
        x,
        lambda y: _adaptive(imp, op, y, flat) if imp.shape(y)[2:] != tuple(flat) else y,
        lambda y: _adaptive(imp, op, y, (deep, None)) if imp.shape(y)[2] != deep else y,
    )


def _of_dims(call: Call, dims: tuple[int, ...]) -> Call:
    """A pooling over some of three dimensions, the last of a plane being 1 wide if it is one."""
    rest = [1] * (2 - len(dims))
    attrs = {**call.attrs, "kernel_shape": [*(call.need("kernel_shape")[d] for d in dims), *rest]}
    for key in ("strides", "dilations"):
        attrs[key] = [*(call.attrs.get(key, [1, 1, 1])[d] for d in dims), *rest]
    pads, none = call.attrs.get("pads", [0] * 6), [0] * len(rest)
    attrs["pads"] = [*(pads[d] for d in dims), *none, *(pads[3 + d] for d in dims), *none]
    return Call(call.target, (), attrs)


_PER_DIM = ("kernel_shape", "strides", "dilations")


def _onnx_planes(imp: Importer, call: Call, x: str) -> str:
    kernel = call.need("kernel_shape")
    stride, dilation = call.attrs.get("strides", [1, 1]), call.attrs.get("dilations", [1, 1])
    sides = onnx_padding(imp, call, imp.shape(x)[2:], kernel)
    ceil = bool(call.attrs.get("ceil_mode", 0))
    wide = any(2 * pad > k for pad, k in zip(sides, [*kernel, *kernel], strict=True))
    if call.target == "MaxPool":
        if wide:  # more than PyTorch pads: cells that never win
            x = pad(imp, x, (0, 0, *sides[:2]), (0, 0, *sides[2:]), value=LOWEST)
            sides = (0, 0, 0, 0)
        return _pool(imp, "max_pool2d", x, _attrs(kernel, stride, sides, dilation), ceil=ceil)
    count_pad = bool(call.attrs.get("count_include_pad", 0)) or not any(sides)
    attrs = _attrs(kernel, stride, sides, dilation, count_pad)
    if wide or any(d != 1 for d in dilation):
        return _average_by_sums(imp, x, attrs, ceil=ceil)
    return _pool(imp, "avg_pool2d", x, attrs, ceil=ceil)


LOWEST = -3.4028234663852886e38


def _average_by_sums(imp: Importer, x: str, attrs: Attrs, *, ceil: bool) -> str:
    """An average that PyTorch does not have: sums by a convolution, over the number of cells."""
    _, c, *size = imp.shape(x)
    kernel, sides = ints(attrs, "kernel"), ints(attrs, "padding")
    rounded = _rounded_up(attrs, size) if ceil else attrs
    beyond = ints(rounded, "ceil") if "ceil" in rounded else (0, 0)
    around = (*sides[:2], sides[2] + beyond[0], sides[3] + beyond[1])
    conv = {name: attrs[name] for name in ("stride", "dilation")}
    conv |= {"padding": around, "groups": c}
    sums = imp.add("conv2d", [x, imp.constant(np.ones((c, 1, *kernel), np.float32))], conv)
    cells = np.ones(size)
    if attrs["count_include_pad"]:
        cells = np.pad(cells, [(sides[d], sides[d + 2]) for d in (0, 1)], constant_values=1)
        around = (0, 0, *beyond)
    counts = OPS["conv2d"].reference(
        {**conv, "padding": around, "groups": 1}, cells[None, None], np.ones((1, 1, *kernel))
    )[0]
    return imp.add("mul", [sums, imp.constant((1 / counts).astype(np.float32))])


@from_toml("global_avg_pool2d")
def _toml_global(imp: Importer, call: Call) -> str:
    if len(imp.shape(call.args[0])) != 4:
        raise imp.unsupported("pooling over other than two spatial dimensions")
    return global_average(imp, call.args[0])


@from_onnx("GlobalAveragePool", "GlobalMaxPool")
def _onnx_global(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    op = "max_pool2d" if call.target == "GlobalMaxPool" else "avg_pool2d"
    if len(imp.shape(x)) == 3:
        return _flat(imp, x, lambda plane: _adaptive(imp, op, plane, (1, 1)))
    if len(imp.shape(x)) == 5 and op == "max_pool2d":
        raise imp.unsupported(
            "the maximum of volumes, of which onnx's own evaluator, the judge of a file, takes two "
            "dimensions only; ReduceMax over all three does"
        )
    if len(imp.shape(x)) == 5:
        return adaptive_volume(imp, op, x, (1, 1, 1))
    if len(imp.shape(x)) != 4:
        raise imp.unsupported("pooling over other than one to three spatial dimensions")
    return _adaptive(imp, op, x, (1, 1))


@from_toml("max_pool2d", "avg_pool2d")
def _toml_pool(imp: Importer, call: Call) -> str:
    kernel = call.need("kernel")
    sides = toml_padding(call.attrs.get("padding", 0))
    count_pad = True if call.target == "avg_pool2d" else None
    stride = call.attrs.get("stride", kernel)
    return imp.add(call.target, call.args, _attrs(kernel, stride, sides, 1, count_pad))
