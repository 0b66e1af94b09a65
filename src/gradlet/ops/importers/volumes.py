"""Convolutions over three dimensions, by those over two: every slice of the depth is a plane.

A window is as deep as its kernel; its layers become channels of one plane, and so do those of the
weight, which is only viewed for that. Sums over the depth are then sums over channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlet.ir.graph import Attrs
from gradlet.ops.base import ints
from gradlet.ops.concat import join
from gradlet.ops.crop import sliced
from gradlet.ops.importer import Importer
from gradlet.ops.importers.padding import pad
from gradlet.ops.shape import reshaped, transposed


def _of_planes(attrs: Attrs) -> dict[str, Any]:
    """The attributes without the depth, which comes first of three."""
    sides = ints(attrs, "padding")
    plane = {key: ints(attrs, key)[1:] for key in ("stride", "dilation")}
    return {**plane, "padding": (*sides[1:3], *sides[4:]), "groups": attrs["groups"]}


def conv_volume(imp: Importer, operands: Sequence[str], attrs: Attrs) -> str:
    """x[N, C, D, H, W], or without a batch, with a weight and perhaps a bias."""
    x, weight, *bias = operands
    if len(imp.shape(x)) == 4:
        y = conv_volume(imp, [reshaped(imp, x, (1, *imp.shape(x))), weight, *bias], attrs)
        return reshaped(imp, y, imp.shape(y)[1:])
    n, c = imp.shape(x)[:2]
    out, inside, *kernel = imp.shape(weight)
    sides = ints(attrs, "padding")
    x = pad(imp, x, (0, 0, sides[0], 0, 0), (0, 0, sides[3], 0, 0))
    layers = _layers(imp, x, kernel[0], ints(attrs, "stride")[0], ints(attrs, "dilation")[0])
    deep, *plane = imp.shape(layers)[1], *imp.shape(layers)[4:]
    flat = reshaped(imp, layers, (n * deep, c * kernel[0], *plane))
    viewed = reshaped(imp, weight, (out, inside * kernel[0], *kernel[1:]))
    y = imp.add("conv2d", [flat, viewed, *bias], _of_planes(attrs))
    y = reshaped(imp, y, (n, deep, *imp.shape(y)[1:]))
    return transposed(imp, y, (0, 2, 1, 3, 4))


def _layers(imp: Importer, x: str, kernel: int, stride: int, dilation: int) -> str:
    """[N, windows, C, kernel, H, W]: the layers that each window of the depth has."""
    n, c, depth, h, w = imp.shape(x)
    reach = dilation * (kernel - 1) + 1
    if depth < reach:
        raise imp.unsupported(f"a kernel {reach} deep on a depth of {depth}")
    count = (depth - reach) // stride + 1
    if stride == kernel and dilation == 1:  # windows side by side
        x = sliced(imp, x, [(2, 0, count * kernel, 1)])
        apart = reshaped(imp, x, (n, c, count, kernel, h, w))
        return transposed(imp, apart, (0, 2, 1, 3, 4, 5))
    turned = transposed(imp, x, (0, 2, 1, 3, 4))
    parts = []
    for layer in range(kernel):
        begin = layer * dilation
        part = sliced(imp, turned, [(1, begin, begin + (count - 1) * stride + 1, stride)])
        parts.append(reshaped(imp, part, (n, count, c, 1, h, w)))
    return join(imp, parts, 3)


def transposed_volume(
    imp: Importer, operands: Sequence[str], attrs: Attrs, size: Sequence[int]
) -> str:
    """The adjoint: planes by the transposed convolution, whose layers then add up in the depth."""
    x, weight = operands
    if len(imp.shape(x)) == 4:
        y = transposed_volume(imp, [reshaped(imp, x, (1, *imp.shape(x))), weight], attrs, size)
        return reshaped(imp, y, imp.shape(y)[1:])
    n, c, depth, *plane = imp.shape(x)
    _, inside, *kernel = imp.shape(weight)
    out = inside * int(str(attrs["groups"]))
    planes = reshaped(imp, transposed(imp, x, (0, 2, 1, 3, 4)), (n * depth, c, *plane))
    viewed = reshaped(imp, weight, (c, inside * kernel[0], *kernel[1:]))
    flat = {**_of_planes(attrs), "size": (size[1], size[2])}
    y = imp.add("conv_transpose", [planes, viewed], flat)
    layers = reshaped(imp, y, (n, depth, out, kernel[0], size[1] * size[2]))
    whole = _overlaid(imp, layers, ints(attrs, "stride")[0], ints(attrs, "dilation")[0])
    begin = ints(attrs, "padding")[0]
    beyond = begin + size[0] - imp.shape(whole)[2]
    whole = pad(imp, whole, (0, 0, -begin, 0), (0, 0, beyond, 0))
    return reshaped(imp, whole, (n, out, *size))


def _overlaid(imp: Importer, layers: str, stride: int, dilation: int) -> str:
    """[N, D, C, kernel, plane] as [N, C, depth, plane]: layers that meet are added."""
    n, depth, c, kernel, plane = imp.shape(layers)
    turned = transposed(imp, layers, (0, 2, 1, 3, 4))
    if stride == kernel and dilation == 1:
        return reshaped(imp, turned, (n, c, depth * kernel, plane))
    size = (n, c, (depth - 1) * stride + dilation * (kernel - 1) + 1, plane)
    total = ""
    for layer in range(kernel):
        part = reshaped(imp, sliced(imp, turned, [(3, layer, layer + 1, 1)]), (n, c, depth, plane))
        attrs = {"start": (0, 0, layer * dilation, 0), "step": (1, 1, stride, 1), "size": size}
        laid = part if size == imp.shape(part) else imp.add("pad", [part], attrs)
        total = imp.add("add", [total, laid]) if total else laid
    return total
