"""Normalisation by given statistics, and the update of running ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Arrays, Axis, Lowering, ShapeError, Span, Work, number, register
from gradlet.ops.elementwise import reduce_to
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.channels import MapOp, all_but_channels, channels_last
from gradlet.ops.lib.pointwise import Pointwise


def _column(value: Array, rank: int) -> Array:
    return value.reshape(-1, *(1,) * (rank - 2))


def _sizes(attrs: Attrs, x: Shape) -> dict[str, int | float | tuple[int, ...]]:
    inner = int(np.prod(x[2:], dtype=int))
    return {"outer": x[0], "channels": x[1], "inner": inner, "eps": number(attrs, "eps")}


def _axes(shape: Shape, large: Sequence[str], small: Sequence[str]) -> tuple[Axis, ...]:
    """Every dimension is free; the second one also runs along the channels' numbers."""
    return tuple(
        Axis(
            f"dim{dim}",
            extent,
            (*(Span(n, dim) for n in large), *(Span(n, 0) for n in small if dim == 1)),
        )
        for dim, extent in enumerate(shape)
    )


@register
class FrozenNorm(MapOp):
    """(x - mean) / sqrt(var + eps) * w + b by channel; no gradient flows to the statistics."""

    name = "frozen_norm"
    inputs = ("x", "mean", "var", "w?", "b?")
    maps = ("x", "y")
    overwrites = ("x",)

    def chw_shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if len(ins[0]) < 2 or any(shape != ins[0][1:2] for shape in ins[1:]):
            raise ShapeError("statistics, weight and bias need one number per channel")
        return (ins[0],)

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        x, mean, var, *affine = ins[0], *(_column(value, ins[0].ndim) for value in ins[1:])
        y = (x - mean) / np.sqrt(var + number(attrs, "eps"))
        y = y * affine[0] if affine else y
        return (y + affine[1] if len(affine) > 1 else y,)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        x, mean, var, *affine = (np.abs(value) for value in ins)
        return self.reference(attrs, x, -mean, var, *affine)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        (grad,), result = grads, {}
        x, mean, var, *affine = site.node.inputs
        if "w" in wanted:
            plain = emit.add("frozen_norm", [x, mean, var], site.attrs)
            result["w"] = _by_channel(emit, emit.add("mul", [plain, grad]), site)
        if "b" in wanted:
            result["b"] = _by_channel(emit, grad, site)
        if "x" in wanted:
            result["x"] = emit.add("frozen_norm_grad", [grad, var, *affine[:1]], site.attrs)
        return result

    def work(self, site: Site) -> Work:
        return Work(site.outs[0].elements, site.moved_bytes, 4 * site.outs[0].elements)

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        return _axes(site.ins[0].shape, ("x", "y"), ("mean", "var", "w", "b")[: len(site.ins) - 1])

    def chw_lower(self, site: Site) -> Lowering:
        return Lowering("frozen_norm", "forward", _sizes(site.attrs, site.ins[0].shape))

    def chw_torch(self, attrs: Attrs, *ins: str) -> str:
        weights = ", ".join(ins[3:] or ("None",))
        x, mean, var = ins[:3]
        return f"F.batch_norm({x}, {mean}.detach(), {var}.detach(), {weights}, eps={attrs['eps']})"


def _by_channel(emit: Emitter, grad: str, site: Site) -> str:
    """Sums over all dimensions but that of the channels."""
    shape = site.ins[0].shape
    if channels_last(site.attrs):
        return emit.add("sum", [grad], {"axes": all_but_channels(site.attrs, shape)})
    column = reduce_to(emit, grad, (shape[1], *(1,) * (len(shape) - 2)))
    return column if len(shape) == 2 else emit.add("reshape", [column], {"shape": shape[1:2]})


@register
class FrozenNormGrad(MapOp):
    name = "frozen_norm_grad"
    inputs = ("dy", "var", "w?")
    outputs = ("dx",)
    maps = ("dy", "dx")
    overwrites = ("dy",)
    additions = 4

    def chw_reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dy, var, *weight = ins[0], *(_column(value, ins[0].ndim) for value in ins[1:])
        dx = dy / np.sqrt(var + number(attrs, "eps"))
        return (dx * weight[0] if weight else dx,)

    def chw_axes(self, site: Site) -> tuple[Axis, ...]:
        return _axes(site.ins[0].shape, ("dy", "dx"), ("var", "w")[: len(site.ins) - 1])

    def chw_lower(self, site: Site) -> Lowering:
        return Lowering("frozen_norm", "input_grad", _sizes(site.attrs, site.ins[0].shape))


@register
class Blend(Pointwise):
    """(1 - momentum) * old + momentum * scale * new: a running mean takes a step. With a `guard` it
    takes none where what is new is infinite or no number."""

    name = "blend"
    inputs = ("old", "new")
    overwrites = ("old", "new")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        keep, take = _shares(attrs)
        moved = keep * ins[0] + take * ins[1]
        return (np.where(np.isfinite(ins[1]), moved, ins[0]) if attrs.get("guard") else moved,)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        keep, take = _shares(attrs)
        return (np.abs(keep * ins[0]) + np.abs(take * ins[1]),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        shares = dict(zip(("old", "new"), _shares(site.attrs), strict=True))
        return {
            slot: emit.add("affine", [grads[0]], {"slope": shares[slot], "offset": 0.0})
            for slot in wanted
        }

    def work(self, site: Site) -> Work:
        return Work(site.outs[0].elements, site.moved_bytes, 2 * site.outs[0].elements)

    def lower(self, site: Site) -> Lowering:
        keep, take = _shares(site.attrs)
        sizes = {"count": site.outs[0].elements, "keep": keep, "take": take}
        return Lowering("blend", "guarded" if site.attrs.get("guard") else "step", sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        keep, take = _shares(attrs)
        moved = f"{keep!r} * {ins[0]} + {take!r} * {ins[1]}"
        return (
            f"torch.where({ins[1]}.isfinite(), {moved}, {ins[0]})" if attrs.get("guard") else moved
        )


def _shares(attrs: Attrs) -> tuple[float, float]:
    momentum = number(attrs, "momentum")
    return 1 - momentum, momentum * number(attrs, "scale")
