"""Convolution over one or two dimensions: any kernel, stride, padding per side, dilation, groups.

Depthwise is groups == channels, pointwise a 1x1 kernel. Feature maps are [N, C, H, W], weights
[O, C/groups, KH, KW]. `padding` is (top, left, bottom, right). In one dimension H and KH are left
out, `padding` is (left, right), and everything is computed as a map of height 1. With channels last
maps are [N, H, W, C] and weights [O, KH, KW, C/groups].

With channels in pairs maps are [N, C/2, H, W, 2] and weights [O, C/2, KH, KW, 2], or, depthwise,
[O/2, 1, KH, KW, 2]; no other groups have them. What is in the place of a channel that is missing
counts as one, but for the last of the outputs, where there is a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, ShapeError, Span, Work, integer, ints, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.channels import (
    PAIRED,
    MapOp,
    all_but_channels,
    channels_last,
    in_pairs,
    spatial,
)
from gradlet.ops.lib.line import as_planes, lifted, plane_box, planes, without_height, without_rows
from gradlet.ops.lib.tiling import Region, slice_attrs, tile_shape
from gradlet.ops.lib.window import Sides, window

MAP = ("map_channels", "map_h", "map_w")
WEIGHTS = ("w", "dw")


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
        **dict.fromkeys(MAP, 0),
    }


Channels = Mapping[str, tuple[int, int]]
"""Of operands: the dimension of their channels, and how many there are."""


def _channel_axes(
    attrs: Attrs, planes: Sequence[Axis], grouped: Channels, axes: Sequence[Axis]
) -> tuple[Axis, ...]:
    """Groups never mix: each takes its own block of channels of every operand. Without groups the
    channels have axes of their own."""
    groups = _grouped(attrs)
    if groups > 1:
        blocks = [(name, dim, count // groups) for name, (dim, count) in grouped.items()]
        spans = tuple(Span(name, dim, block, 0, block) for name, dim, block in blocks)
        axes = (Axis("groups", groups, spans),)
    return without_rows((*planes, *axes), attrs)


def _tiled(attrs: Attrs, sides: Sides | None, channels: int, part: Region) -> Attrs | None:
    """The attributes with this padding, for as many groups as there are in a part of the channels
    of the output."""
    if sides is None:
        return None
    padding = sides if len(ints(attrs, "stride")) == 2 else sides[1::2]
    begin, end = part[1]
    groups = (end - begin) * _grouped(attrs) // channels if _grouped(attrs) > 1 else 1
    if in_pairs(attrs) and groups == 1 < _grouped(attrs):
        return None  # a single channel with a place beside it would look like two inputs
    return {**attrs, "padding": padding, "groups": groups}


def _forward_padding(
    attrs: Attrs, kernel: Shape, x: Region, y: Region, size: Shape
) -> Sides | None:
    slide = window(lifted(attrs), planes(kernel)[2:])
    return slide.forward_tile(plane_box(x), plane_box(y), planes(size)[2:])


class ConvOp(MapOp):
    """roles: which operands of a convolution the tensors are, in the order x, w, y; `mode` is the
    kernel's."""

    linear = True
    layouts: ClassVar[tuple[str, ...]] = ("chw", "hwc", PAIRED)
    mode: ClassVar[str]
    roles: ClassVar[tuple[int, int, int]]

    def paired_dim(self, attrs: Attrs, slot: str) -> int:
        return 0 if slot in WEIGHTS and _grouped(attrs) > 1 else 1

    def channels_known(self, attrs: Attrs, ins: Mapping[str, Shape]) -> Mapping[str, int]:
        groups = _grouped(attrs)
        if groups > 1:
            return dict.fromkeys(self.maps, groups)
        made = integer(attrs, "channels") if "channels" in attrs else ins["w"][0] if ins else 0
        return {"dy": made} if made else {}

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        """Only depthwise groups have pairs: those of others would belong to two of them."""
        groups = _grouped(attrs)
        if in_pairs(attrs) and groups > 1:
            for slot, shape in self._by_slot(ins).items():
                dim = self.paired_dim(attrs, slot)
                if slot in self.maps and (len(shape) <= dim or shape[dim] != -(-groups // 2)):
                    raise ShapeError(f"{groups} groups do not have a channel each in pairs")
        return super().shape(attrs, *ins)

    def flat(self, site: Site) -> Site:
        """A pointwise convolution does not care how its pixels are arranged: all in one row."""
        attrs, slots, count = site.attrs, self.slots(site), len(site.ins)
        kernel = next(t.shape[2:] for slot, t in slots if slot in WEIGHTS)
        plain = (
            attrs.get("layout", "chw") == "chw"
            and len(kernel) == 2
            and set(kernel) == {1}
            and set(ints(attrs, "stride")) == {1}
            and set(ints(attrs, "padding")) == {0}
        )
        if not plain:
            return site
        tensors = [
            replace(t, shape=(*t.shape[:2], 1, prod(t.shape[2:])))
            if slot in self.maps and slot not in WEIGHTS
            else t
            for slot, t in slots
        ]
        return Site(site.node, tuple(tensors[:count]), tuple(tensors[count:]))

    def chw_lower(self, site: Site) -> Lowering:
        return Lowering("conv2d", self.mode, conv_sizes(site.attrs, *self._shapes(site)))

    def work(self, site: Site) -> Work:
        x, w, y = map(planes, self._shapes(self.chw_site(site)))
        macs, taps = prod(y) * prod(w[1:]), prod(y[2:]) * prod(w[2:])
        inside = window(lifted(site.attrs), w[2:]).inside(x[2:], y[2:])
        return Work(macs, site.moved_bytes, padded=macs // taps * (taps - inside))

    def _shapes(self, site: Site) -> tuple[Shape, Shape, Shape]:
        """Of x, w and y of the convolution."""
        shapes = [tensor.shape for tensor in (*site.ins[:2], site.outs[0])]
        x, w, y = (shapes[role] for role in self.roles)
        return x, w, y

    def backing_sizes(self, site: Site, number: int) -> dict[str, int]:
        shape = planes(self.chw_site(site).ins[number].shape)
        return dict(zip(MAP, shape[1:], strict=True))


@register
class Conv2d(ConvOp):
    name = "conv2d"
    inputs = ("x", "w", "b?")
    maps = ("x", "w", "y")
    adds_once = ("b",)
    mode = "forward"
    roles = (0, 1, 2)

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

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        x, w = site.node.inputs[:2]
        result = {}
        if "x" in wanted:
            attrs = {**site.attrs, "size": spatial(site.attrs, site.ins[0].shape)}
            result["x"] = emit.add("conv2d_input_grad", [grads[0], w], attrs)
        if "w" in wanted:
            attrs = {**site.attrs, "kernel": spatial(site.attrs, site.ins[1].shape)}
            if in_pairs(attrs) and _grouped(attrs) == 1:
                attrs["channels"] = site.ins[1].shape[0]
            result["w"] = emit.add("conv2d_weight_grad", [grads[0], x], attrs)
        if "b" in wanted:
            axes = all_but_channels(site.attrs, site.outs[0].shape)
            made = emit.add("sum", [grads[0]], {"axes": axes})
            result["b"] = self._without_pairs(emit, site, made)
        return result

    def _without_pairs(self, emit: Emitter, site: Site, sums: str) -> str:
        """Of the bias, from those of pairs."""
        if not in_pairs(site.attrs):
            return sums
        count, pairs = site.ins[2].shape[0], site.outs[0].shape[1]
        joined = emit.add("reshape", [sums], {"shape": (2 * pairs,)})
        if count % 2 == 0:
            return joined
        return emit.add("slice", [joined], slice_attrs((2 * pairs,), 0, 0, count))

    def rows_dim(self, site: Site, slot: str) -> int | None:
        if in_pairs(site.attrs):
            return None
        if slot == "x" or (slot == "w" and _grouped(site.attrs) > 1):
            return None
        return len(site.outs[0].shape) - 1 if channels_last(site.attrs) else 1

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        x, w, y = (planes(t.shape) for t in (*site.ins[:2], site.outs[0]))
        slide = window(lifted(site.attrs), w[2:])
        bias = {"b": (0, y[1])} if len(site.ins) == 3 else {}
        plane = (
            Axis("batch", x[0], (Span("x", 0), Span("y", 0))),
            Axis("rows", y[2], (slide.forward_span("x", 0), Span("y", 2))),
            Axis("columns", y[3], (slide.forward_span("x", 1), Span("y", 3))),
        )
        grouped = {"x": (1, x[1]), "w": (0, w[0]), "y": (1, y[1]), **bias}
        out_spans = (Span("w", 0), *(Span(b, 0) for b in bias), Span("y", 1))
        channels = (
            Axis("out_channels", y[1], out_spans),
            Axis("in_channels", x[1], (Span("x", 1), Span("w", 1)), reduction=True),
        )
        return _channel_axes(site.attrs, plane, grouped, channels)

    def chw_tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        x, w, y = site.ins[0].shape, site.ins[1].shape, site.outs[0].shape
        sides = _forward_padding(site.attrs, w, parts["x"], parts["y"], x)
        return _tiled(site.attrs, sides, y[1], parts["y"])

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
class Conv2dInputGrad(ConvOp):
    name = "conv2d_input_grad"
    inputs = ("dy", "w")
    outputs = ("dx",)
    maps = ("dy", "w", "dx")
    mode = "input_grad"
    roles = (2, 1, 0)

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
        sent = _through_taps(dy, w, groups)
        for i in range(slide.kernel[0]):
            for j in range(slide.kernel[1]):
                padded[slide.taps(i, j, dy.shape[2:])] += sent(i, j)
        dx = padded[:, :, top : top + height, left : left + width]
        return (without_height(dx, attrs),)

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        dy, w, dx = (planes(t.shape) for t in (*site.ins, site.outs[0]))
        given, made = self.inputs[0], self.outputs[0]  # a transposed convolution has other names
        slide = window(lifted(site.attrs), w[2:])
        plane = (
            Axis("batch", dy[0], (Span(given, 0), Span(made, 0))),
            slide.backward_axis(0, dx[2], given, made),
            slide.backward_axis(1, dx[3], given, made),
        )
        grouped = {given: (1, dy[1]), "w": (0, w[0]), made: (1, dx[1])}
        channels = (
            Axis("in_channels", dx[1], (Span("w", 1), Span(made, 1))),
            Axis("out_channels", dy[1], (Span(given, 1), Span("w", 0)), reduction=True),
        )
        return _channel_axes(site.attrs, plane, grouped, channels)

    def chw_tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        given, made = parts[self.inputs[0]], parts[self.outputs[0]]
        slide = window(lifted(site.attrs), planes(site.ins[1].shape)[2:])
        sides = slide.backward_tile(plane_box(given), plane_box(made))
        attrs = _tiled(site.attrs, sides, site.ins[0].shape[1], given)
        return attrs and {**attrs, "size": tile_shape(made)[2:]}


def _split(array: Array, groups: int, axis: int) -> list[Array]:
    return np.split(array, groups, axis=axis)


def _through_taps(dy: Array, w: Array, groups: int) -> Callable[[int, int], Array]:
    """What each kernel tap sends back of the output gradient."""

    def product(own: Array) -> Array:
        """[N, H, W, C, ...] of weights [O, C/groups, ...]."""
        parts = zip(_split(dy, groups, 1), _split(own, groups, 0), strict=True)
        return np.concatenate([np.tensordot(d, v, axes=([1], [0])) for d, v in parts], axis=3)

    if w.shape[1] == 1 and groups == w.shape[0]:
        return lambda i, j: dy * w[:, 0, i, j, None, None]
    if dy.size < w.shape[0] ** 2:  # all taps at once; of many pixels that would be very large
        every = product(w)
        return lambda i, j: every[..., i, j].transpose(0, 3, 1, 2)
    return lambda i, j: product(w[:, :, i, j]).transpose(0, 3, 1, 2)


@register
class Conv2dWeightGrad(ConvOp):
    name = "conv2d_weight_grad"
    inputs = ("dy", "x")
    outputs = ("dw",)
    maps = ("dy", "x", "dw")
    mode = "weight_grad"
    roles = (1, 2, 0)

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

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        dy, x, dw = (planes(t.shape) for t in (*site.ins, site.outs[0]))
        slide = window(lifted(site.attrs), dw[2:])
        rows = (Span("dy", 2), slide.forward_span("x", 0))
        columns = (Span("dy", 3), slide.forward_span("x", 1))
        plane = (
            Axis("batch", dy[0], (Span("dy", 0), Span("x", 0)), reduction=True),
            Axis("rows", dy[2], rows, reduction=True),
            Axis("columns", dy[3], columns, reduction=True),
        )
        grouped = {"dy": (1, dy[1]), "x": (1, x[1]), "dw": (0, dw[0])}
        channels = (
            Axis("out_channels", dy[1], (Span("dy", 1), Span("dw", 0))),
            Axis("in_channels", x[1], (Span("x", 1), Span("dw", 1))),
        )
        return _channel_axes(site.attrs, plane, grouped, channels)

    def chw_tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        dy, x, dw = site.ins[0].shape, site.ins[1].shape, site.outs[0].shape
        sides = _forward_padding(site.attrs, dw, parts["x"], parts["dy"], x)
        attrs = _tiled(site.attrs, sides, dy[1], parts["dy"])
        if attrs and "channels" in attrs:
            attrs = {**attrs, "channels": tile_shape(parts["dy"])[1]}
        return attrs
