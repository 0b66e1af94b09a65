"""Transposed convolution: forward is the input gradient of a convolution, and the other way round.

Weights are [C, O/groups, KH, KW]: those of the convolution that leads back, from O to C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradlet.ir.graph import Attrs, Shape, Site
from gradlet.ops.base import ShapeError, each, integer, ints, register
from gradlet.ops.conv import Conv2dInputGrad
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.importers.volumes import transposed_volume
from gradlet.ops.lib.channels import MapOp, spatial
from gradlet.ops.lib.line import batched, lifted, planes
from gradlet.ops.lib.window import conv_attrs, window


@register
class ConvTranspose(Conv2dInputGrad):
    """`size` is the extent of the result; stride leaves open which of several it is."""

    name = "conv_transpose"
    inputs = ("x", "w")
    outputs = ("y",)
    maps = ("x", "w", "y")
    layouts = MapOp.layouts

    def flat(self, site: Site) -> Site:
        return site

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        x, w = ins
        if not len(x) == len(w) == 2 + len(ints(attrs, "stride")):
            raise ShapeError("feature maps and weights differ in their number of dimensions")
        groups = integer(attrs, "groups")
        if x[1] != w[0] or x[1] % groups:
            raise ShapeError(
                f"{x[1]} input channels, but the weights take {w[0]} in {groups} groups"
            )
        wide = lifted(attrs)
        size = ints(wide, "size")
        if min(size) < 1:
            raise ShapeError("nothing is left of the result")
        back = window(wide, planes(w)[2:]).output(size[0], size[1])
        if back != planes(x)[2:]:
            raise ShapeError("output padding must be smaller than the stride")
        return super().chw_shape(attrs, *ins)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        x, w = site.node.inputs
        attrs = {key: value for key, value in site.attrs.items() if key != "size"}
        result = {}
        if "x" in wanted:
            result["x"] = emit.add("conv2d", [grads[0], w], attrs)
        if "w" in wanted:
            kernel = spatial(site.attrs, site.ins[1].shape)
            result["w"] = emit.add("conv2d_weight_grad", [x, grads[0]], {**attrs, "kernel": kernel})
        return result

    def chw_torch(self, attrs: Attrs, *ins: str) -> str:
        size, sides = ints(attrs, "size"), ints(attrs, "padding")
        dims = len(size)
        whole = (
            f"F.conv_transpose{dims}d({ins[0]}, {ins[1]}, None, {attrs['stride']}, 0, 0, "
            f"{attrs['groups']}, {attrs['dilation']})"
        )
        return f"_window({whole}, {sides[:dims]}, {size})"


def _transposed(
    imp: Importer, operands: list[str], attrs: Attrs, extra: Sequence[int], bias: str
) -> str:
    """The op, the bias as an addition to it, and the size that the extra rows make."""
    x, w = (imp.shape(operand) for operand in operands)
    dims = len(w) - 2
    stride, dilation, sides = (ints(attrs, key) for key in ("stride", "dilation", "padding"))
    size = tuple(
        (x[d - dims] - 1) * stride[d]
        - sides[d]
        - sides[d + dims]
        + dilation[d] * (w[2 + d] - 1)
        + extra[d]
        + 1
        for d in range(dims)
    )
    if dims == 3:
        y = transposed_volume(imp, operands, attrs, size)
    else:
        y = batched(imp, "conv_transpose", operands, {**attrs, "size": size}, dims + 2)
    if not bias:
        return y
    column = imp.add("reshape", [bias], {"shape": (*imp.shape(bias), *(1,) * dims)})
    return imp.add("add", [y, column])


@from_torch("aten.conv_transpose1d.default", "aten.conv_transpose2d.input")
@from_torch("aten.conv_transpose3d.input")
def _torch_conv_transpose(imp: Importer, call: Call) -> str:
    x, weight, bias, stride, padding, extra, groups, dilation = call.args[:8]
    operands = [imp.tensor(x), imp.param(weight)]
    dims = len(imp.shape(operands[1])) - 2
    step, sides, spread, more = (each(v, dims) for v in (stride, padding, dilation, extra))
    attrs = conv_attrs(step, sides * 2, spread, groups)
    added = imp.param(bias) if bias is not None else ""
    return _transposed(imp, operands, attrs, more, added)


@from_onnx("ConvTranspose")
def _onnx_conv_transpose(imp: Importer, call: Call) -> str:
    operands = [imp.tensor(call.args[0]), imp.param(call.args[1])]
    bias = imp.param(call.args[2]) if call.arg(2) is not None else ""
    dims = len(imp.shape(operands[1])) - 2
    if dims not in (1, 2, 3):
        raise imp.unsupported("convolution over other than one to three spatial dimensions")
    stride, dilation = (call.attrs.get(key, [1] * dims) for key in ("strides", "dilations"))
    sides = call.attrs.get("pads", [0] * 2 * dims)
    attrs = conv_attrs(stride, sides, dilation, call.attrs.get("group", 1))
    extra = call.attrs.get("output_padding", [0] * dims)
    auto = call.attrs.get("auto_pad", "NOTSET")
    wanted = call.attrs.get("output_shape")
    if wanted is None and auto.startswith("SAME"):
        sizes = imp.shape(operands[0])[-dims:]
        wanted = [n * stride for n, stride in zip(sizes, ints(attrs, "stride"), strict=True)]
    if wanted is not None:
        attrs, extra = _fitted(imp, operands, attrs, wanted, extra, auto)
    return _transposed(imp, operands, attrs, extra, bias)


def _fitted(
    imp: Importer,
    operands: list[str],
    attrs: Attrs,
    wanted: Sequence[int],
    extra: Sequence[int],
    auto: str,
) -> tuple[Attrs, list[int]]:
    """The padding, and the rows beyond it, that lead to a wanted size."""
    x, w = (imp.shape(operand) for operand in operands)
    dims = len(w) - 2
    starts, ends, beyond = [], [], []
    for d in range(dims):
        reach = ints(attrs, "dilation")[d] * (w[2 + d] - 1) + 1
        whole = ints(attrs, "stride")[d] * (x[d - dims] - 1) + reach
        surplus = whole + extra[d] - int(wanted[-dims:][d])
        half = max(surplus, 0) // 2
        start = half if auto == "SAME_UPPER" else max(surplus, 0) - half
        starts.append(start)
        ends.append(max(surplus, 0) - start)
        beyond.append(extra[d] - min(surplus, 0))
    return {**attrs, "padding": (*starts, *ends)}, beyond
