"""Max and average pooling over [N, C, H, W], and the global average as a case of it.

Ties in a max window go to the first element in scan order, as in PyTorch; the gradient finds the
winner again from the input, so that no index tensor is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import (
    Axis,
    Call,
    Emitter,
    Importer,
    Lowering,
    Op,
    ShapeError,
    Span,
    Work,
    from_onnx,
    from_toml,
    from_torch,
    ints,
    pair,
    register,
)
from gradlet.ops.window import Window, onnx_padding, toml_padding, window


def _slide(attrs: Attrs) -> Window:
    return window(attrs, ints(attrs, "kernel"))


def _sizes(attrs: Attrs, x: Shape, y: Shape) -> dict[str, int]:
    slide = _slide(attrs)
    return {
        "planes": x[0] * x[1],
        "in_h": x[2],
        "in_w": x[3],
        "out_h": y[2],
        "out_w": y[3],
        **slide.sizes(),
        "pad_bottom": slide.padding[2],
        "pad_right": slide.padding[3],
        "count_pad": int(bool(attrs.get("count_include_pad", False))),
    }


def _pool_shape(attrs: Attrs, x: Shape) -> Shape:
    if len(x) != 4:
        raise ShapeError("feature maps need four dimensions")
    slide = _slide(attrs)
    if any(2 * pad > k for pad, k in zip(slide.padding, slide.kernel * 2, strict=True)):
        raise ShapeError(f"padding {slide.padding} exceeds half the kernel {slide.kernel}")
    return (x[0], x[1], *slide.output(*x[2:]))


def _forward_axes(site: Site) -> tuple[Axis, ...]:
    y = site.outs[0].shape
    slide = _slide(site.attrs)
    return (
        Axis("batch", y[0], (Span("x", 0), Span("y", 0))),
        Axis("channels", y[1], (Span("x", 1), Span("y", 1))),
        Axis("rows", y[2], (slide.forward_span("x", 0), Span("y", 2))),
        Axis("columns", y[3], (slide.forward_span("x", 1), Span("y", 3))),
    )


def _taps_per_output(site: Site) -> int:
    kernel = ints(site.attrs, "kernel")
    return kernel[0] * kernel[1]


@register
class MaxPool2d(Op):
    name = "max_pool2d"
    inputs = ("x",)
    exact = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (_pool_shape(attrs, ins[0]),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (_slide(attrs).windows(ins[0], fill=-np.inf).max(axis=(4, 5)),)

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        return {"x": emit.add("max_pool2d_grad", [grads[0], site.node.inputs[0]], site.attrs)}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return _forward_axes(site)

    def lower(self, site: Site) -> Lowering:
        return Lowering(
            "pool", "max_forward", _sizes(site.attrs, site.ins[0].shape, site.outs[0].shape)
        )

    def torch(self, attrs: Attrs, *ins: str) -> str:
        top, left, bottom, right = ints(attrs, "padding")
        padded = f"F.pad({ins[0]}, ({left}, {right}, {top}, {bottom}), value=float('-inf'))"
        return (
            f"F.max_pool2d({padded}, {attrs['kernel']}, {attrs['stride']}, "
            f"dilation={attrs['dilation']})"
        )


@register
class MaxPool2dGrad(Op):
    name = "max_pool2d_grad"
    inputs = ("dy", "x")
    outputs = ("dx",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[1],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
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

    def axes(self, site: Site) -> tuple[Axis, ...]:
        dx = site.outs[0].shape
        return (
            Axis("batch", dx[0], (Span("dy", 0), Span("x", 0), Span("dx", 0))),
            Axis("channels", dx[1], (Span("dy", 1), Span("x", 1), Span("dx", 1))),
        )

    def lower(self, site: Site) -> Lowering:
        return Lowering(
            "pool", "max_grad", _sizes(site.attrs, site.ins[1].shape, site.ins[0].shape)
        )


def _divisors(attrs: Attrs, height: int, width: int) -> Array:
    """How many elements each output averages, [OH, OW]."""
    ones = np.ones((1, 1, height, width))
    slide = _slide(attrs)
    fill = 1.0 if attrs["count_include_pad"] else 0.0
    counts: Array = slide.windows(ones, fill=fill).sum(axis=(4, 5))[0, 0]
    return counts


@register
class AvgPool2d(Op):
    name = "avg_pool2d"
    inputs = ("x",)
    linear = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (_pool_shape(attrs, ins[0]),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        total = _slide(attrs).windows(ins[0]).sum(axis=(4, 5))
        return (total / _divisors(attrs, *ins[0].shape[2:]),)

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        attrs = {**site.attrs, "size": site.ins[0].shape[2:]}
        return {"x": emit.add("avg_pool2d_grad", [grads[0]], attrs)}

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.outs[0].elements * _taps_per_output(site))

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return _forward_axes(site)

    def lower(self, site: Site) -> Lowering:
        return Lowering(
            "pool", "avg_forward", _sizes(site.attrs, site.ins[0].shape, site.outs[0].shape)
        )

    def torch(self, attrs: Attrs, *ins: str) -> str:
        top, left, bottom, right = ints(attrs, "padding")
        sides = (left, right, top, bottom)
        pool = f"{attrs['kernel']}, {attrs['stride']}"
        mean = f"F.avg_pool2d(F.pad({ins[0]}, {sides}), {pool})"
        if attrs["count_include_pad"] or not any(sides):
            return mean
        return f"{mean} / F.avg_pool2d(F.pad(torch.ones_like({ins[0]}), {sides}), {pool})"


@register
class AvgPool2dGrad(Op):
    name = "avg_pool2d_grad"
    inputs = ("dy",)
    outputs = ("dx",)
    linear = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return ((*ins[0][:2], *ints(attrs, "size")),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
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

    def axes(self, site: Site) -> tuple[Axis, ...]:
        dx = site.outs[0].shape
        slide = _slide(site.attrs)
        return (
            Axis("batch", dx[0], (Span("dy", 0), Span("dx", 0))),
            Axis("channels", dx[1], (Span("dy", 1), Span("dx", 1))),
            slide.backward_axis(0, dx[2], "dy", "dx"),
            slide.backward_axis(1, dx[3], "dy", "dx"),
        )

    def lower(self, site: Site) -> Lowering:
        return Lowering(
            "pool", "avg_grad", _sizes(site.attrs, site.outs[0].shape, site.ins[0].shape)
        )


def _pool(imp: Importer, op: str, x: str, attrs: Attrs) -> str:
    """Pool a map with or without a batch dimension."""
    shape = imp.shape(x)
    if len(shape) == 4:
        return imp.add(op, [x], attrs)
    y = imp.add(op, [imp.add("reshape", [x], {"shape": (1, *shape)})], attrs)
    return imp.add("reshape", [y], {"shape": imp.shape(y)[1:]})


def global_average(imp: Importer, x: str) -> str:
    """The mean of each plane, as [N, C, 1, 1]."""
    return _pool(imp, "avg_pool2d", x, _attrs(imp.shape(x)[-2:], 1, (0, 0, 0, 0), 1, True))


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


@from_torch("aten.max_pool2d.default")
def _torch_max_pool2d(imp: Importer, call: Call) -> str:
    x, kernel, stride, padding, dilation, ceil_mode = call.args[:6]
    if ceil_mode:
        raise imp.unsupported("ceil_mode")
    attrs = _attrs(kernel, stride or kernel, pair(padding) * 2, dilation)
    return _pool(imp, "max_pool2d", imp.tensor(x), attrs)


@from_torch("aten.avg_pool2d.default")
def _torch_avg_pool2d(imp: Importer, call: Call) -> str:
    x, kernel, stride, padding, ceil_mode, count_pad, divisor = call.args[:7]
    if ceil_mode or divisor is not None:
        raise imp.unsupported("ceil_mode or divisor_override")
    count_pad = bool(count_pad) or not any(pair(padding))  # one spelling where it is the same
    attrs = _attrs(kernel, stride or kernel, pair(padding) * 2, 1, count_pad)
    return _pool(imp, "avg_pool2d", imp.tensor(x), attrs)


@from_torch("aten.adaptive_avg_pool2d.default")
def _torch_adaptive_avg_pool2d(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    size = imp.shape(x)[-2:]
    wanted = pair([n if want is None else want for n, want in zip(size, call.args[1], strict=True)])
    if any(n % want for n, want in zip(size, wanted, strict=True)):
        raise imp.unsupported(f"adaptive pooling of {size} to {wanted}, which does not divide it")
    if wanted == (1, 1):
        return global_average(imp, x)
    kernel = [n // want for n, want in zip(size, wanted, strict=True)]
    return _pool(imp, "avg_pool2d", x, _attrs(kernel, kernel, (0, 0, 0, 0), 1, True))


@from_onnx("MaxPool", "AveragePool")
def _onnx_pool(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    kernel = call.need("kernel_shape")
    if len(imp.shape(x)) != 4 or call.attrs.get("ceil_mode", 0):
        raise imp.unsupported("ceil_mode, or pooling over other than two spatial dimensions")
    stride, dilation = call.attrs.get("strides", [1, 1]), call.attrs.get("dilations", [1, 1])
    sides = onnx_padding(imp, call, imp.shape(x)[2:], kernel)
    if call.target == "MaxPool":
        return imp.add("max_pool2d", [x], _attrs(kernel, stride, sides, dilation))
    if any(d != 1 for d in dilation):
        raise imp.unsupported("a dilated average")
    count_pad = bool(call.attrs.get("count_include_pad", 0)) or not any(sides)
    return imp.add("avg_pool2d", [x], _attrs(kernel, stride, sides, 1, count_pad))


@from_onnx("GlobalAveragePool")
@from_toml("global_avg_pool2d")
def _global(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    if len(imp.shape(x)) != 4:
        raise imp.unsupported("pooling over other than two spatial dimensions")
    return global_average(imp, x)


@from_toml("max_pool2d", "avg_pool2d")
def _toml_pool(imp: Importer, call: Call) -> str:
    kernel = call.need("kernel")
    sides = toml_padding(call.attrs.get("padding", 0))
    count_pad = True if call.target == "avg_pool2d" else None
    stride = call.attrs.get("stride", kernel)
    return imp.add(call.target, call.args, _attrs(kernel, stride, sides, 1, count_pad))
