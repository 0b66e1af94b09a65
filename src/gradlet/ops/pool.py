"""Max and average pooling over [N, C, H, W], and the global average as a case of it.

Ties in a max window go to the first element in scan order, as in PyTorch; the gradient finds the
winner again from the input, so that no index tensor is kept. `ceil` is by how much the last windows
reach beyond the padding; a mean never counts that. `divisor` replaces the count of a mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, ShapeError, Span, Work, integer, ints, pair, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.channels import MapOp, plane_axes, spatial
from gradlet.ops.lib.tiling import Region, tile_shape
from gradlet.ops.lib.window import Window, window


def _slide(attrs: Attrs) -> Window:
    """The window over the plane with all that is around it, beyond the padding too."""
    top, left, bottom, right = ints(attrs, "padding")
    below, beside = _beyond(attrs)
    around = (top, left, bottom + below, right + beside)
    return window({**attrs, "padding": around}, ints(attrs, "kernel"))


def _beyond(attrs: Attrs) -> tuple[int, int]:
    return pair(attrs.get("ceil", (0, 0)))


def _sizes(attrs: Attrs, x: Shape, y: Shape) -> dict[str, int]:
    return {
        "planes": x[0] * x[1],
        "channels": x[1],
        "in_h": x[2],
        "in_w": x[3],
        "out_h": y[2],
        "out_w": y[3],
        **_slide(attrs).sizes(),
        "pad_bottom": ints(attrs, "padding")[2],
        "pad_right": ints(attrs, "padding")[3],
        "count_pad": int(bool(attrs.get("count_include_pad", False))),
        "divisor": integer(attrs, "divisor") if "divisor" in attrs else 0,
    }


def _pool_shape(attrs: Attrs, x: Shape) -> Shape:
    if len(x) != 4:
        raise ShapeError("feature maps need four dimensions")
    slide, padding = _slide(attrs), ints(attrs, "padding")
    if any(2 * pad > k for pad, k in zip(padding, slide.kernel * 2, strict=True)):
        raise ShapeError(f"padding {padding} exceeds half the kernel {slide.kernel}")
    return (x[0], x[1], *slide.output(*x[2:]))


class _Forward(MapOp):
    inputs = ("x",)
    maps = ("x", "y")
    mode: ClassVar[str]

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (_pool_shape(attrs, ins[0]),)

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        y, slide = site.outs[0].shape, _slide(site.attrs)
        return (
            *plane_axes(y, ("x", "y")),
            Axis("rows", y[2], (slide.forward_span("x", 0), Span("y", 2))),
            Axis("columns", y[3], (slide.forward_span("x", 1), Span("y", 3))),
        )

    def chw_tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        """The last windows of a part may reach into the padding, and beyond it."""
        sides = _slide(site.attrs).forward_tile(parts["x"], parts["y"], site.ins[0].shape[2:])
        if sides is None:
            return None
        top, left, below, beside = sides
        bottom, right = map(min, sides[2:], ints(site.attrs, "padding")[2:])
        beyond = (below - bottom, beside - right)
        return {**site.attrs, "padding": (top, left, bottom, right), "ceil": beyond}

    def chw_lower(self, site: Site) -> Lowering:
        sizes = _sizes(site.attrs, site.ins[0].shape, site.outs[0].shape)
        return Lowering("pool", self.mode, sizes)


def _gradient_tile(site: Site, parts: Mapping[str, Region]) -> Attrs | None:
    """All that is around a part, be it padding or the rest of the plane, is padding to it."""
    sides = _slide(site.attrs).backward_tile(parts["dy"], parts["dx"])
    return None if sides is None else {**site.attrs, "padding": sides, "ceil": (0, 0)}


def _taps_per_output(site: Site) -> int:
    kernel = ints(site.attrs, "kernel")
    return kernel[0] * kernel[1]


@register
class MaxPool2d(_Forward):
    name = "max_pool2d"
    mode = "max_forward"
    exact = True

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (_slide(attrs).windows(ins[0], fill=-np.inf).max(axis=(4, 5)),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        return {"x": emit.add("max_pool2d_grad", [grads[0], site.node.inputs[0]], site.attrs)}

    def chw_torch(self, attrs: Attrs, *ins: str) -> str:
        top, left, bottom, right = _slide(attrs).padding
        padded = f"F.pad({ins[0]}, ({left}, {right}, {top}, {bottom}), value=float('-inf'))"
        return (
            f"F.max_pool2d({padded}, {attrs['kernel']}, {attrs['stride']}, "
            f"dilation={attrs['dilation']})"
        )


@register
class MaxPool2dGrad(MapOp):
    name = "max_pool2d_grad"
    inputs = ("dy", "x")
    outputs = ("dx",)
    maps = ("dy", "x", "dx")

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[1],)

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, x = ins
        slide = _slide(attrs)
        top, left, bottom, right = slide.padding
        views = slide.windows(x, fill=-np.inf)
        winner = views.reshape(*views.shape[:4], -1).argmax(axis=-1)
        rows = np.arange(dy.shape[2])[:, None] * slide.stride[0]
        cols = np.arange(dy.shape[3])[None, :] * slide.stride[1]
        rows = rows + winner // slide.kernel[1] * slide.dilation[0]
        cols = cols + winner % slide.kernel[1] * slide.dilation[1]
        n, c = np.indices(dy.shape)[:2]
        padded = np.zeros(
            (*x.shape[:2], x.shape[2] + top + bottom, x.shape[3] + left + right), dy.dtype
        )
        np.add.at(padded, (n, c, rows, cols), dy)
        return (padded[:, :, top : top + x.shape[2], left : left + x.shape[3]],)

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        dx = site.outs[0].shape
        slide = _slide(site.attrs)
        axes = [*plane_axes(dx, ("dy", "x", "dx"))]
        for axis, name in enumerate(("rows", "columns")):
            step, dim = slide.stride[axis], 2 + axis
            if slide.reach[axis] > step or slide.padding[axis]:
                continue  # a winner may be an element that another part holds
            blocks = (Span("x", dim, step, 0, step), Span("dx", dim, step, 0, step))
            axes.append(Axis(name, -(-dx[dim] // step), (Span("dy", dim), *blocks)))
        return tuple(axes)

    def chw_tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        return _gradient_tile(site, parts)

    def chw_lower(self, site: Site) -> Lowering:
        return Lowering(
            "pool", "max_grad", _sizes(site.attrs, site.ins[1].shape, site.ins[0].shape)
        )


def _divisors(attrs: Attrs, height: int, width: int) -> Array:
    """How many elements each output averages, [OH, OW]."""
    if "divisor" in attrs:
        return np.asarray(float(integer(attrs, "divisor")))
    top, left, bottom, right = ints(attrs, "padding")
    inside = np.ones((height, width))
    fill = 1.0 if attrs["count_include_pad"] else 0.0
    counted = np.pad(inside, ((top, bottom), (left, right)), constant_values=fill)
    slide = replace(_slide(attrs), padding=(0, 0, *_beyond(attrs)))
    counts: Array = slide.windows(counted[None, None]).sum(axis=(4, 5))[0, 0]
    return counts


@register
class AvgPool2d(_Forward):
    name = "avg_pool2d"
    mode = "avg_forward"
    linear = True

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        total = _slide(attrs).windows(ins[0]).sum(axis=(4, 5))
        return (total / _divisors(attrs, *ins[0].shape[2:]),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        attrs = {**site.attrs, "size": spatial(site.attrs, site.ins[0].shape)}
        return {"x": emit.add("avg_pool2d_grad", [grads[0]], attrs)}

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.outs[0].elements * _taps_per_output(site))

    def chw_torch(self, attrs: Attrs, *ins: str) -> str:
        top, left, bottom, right = ints(attrs, "padding")
        sides, (below, beside) = (left, right, top, bottom), _beyond(attrs)
        pool = f"{attrs['kernel']}, {attrs['stride']}"
        around = (left, right + beside, top, bottom + below)
        mean = f"F.avg_pool2d(F.pad({ins[0]}, {around}), {pool})"
        if "divisor" in attrs:
            rows, columns = ints(attrs, "kernel")
            return f"{mean} * {rows * columns} / {attrs['divisor']}"
        if not any((below, beside)) and (attrs["count_include_pad"] or not any(sides)):
            return mean
        fill = 1.0 if attrs["count_include_pad"] else 0.0
        ones = f"F.pad(torch.ones_like({ins[0]}), {sides}, value={fill})"
        return f"{mean} / F.avg_pool2d(F.pad({ones}, (0, {beside}, 0, {below})), {pool})"


@register
class AvgPool2dGrad(MapOp):
    name = "avg_pool2d_grad"
    inputs = ("dy",)
    outputs = ("dx",)
    maps = ("dy", "dx")
    linear = True

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return ((*ins[0][:2], *ints(attrs, "size")),)

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        height, width = ints(attrs, "size")
        slide = _slide(attrs)
        top, left, bottom, right = slide.padding
        share = ins[0] / _divisors(attrs, height, width)
        padded = np.zeros(
            (*share.shape[:2], height + top + bottom, width + left + right), share.dtype
        )
        for i in range(slide.kernel[0]):
            for j in range(slide.kernel[1]):
                padded[slide.taps(i, j, share.shape[2:])] += share
        return (padded[:, :, top : top + height, left : left + width],)

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements * _taps_per_output(site))

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        dx = site.outs[0].shape
        slide = _slide(site.attrs)
        return (
            *plane_axes(dx, ("dy", "dx")),
            slide.backward_axis(0, dx[2], "dy", "dx"),
            slide.backward_axis(1, dx[3], "dy", "dx"),
        )

    def chw_tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        """A part does not know which of its windows reach over the edge of the plane: their means
        have to be over equally many elements."""
        if tile_shape(parts["dx"])[2:] == site.outs[0].shape[2:]:
            return site.attrs
        attrs, (rows, columns) = _gradient_tile(site, parts), parts["dy"][2:]
        counts = np.broadcast_to(
            _divisors(site.attrs, *site.outs[0].shape[2:]), site.ins[0].shape[2:]
        )[slice(*rows), slice(*columns)]
        if attrs is None or (counts != counts[0, 0]).any():
            return None
        return {**attrs, "size": tile_shape(parts["dx"])[2:], "divisor": int(counts[0, 0])}

    def chw_lower(self, site: Site) -> Lowering:
        return Lowering(
            "pool", "avg_grad", _sizes(site.attrs, site.outs[0].shape, site.ins[0].shape)
        )
