"""Planes of another size: nearest and linear interpolation, and means of blocks that overlap.

All are sums of rows and columns with fixed weights, from whole-number arithmetic, so that no
rounding decides which row is taken. `method` is nearest, linear, corners (linear, with the corners
aligned) or mean (adaptive pooling).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Axis, Lowering, ShapeError, Span, Work, ints, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.importer import Call, Importer, from_onnx, from_torch
from gradlet.ops.importers.resize import Rule, resized
from gradlet.ops.lib.channels import MapOp, plane_axes, spatial
from gradlet.ops.lib.line import batched
from gradlet.ops.lib.tiling import Region, tile_shape
from gradlet.ops.shape import reshaped

METHODS = ("nearest", "linear", "corners", "mean")
UNROUNDED = Rule.rounding
PLAIN = {
    ("nearest", "asymmetric", "floor"): "nearest",
    ("linear", "half_pixel", UNROUNDED): "linear",
    ("linear", "align_corners", UNROUNDED): "corners",
}
"""The rules (mode, place, rounding) that have a kernel of their own."""


def _matrix(method: str, size: int, result: int) -> Array:
    """Weights [result, size] of one dimension."""
    weights = np.zeros((result, size))
    for i in range(result):
        if method == "mean":
            begin, end = i * size // result, -(-(i + 1) * size // result)
            weights[i, begin:end] = 1 / (end - begin)
            continue
        above, below = {
            "nearest": (i * size // result, 1),
            "linear": (max(0, (2 * i + 1) * size - result), 2 * result),
            "corners": (i * (size - 1), max(1, result - 1)),
        }[method]
        first, part = above // below, above % below / below
        weights[i, first] += 1 - part
        weights[i, min(first + 1, size - 1)] += part
    return weights


def _matrices(attrs: Attrs, size: Sequence[int], result: Sequence[int]) -> list[Array]:
    method = str(attrs["method"])
    return [_matrix(method, n, m) for n, m in zip(size, result, strict=True)]


def _sizes(attrs: Attrs, x: Shape, y: Shape) -> dict[str, int]:
    sizes = {"planes": x[0] * x[1], "channels": x[1], "in_h": x[2], "in_w": x[3]}
    return {**sizes, "out_h": y[2], "out_w": y[3], "method": METHODS.index(str(attrs["method"]))}


def _work(site: Site, x: Shape, y: Shape) -> Work:
    taps = {"nearest": 1, "mean": (x[2] // y[2] + 2) * (x[3] // y[3] + 2)}
    each = taps.get(str(site.attrs["method"]), 4) + 4  # the weights are rounded as well
    return Work(0, site.moved_bytes, each * int(np.prod(y)))


class _Resample(MapOp):
    linear = True
    mode: ClassVar[str]

    def sides(self, site: Site) -> tuple[Shape, Shape]:
        """The shapes before and after, of operands that the gradient has in turn."""
        x, y = site.ins[0].shape, site.outs[0].shape
        return (x, y) if self.mode == "forward" else (y, x)

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return ((*ins[0][:2], *ints(attrs, "size")),)

    def work(self, site: Site) -> Work:
        site = self.chw_site(site)
        return _work(site, *self.sides(site))

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        given, made = self.maps if self.mode == "forward" else self.maps[::-1]
        return _axes(site, given, made, *self.sides(site))

    def chw_tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        return {**site.attrs, "size": tile_shape(parts[self.outputs[0]])[2:]}

    def chw_lower(self, site: Site) -> Lowering:
        return Lowering("resample", self.mode, _sizes(site.attrs, *self.sides(site)))


def _axes(site: Site, given: str, made: str, x: Shape, y: Shape) -> tuple[Axis, ...]:
    """Rows and columns are free where each makes, or is made of, a block of its own."""
    axes = [*plane_axes(x, (given, made))]
    widens = {"nearest": True, "mean": False}.get(str(site.attrs["method"]))
    for dim, name in ((2, "rows"), (3, "columns")):
        steps, wide = (x[dim], y[dim]) if widens else (y[dim], x[dim])
        if widens is not None and wide % steps == 0:
            spans = [
                Span(operand, dim, size // steps, 0, size // steps)
                for operand, size in ((given, x[dim]), (made, y[dim]))
            ]
            axes.append(Axis(name, steps, tuple(spans)))
    return tuple(axes)


@register
class Resample2d(_Resample):
    name = "resample2d"
    inputs = ("x",)
    maps = ("x", "y")
    mode = "forward"

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if len(ins[0]) != 4:
            raise ShapeError("feature maps need four dimensions")
        if min(ints(attrs, "size")) < 1:
            raise ShapeError("nothing is left of the result")
        return super().chw_shape(attrs, *ins)

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        rows, columns = _matrices(attrs, ins[0].shape[2:], ints(attrs, "size"))
        return (rows @ ins[0] @ columns.T,)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        attrs = {**site.attrs, "size": spatial(site.attrs, site.ins[0].shape)}
        return {"x": emit.add("resample2d_grad", [grads[0]], attrs)}

    def chw_torch(self, attrs: Attrs, *ins: str) -> str:
        size = ints(attrs, "size")
        match attrs["method"]:
            case "mean":
                return f"F.adaptive_avg_pool2d({ins[0]}, {size})"
            case "nearest":
                return f"F.interpolate({ins[0]}, {size})"
        corners = attrs["method"] == "corners"
        return f"F.interpolate({ins[0]}, {size}, mode='bilinear', align_corners={corners})"


@register
class Resample2dGrad(_Resample):
    name = "resample2d_grad"
    inputs = ("dy",)
    outputs = ("dx",)
    maps = ("dy", "dx")
    mode = "grad"

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        rows, columns = _matrices(attrs, ints(attrs, "size"), ins[0].shape[2:])
        return (rows.T @ ins[0] @ columns,)


def _resampled(imp: Importer, x: str, size: Sequence[int], method: str) -> str:
    """Planes, or lines as planes of height 1, which every method leaves alone."""
    shape = imp.shape(x)
    if len(size) == 2:
        return batched(imp, "resample2d", [x], {"size": (size[0], size[1]), "method": method}, 4)
    if len(size) == 3:  # planes first, then the depth of what are lines by then
        n, c, depth = shape[:3]
        y = reshaped(imp, x, (n, c * depth, *shape[3:]))
        y = y if shape[3:] == tuple(size[1:]) else _resampled(imp, y, size[1:], method)
        y = reshaped(imp, y, (n, c, depth, size[1] * size[2]))
        y = y if depth == size[0] else _resampled(imp, y, (size[0], imp.shape(y)[3]), method)
        return reshaped(imp, y, (n, c, *size))
    flat = imp.add("reshape", [x], {"shape": (*shape[:2], 1, shape[2])})
    y = imp.add("resample2d", [flat], {"size": (1, size[0]), "method": method})
    return imp.add("reshape", [y], {"shape": (*shape[:2], size[0])})


def _scaled(size: Sequence[int], scales: Sequence[float]) -> list[int]:
    return [math.floor(n * scale) for n, scale in zip(size, scales, strict=True)]


def _whole(size: Sequence[int], result: Sequence[int], scales: Sequence[float]) -> bool:
    return all(abs(n * s - m) < 1e-6 for n, m, s in zip(size, result, scales, strict=True))


@from_torch(
    "aten.upsample_nearest1d.vec",
    "aten.upsample_nearest2d.vec",
    "aten.upsample_nearest3d.vec",
    "aten.upsample_linear1d.vec",
    "aten.upsample_bilinear2d.vec",
    "aten.upsample_trilinear3d.vec",
    "aten._upsample_nearest_exact1d.vec",
    "aten._upsample_nearest_exact2d.vec",
    "aten._upsample_nearest_exact3d.vec",
    "aten.upsample_bicubic2d.vec",
    "aten._upsample_bilinear2d_aa.vec",
    "aten._upsample_bicubic2d_aa.vec",
)
def _torch_upsample(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    size, scales = call.args[1], call.args[-1]
    shape = imp.shape(x)[2:]
    result = [int(n) for n in size] if size else _scaled(shape, scales)
    corners = "nearest" not in call.target and bool(call.args[2])
    if "_aa." in call.target and corners:
        raise imp.unsupported("antialiasing with align_corners=True")
    rule = _torch_rule(call.target, corners)
    method = PLAIN.get((rule.mode, rule.place, rule.rounding))
    if method and not rule.antialias and (size or corners or _whole(shape, result, scales)):
        return _resampled(imp, x, result, method)
    if corners or not scales:  # a scale that is given plays no part
        scales = [m / n for n, m in zip(shape, result, strict=True)]
    return resized(imp, x, rule, (*imp.shape(x)[:2], *result), (1.0, 1.0, *scales))


def _torch_rule(target: str, corners: bool) -> Rule:
    if "_nearest_exact" in target:
        return Rule("nearest", "half_pixel", "round_prefer_ceil")
    if "nearest" in target:
        return Rule("nearest", "asymmetric", "floor")
    place = "align_corners" if corners else "half_pixel"
    rule = Rule("cubic" if "cubic" in target else "linear", place)
    if "_aa." in target:  # Pillow's rules, whose cubic curve is another one
        rule = replace(rule, cubic=-0.5, antialias=True, exclude_outside=True)
    return rule


@from_onnx("Resize")
def _onnx_resize(imp: Importer, call: Call) -> str:
    x = imp.tensor(call.args[0])
    shape = imp.shape(x)
    mode = call.attrs.get("mode", "nearest")
    place = call.attrs.get("coordinate_transformation_mode", "half_pixel")
    rounding = call.attrs.get("nearest_mode", "round_prefer_floor")
    wanted, scales = _onnx_sizes(imp, call, shape)
    method = PLAIN.get(
        (mode, place.removeprefix("pytorch_"), rounding if mode == "nearest" else UNROUNDED)
    )
    if place == "tf_crop_and_resize":
        raise imp.unsupported("Resize of a region of interest (tf_crop_and_resize)")
    if place == "pytorch_half_pixel" and 1 in wanted[2:]:
        raise imp.unsupported("pytorch_half_pixel to a single row or column")
    antialias = bool(call.attrs.get("antialias", 0))
    if antialias and mode == "cubic":
        raise imp.unsupported("antialiasing of cubic interpolation")
    planes = len(shape) in (3, 4, 5) and tuple(wanted[:2]) == shape[:2]
    if method and planes and not antialias and _whole(shape, wanted, scales):
        return _resampled(imp, x, wanted[2:], method)
    rule = Rule(
        mode,
        place,
        rounding,
        float(call.attrs.get("cubic_coeff_a", -0.75)),
        antialias,
        bool(call.attrs.get("exclude_outside", 0)),
    )
    return resized(imp, x, rule, wanted, scales)


def _onnx_sizes(imp: Importer, call: Call, shape: Shape) -> tuple[list[int], list[float]]:
    """Sizes and scales of all dimensions, from either of them, for some dimensions or for all."""
    rank = len(shape)
    axes = [int(axis) % rank for axis in call.attrs.get("axes", range(rank))]
    sizes, scales = list(shape), [1.0] * rank
    if call.arg(3) is None:
        for axis, scale in zip(axes, imp.static(call.args[2]), strict=True):
            scales[axis] = scale  # single precision, in which ONNX's evaluator finds the places
        return _scaled(shape, scales), scales
    given = dict(zip(axes, (int(n) for n in imp.static(call.args[3])), strict=True))
    policy = call.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        pick = min if policy == "not_larger" else max
        common = pick(size / shape[axis] for axis, size in given.items())
        for axis in given:
            sizes[axis], scales[axis] = math.floor(common * shape[axis] + 0.5), common
        return sizes, scales
    for axis, size in given.items():
        sizes[axis], scales[axis] = size, size / shape[axis]
    return sizes, scales
