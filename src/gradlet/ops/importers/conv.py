"""How the front ends spell convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlet.ops.base import each, ints, pair
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.importers.volumes import conv_volume
from gradlet.ops.lib.line import batched
from gradlet.ops.lib.window import conv_attrs, onnx_padding, toml_padding


def _fold_padding(imp: Importer, x: str, sides: Sequence[int]) -> tuple[str, Sequence[int]]:
    """Take zeros that were put around the planes before into the convolution's own padding."""
    node = imp.producer(x)
    if node is None or node.op != "pad" or len(imp.shape(x)) != 4 or node.attrs.get("value"):
        return x, sides
    inner = imp.shape(node.inputs[0])
    start, step = ints(node.attrs, "start"), ints(node.attrs, "step")
    if inner[:2] != imp.shape(x)[:2] or step != (1, 1, 1, 1):
        return x, sides
    end = [n - a - m for n, a, m in zip(imp.shape(x), start, inner, strict=True)]
    top, left, bottom, right = sides
    around = (top + start[2], left + start[3], bottom + end[2], right + end[3])
    return node.inputs[0], around


def _convolution(
    imp: Importer,
    operands: list[str],
    stride: Sequence[int],
    sides: Sequence[int],
    dilation: Sequence[int],
    groups: Any,
) -> str:
    """Over one to three dimensions, of a map with or without a batch."""
    dims = len(stride)
    if dims == 2:
        operands[0], sides = _fold_padding(imp, operands[0], sides)
    attrs = conv_attrs(stride, sides, dilation, groups)
    if dims == 3:
        return conv_volume(imp, operands, attrs)
    return batched(imp, "conv2d", operands, attrs, dims + 2)


@from_torch(*(f"aten.conv{dims}d.{how}" for dims in (1, 2, 3) for how in ("default", "padding")))
def _torch_conv(imp: Importer, call: Call) -> str:
    x, weight, bias, stride, padding, dilation, groups = call.args[:7]
    operands = [imp.tensor(x), *(imp.param(v) for v in (weight, bias) if v is not None)]
    kernel = imp.shape(operands[1])[2:]
    step, spread = each(stride, len(kernel)), each(dilation, len(kernel))
    if padding == "same":
        around = [reach * (k - 1) for reach, k in zip(spread, kernel, strict=True)]
        sides = (*(n // 2 for n in around), *(n - n // 2 for n in around))
    else:
        sides = each(0 if padding == "valid" else padding, len(kernel)) * 2
    return _convolution(imp, operands, step, sides, spread, groups)


@from_onnx("Conv")
def _onnx_conv(imp: Importer, call: Call) -> str:
    operands = [imp.tensor(call.args[0]), imp.param(call.args[1])]
    if call.arg(2) is not None:
        operands.append(imp.param(call.args[2]))
    dims = len(imp.shape(operands[0])) - 2
    if dims not in (1, 2, 3):
        raise imp.unsupported("convolution over other than one to three spatial dimensions")
    size, kernel = (imp.shape(operand)[2:] for operand in operands[:2])
    sides = onnx_padding(imp, call, size, kernel)
    stride, dilation = (call.attrs.get(key, [1] * dims) for key in ("strides", "dilations"))
    return _convolution(imp, operands, stride, sides, dilation, call.attrs.get("group", 1))


@from_toml("conv2d")
def _toml_conv2d(imp: Importer, call: Call) -> str:
    x = call.args[0]
    channels = imp.shape(x)[1]
    groups = int(call.attrs.get("groups", 1))
    out, kernel = int(call.need("out")), pair(call.need("kernel"))
    if groups < 1 or channels % groups:
        raise imp.unsupported(f"{channels} channels in {groups} groups")
    fan_in = channels // groups * kernel[0] * kernel[1]
    operands = [x, imp.param(("weight", (out, channels // groups, *kernel), fan_in))]
    if call.attrs.get("bias", True):
        operands.append(imp.param(("bias", (out,), fan_in)))
    sides = toml_padding(call.attrs.get("padding", 0))
    stride, dilation = (pair(call.attrs.get(key, 1)) for key in ("stride", "dilation"))
    return imp.add("conv2d", operands, conv_attrs(stride, sides, dilation, groups))
