"""How the front ends spell convolution."""

from __future__ import annotations

from typing import Any

from gradlet.ir.graph import Attrs
from gradlet.ops.base import ints, pair
from gradlet.ops.importer import Call, Importer, from_onnx, from_toml, from_torch
from gradlet.ops.importers.volumes import conv_volume
from gradlet.ops.lib.line import batched
from gradlet.ops.lib.window import Sides, onnx_padding, same_padding, toml_padding


def _fold_padding(imp: Importer, x: str, sides: Sides) -> tuple[str, Sides]:
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


def _attrs(stride: Any, padding: tuple[int, ...], dilation: Any, groups: int) -> Attrs:
    return {
        "stride": pair(stride),
        "padding": padding,
        "dilation": pair(dilation),
        "groups": int(groups),
    }


@from_torch("aten.conv1d.default", "aten.conv1d.padding")
def _torch_conv1d(imp: Importer, call: Call) -> str:
    x, weight, bias, stride, padding, dilation, groups = call.args[:7]
    operands = [imp.tensor(x), *(imp.param(v) for v in (weight, bias) if v is not None)]
    shape, kernel = imp.shape(operands[0]), imp.shape(operands[1])[2]
    (step,), (spread,) = stride, dilation
    if padding == "same":
        sides = same_padding((1, shape[-1]), (1, kernel), (1, 1), (1, spread))[1::2]
    else:
        sides = (0, 0) if padding == "valid" else (int(padding[0]),) * 2
    attrs: Attrs = {
        "stride": (step,),
        "padding": sides,
        "dilation": (spread,),
        "groups": int(groups),
    }
    return batched(imp, "conv2d", operands, attrs, 3)


@from_torch("aten.conv2d.default", "aten.conv2d.padding")
def _torch_conv2d(imp: Importer, call: Call) -> str:
    x, weight, bias, stride, padding, dilation, groups = call.args[:7]
    operands = [imp.tensor(x), *(imp.param(v) for v in (weight, bias) if v is not None)]
    shape, kernel = imp.shape(operands[0]), imp.shape(operands[1])[2:]
    if padding == "same":
        sides = same_padding(shape[-2:], kernel, (1, 1), pair(dilation))
    else:
        sides = pair(0 if padding == "valid" else padding) * 2
    operands[0], sides = _fold_padding(imp, operands[0], sides)
    return batched(imp, "conv2d", operands, _attrs(stride, sides, dilation, groups), 4)


@from_torch("aten.conv3d.default", "aten.conv3d.padding")
def _torch_conv3d(imp: Importer, call: Call) -> str:
    x, weight, bias, stride, padding, dilation, groups = call.args[:7]
    operands = [imp.tensor(x), *(imp.param(v) for v in (weight, bias) if v is not None)]
    kernel, spread = imp.shape(operands[1])[2:], _triple(dilation)
    if padding == "same":
        around = [reach * (k - 1) for reach, k in zip(spread, kernel, strict=True)]
        sides = (*(n // 2 for n in around), *(n - n // 2 for n in around))
    else:
        sides = _triple(0 if padding == "valid" else padding) * 2
    attrs: Attrs = {
        "stride": _triple(stride),
        "padding": sides,
        "dilation": spread,
        "groups": int(groups),
    }
    return conv_volume(imp, operands, attrs)


def _triple(value: Any) -> tuple[int, ...]:
    items = [value] if isinstance(value, int) else list(value)
    return tuple(int(n) for n in (items * 3 if len(items) == 1 else items))


def _onnx_volume(imp: Importer, call: Call, operands: list[str]) -> str:
    size, kernel = imp.shape(operands[0])[2:], imp.shape(operands[1])[2:]
    stride, dilation = (tuple(call.attrs.get(k, [1] * 3)) for k in ("strides", "dilations"))
    lines = {"strides": [1, stride[0]], "dilations": [1, dilation[0]]}
    planes = {"strides": list(stride[1:]), "dilations": list(dilation[1:])}
    pads = list(call.attrs.get("pads", [0] * 6))
    lines["pads"], planes["pads"] = [0, pads[0], 0, pads[3]], [*pads[1:3], *pads[4:]]
    deep, flat = (Call(call.target, (), {**call.attrs, **own}) for own in (lines, planes))
    _, front, _, back = onnx_padding(imp, deep, (1, size[0]), (1, kernel[0]))
    top, left, bottom, right = onnx_padding(imp, flat, size[1:], kernel[1:])
    attrs: Attrs = {
        "stride": stride,
        "padding": (front, top, left, back, bottom, right),
        "dilation": dilation,
        "groups": int(call.attrs.get("group", 1)),
    }
    return conv_volume(imp, operands, attrs)


def onnx_line(imp: Importer, call: Call, operands: list[str]) -> Attrs:
    """Attributes of a convolution over one dimension, from those that it has in ONNX."""
    stride, dilation = (call.attrs.get(k, [1]) for k in ("strides", "dilations"))
    start, end = call.attrs.get("pads", [0, 0])
    wide = {**call.attrs, "strides": [1, *stride], "dilations": [1, *dilation]}
    wide["pads"] = [0, start, 0, end]
    lines = [(1, *imp.shape(operand)[2:]) for operand in operands[:2]]
    _, left, _, right = onnx_padding(imp, Call(call.target, call.args, wide), *lines)
    return {
        "stride": tuple(stride),
        "padding": (left, right),
        "dilation": tuple(dilation),
        "groups": int(call.attrs.get("group", 1)),
    }


@from_onnx("Conv")
def _onnx_conv(imp: Importer, call: Call) -> str:
    operands = [imp.tensor(call.args[0]), imp.param(call.args[1])]
    if call.arg(2) is not None:
        operands.append(imp.param(call.args[2]))
    rank = len(imp.shape(operands[0]))
    if rank == 3:
        return imp.add("conv2d", operands, onnx_line(imp, call, operands))
    if rank == 5:
        return _onnx_volume(imp, call, operands)
    if rank != 4:
        raise imp.unsupported("convolution over other than one to three spatial dimensions")
    kernel = imp.shape(operands[1])[2:]
    sides = onnx_padding(imp, call, imp.shape(operands[0])[2:], kernel)
    operands[0], sides = _fold_padding(imp, operands[0], sides)
    stride, dilation = call.attrs.get("strides", [1, 1]), call.attrs.get("dilations", [1, 1])
    attrs = _attrs(stride, sides, dilation, call.attrs.get("group", 1))
    return imp.add("conv2d", operands, attrs)


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
    stride, dilation = call.attrs.get("stride", 1), call.attrs.get("dilation", 1)
    return imp.add("conv2d", operands, _attrs(stride, sides, dilation, groups))
