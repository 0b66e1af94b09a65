"""Convolution over one or two dimensions: any kernel, stride, padding per side, dilation, groups.

Depthwise is groups == channels, pointwise a 1x1 kernel. Feature maps are [N, C, H, W], weights
[O, C/groups, KH, KW]. `padding` is (top, left, bottom, right). In one dimension H and KH are left
out, `padding` is (left, right), and everything is computed as a map of height 1. With channels last
maps are [N, H, W, C] and weights [O, KH, KW, C/groups].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import (
    Axis,
    Call,
    Emitter,
    Importer,
    Lowering,
    ShapeError,
    Span,
    Work,
    from_onnx,
    from_toml,
    from_torch,
    integer,
    ints,
    pair,
    register,
)
from gradlet.ops.channels import MapOp, all_but_channels, channels_last, spatial
from gradlet.ops.line import as_planes, batched, lifted, planes, without_height, without_rows
from gradlet.ops.window import Sides, onnx_padding, same_padding, toml_padding, window


def _grouped(attrs: Attrs) -> int:
    return integer(attrs, "groups")


def conv_sizes(attrs: Attrs, x: Shape, w: Shape, y: Shape) -> dict[str, int]:
    attrs, x, w, y = lifted(attrs), planes(x), planes(w), planes(y)
    return {
        "batch": x[0],
        "in_channels": x[1],
        "in_h": x[2],
        "in_w": x[3],
        "out_channels": y[1],
        "out_h": y[2],
        "out_w": y[3],
        **window(attrs, w[2:]).sizes(),
        "groups": _grouped(attrs),
    }


def _macs(w: Shape, y: Shape) -> int:
    return int(np.prod(y)) * int(np.prod(w[1:]))


def _group_axis(groups: int, operands: dict[str, tuple[int, int]]) -> Axis:
    """Groups never mix: each takes its own block of channels of every operand."""
    spans = []
    for operand, (dim, channels) in operands.items():
        block = channels // groups
        spans.append(Span(operand, dim, block, 0, block))
    return Axis("groups", groups, tuple(spans))


@register
class Conv2d(MapOp):
    name = "conv2d"
    inputs = ("x", "w", "b?")
    maps = ("x", "w", "y")
    linear = True

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        x, w = ins[:2]
        groups = _grouped(attrs)
        if not len(x) == len(w) == 2 + len(ints(attrs, "stride")):
            raise ShapeError("feature maps and weights differ in their number of dimensions")
        if x[1] != w[1] * groups:
            raise ShapeError(f"{x[1]} input channels, but the weights take {w[1]} x {groups}")
        if w[0] % groups:
            raise ShapeError(f"{w[0]} output channels cannot be split into {groups} groups")
        if len(ins) == 3 and ins[2] != (w[0],):
            raise ShapeError(f"the bias has shape {ins[2]}, not ({w[0]},)")
        rows, columns = window(lifted(attrs), planes(w)[2:]).output(*planes(x)[2:])
        return ((x[0], w[0], *(rows, columns)[4 - len(x) :]),)

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        x, w = as_planes(*ins[:2])
        groups = _grouped(attrs)
        view = window(lifted(attrs), w.shape[2:]).windows(x)
        if groups == x.shape[1] == w.shape[0]:
            y = np.einsum("ncyxij,cij->ncyx", view, w[:, 0])
        else:
            parts = [
                np.tensordot(part, own, axes=([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2)
                for part, own in zip(_split(view, groups, 1), _split(w, groups, 0), strict=True)
            ]
            y = np.concatenate(parts, axis=1)
        y = y + ins[2][:, None, None] if len(ins) == 3 else y
        return (without_height(y, attrs),)

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        x, w = site.node.inputs[:2]
        result = {}
        if "x" in wanted:
            attrs = {**site.attrs, "size": spatial(site.attrs, site.ins[0].shape)}
            result["x"] = emit.add("conv2d_input_grad", [grads[0], w], attrs)
        if "w" in wanted:
            attrs = {**site.attrs, "kernel": spatial(site.attrs, site.ins[1].shape)}
            result["w"] = emit.add("conv2d_weight_grad", [grads[0], x], attrs)
        if "b" in wanted:
            axes = all_but_channels(site.attrs, site.outs[0].shape)
            result["b"] = emit.add("sum", [grads[0]], {"axes": axes})
        return result

    def rows_dim(self, site: Site, slot: str) -> int | None:
        if slot == "x" or (slot == "w" and _grouped(site.attrs) > 1):
            return None
        return len(site.outs[0].shape) - 1 if channels_last(site.attrs) else 1

    def work(self, site: Site) -> Work:
        return Work(_macs(site.ins[1].shape, site.outs[0].shape), site.moved_bytes)

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        x, w, y = (planes(t.shape) for t in (*site.ins[:2], site.outs[0]))
        slide = window(lifted(site.attrs), w[2:])
        bias = {"b": (0, y[1])} if len(site.ins) == 3 else {}
        axes = [
            Axis("batch", x[0], (Span("x", 0), Span("y", 0))),
            Axis("rows", y[2], (slide.forward_span("x", 0), Span("y", 2))),
            Axis("columns", y[3], (slide.forward_span("x", 1), Span("y", 3))),
        ]
        if _grouped(site.attrs) > 1:
            operands = {"x": (1, x[1]), "w": (0, w[0]), "y": (1, y[1]), **bias}
            grouped = _group_axis(_grouped(site.attrs), operands)
            return without_rows((*axes, grouped), site.attrs)
        out_spans = (Span("w", 0), *(Span(b, 0) for b in bias), Span("y", 1))
        in_spans = (Span("x", 1), Span("w", 1))
        axes.append(Axis("out_channels", y[1], out_spans))
        axes.append(Axis("in_channels", x[1], in_spans, reduction=True))
        return without_rows(axes, site.attrs)

    def chw_lower(self, site: Site) -> Lowering:
        x, w, y = site.ins[0].shape, site.ins[1].shape, site.outs[0].shape
        return Lowering("conv2d", "forward", conv_sizes(site.attrs, x, w, y))

    def chw_torch(self, attrs: Attrs, *ins: str) -> str:
        sides = ints(attrs, "padding")
        dims = len(sides) // 2
        x, padding = ins[0], f"{sides[:dims]}"
        if sides[:dims] != sides[dims:]:
            around = [n for d in reversed(range(dims)) for n in (sides[d], sides[d + dims])]
            x, padding = f"F.pad({x}, {tuple(around)})", "0"
        bias = ins[2] if len(ins) == 3 else "None"
        return (
            f"F.conv{dims}d({x}, {ins[1]}, {bias}, stride={attrs['stride']}, padding={padding}, "
            f"dilation={attrs['dilation']}, groups={attrs['groups']})"
        )


@register
class Conv2dInputGrad(MapOp):
    name = "conv2d_input_grad"
    inputs = ("dy", "w")
    outputs = ("dx",)
    maps = ("dy", "w", "dx")
    linear = True

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        dy, w = ins
        return ((dy[0], w[1] * _grouped(attrs), *ints(attrs, "size")),)

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, w = as_planes(*ins)
        groups = _grouped(attrs)
        slide = window(lifted(attrs), w.shape[2:])
        height, width = ints(lifted(attrs), "size")
        top, left, bottom, right = slide.padding
        shape = (dy.shape[0], w.shape[1] * groups, height + top + bottom, width + left + right)
        padded = np.zeros(shape, dtype=np.result_type(dy, w))
        for i in range(slide.kernel[0]):
            for j in range(slide.kernel[1]):
                padded[slide.taps(i, j, dy.shape[2:])] += _through_tap(dy, w[:, :, i, j], groups)
        dx = padded[:, :, top : top + height, left : left + width]
        return (without_height(dx, attrs),)

    def work(self, site: Site) -> Work:
        return Work(_macs(site.ins[1].shape, site.ins[0].shape), site.moved_bytes)

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        dy, w, dx = (planes(t.shape) for t in (*site.ins, site.outs[0]))
        given, made = self.inputs[0], self.outputs[0]  # a transposed convolution has other names
        slide = window(lifted(site.attrs), w[2:])
        axes = [
            Axis("batch", dy[0], (Span(given, 0), Span(made, 0))),
            slide.backward_axis(0, dx[2], given, made),
            slide.backward_axis(1, dx[3], given, made),
        ]
        if _grouped(site.attrs) > 1:
            operands = {given: (1, dy[1]), "w": (0, w[0]), made: (1, dx[1])}
            grouped = _group_axis(_grouped(site.attrs), operands)
            return without_rows((*axes, grouped), site.attrs)
        axes.append(Axis("in_channels", dx[1], (Span("w", 1), Span(made, 1))))
        axes.append(Axis("out_channels", dy[1], (Span(given, 1), Span("w", 0)), reduction=True))
        return without_rows(axes, site.attrs)

    def chw_lower(self, site: Site) -> Lowering:
        dy, w, dx = site.ins[0].shape, site.ins[1].shape, site.outs[0].shape
        return Lowering("conv2d", "input_grad", conv_sizes(site.attrs, dx, w, dy))


def _split(array: Array, groups: int, axis: int) -> list[Array]:
    return np.split(array, groups, axis=axis)


def _through_tap(dy: Array, w: Array, groups: int) -> Array:
    """What one kernel tap w[O, C/groups] sends back of the output gradient."""
    if w.shape[1] == 1 and groups == w.shape[0]:
        return dy * w[:, 0, None, None]
    parts = [
        np.tensordot(d, own, axes=([1], [0])).transpose(0, 3, 1, 2)
        for d, own in zip(_split(dy, groups, 1), _split(w, groups, 0), strict=True)
    ]
    return np.concatenate(parts, axis=1)


@register
class Conv2dWeightGrad(MapOp):
    name = "conv2d_weight_grad"
    inputs = ("dy", "x")
    outputs = ("dw",)
    maps = ("dy", "x", "dw")
    linear = True

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        dy, x = ins
        return ((dy[1], x[1] // _grouped(attrs), *ints(attrs, "kernel")),)

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, x = as_planes(*ins)
        groups = _grouped(attrs)
        view = window(lifted(attrs), ints(lifted(attrs), "kernel")).windows(x)
        if groups == x.shape[1] == dy.shape[1]:
            dw = np.einsum("ncyx,ncyxij->cij", dy, view)[:, None]
            return (without_height(dw, attrs),)
        parts = [
            np.tensordot(d, part, axes=([0, 2, 3], [0, 2, 3]))
            for d, part in zip(_split(dy, groups, 1), _split(view, groups, 1), strict=True)
        ]
        return (without_height(np.concatenate(parts, axis=0), attrs),)

    def work(self, site: Site) -> Work:
        return Work(_macs(site.outs[0].shape, site.ins[0].shape), site.moved_bytes)

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        dy, x, dw = (planes(t.shape) for t in (*site.ins, site.outs[0]))
        slide = window(lifted(site.attrs), dw[2:])
        rows = (Span("dy", 2), slide.forward_span("x", 0))
        columns = (Span("dy", 3), slide.forward_span("x", 1))
        axes = [
            Axis("batch", dy[0], (Span("dy", 0), Span("x", 0)), reduction=True),
            Axis("rows", dy[2], rows, reduction=True),
            Axis("columns", dy[3], columns, reduction=True),
        ]
        if _grouped(site.attrs) > 1:
            operands = {"dy": (1, dy[1]), "x": (1, x[1]), "dw": (0, dw[0])}
            grouped = _group_axis(_grouped(site.attrs), operands)
            return without_rows((*axes, grouped), site.attrs)
        axes.append(Axis("out_channels", dy[1], (Span("dy", 1), Span("dw", 0))))
        axes.append(Axis("in_channels", x[1], (Span("x", 1), Span("dw", 1))))
        return without_rows(axes, site.attrs)

    def chw_lower(self, site: Site) -> Lowering:
        dy, x, dw = site.ins[0].shape, site.ins[1].shape, site.outs[0].shape
        return Lowering("conv2d", "weight_grad", conv_sizes(site.attrs, x, dw, dy))


def _fold_padding(imp: Importer, x: str, sides: Sides) -> tuple[str, Sides]:
    """Take zeros that were put around the planes before into the convolution's own padding."""
    node = imp.producer(x)
    if node is None or node.op != "pad" or len(imp.shape(x)) != 4:
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
    if rank != 4:
        raise imp.unsupported("convolution over other than one or two spatial dimensions")
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
