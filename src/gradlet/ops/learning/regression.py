"""Losses that compare numbers with numbers: a table of facts, and the two ops that each makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Arrays, Axis, Lowering, Op, ShapeError, Span, Work, integer, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.lib.pointwise import same_index_axes
from gradlet.ops.lib.tiling import Region

Formula = Callable[[Array, Array, Any], Array]
"""Of the output, the target, and delta, or the weights of positive targets."""


@dataclass(frozen=True)
class Loss:
    name: str
    value: Formula
    slope: Formula
    torch: str  # of x, t, delta and r, the reduction
    size: Formula  # of the terms that may cancel in value or slope


def _distance(x: Array, t: Array, d: float) -> Array:
    return np.abs(x) + np.abs(t)


def _huber(x: Array, t: Array, d: float) -> Array:
    away: Array = np.abs(x - t)
    return np.where(away < d, 0.5 * away * away, d * (away - 0.5 * d))


def _edge(x: Array, t: Array) -> float:
    """Where berHu turns from a distance into a square: a fifth of the largest distance."""
    return 0.2 * float(np.abs(x - t).max())


def _berhu(x: Array, t: Array, d: float) -> Array:
    away: Array = np.abs(x - t)
    edge = _edge(x, t)
    return np.where(away <= edge, away, (away * away + edge * edge) / (2 * (edge or 1.0)))


def _berhu_slope(x: Array, t: Array, d: float) -> Array:
    away: Array = x - t
    edge = _edge(x, t)
    return np.where(np.abs(away) <= edge, np.sign(away), away / (edge or 1.0))


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


TABLE = (
    Loss(
        "mse",
        lambda x, t, d: np.square(x - t),
        lambda x, t, d: 2 * (x - t),
        "F.mse_loss({x}, {t}, reduction={r})",
        _distance,
    ),
    Loss(
        "l1",
        lambda x, t, d: np.abs(x - t),
        lambda x, t, d: np.sign(x - t),
        "F.l1_loss({x}, {t}, reduction={r})",
        _distance,
    ),
    Loss(
        "huber",
        _huber,
        lambda x, t, d: np.clip(x - t, -d, d),
        "F.huber_loss({x}, {t}, reduction={r}, delta={delta})",
        _distance,
    ),
    Loss(
        "smooth_l1",
        lambda x, t, d: _huber(x, t, d) / d if d else np.abs(x - t),
        lambda x, t, d: np.clip((x - t) / d, -1, 1) if d else np.sign(x - t),
        "F.smooth_l1_loss({x}, {t}, reduction={r}, beta={delta})",
        _distance,
    ),
    Loss("berhu", _berhu, _berhu_slope, "_berhu({x}, {t}, {r})", _distance),
    Loss(
        "bce_with_logits",
        lambda x, t, d: (1 - t) * x + (1 + (d - 1) * t) * np.logaddexp(0, -x),
        lambda x, t, d: (1 - t) - (1 + (d - 1) * t) * _sigmoid(-x),
        "F.binary_cross_entropy_with_logits({x}, {t}, reduction={r}, pos_weight={p})",
        lambda x, t, d: np.abs(x) + np.abs(x * t) + (1 + np.abs(t)) * (1 + np.abs(d * x)),
    ),
)
POINTWISE = tuple(row.name for row in TABLE)


def _delta(attrs: Attrs) -> float:
    return float(attrs.get("delta", 1.0))  # type: ignore[arg-type]


def _divisor(attrs: Attrs, count: int) -> int:
    """What a mean is over: `count` elements, which a part has to be told."""
    if attrs.get("reduction", "mean") != "mean":
        return 1
    return integer(attrs, "count") if "count" in attrs else count


def _number(attrs: Attrs, weights: Sequence[Array]) -> Any:
    return weights[0] if weights else _delta(attrs)


class _Pointwise(Op):
    row: ClassVar[Loss]

    def weights(self, site: Site) -> Tensor | None:
        return self.operand(site, "pos_weight") if "pos_weight?" in self.inputs else None

    def element_axes(self, site: Site, slots: Sequence[str]) -> tuple[Axis, ...]:
        """One per dimension; weights of the last one go with it."""
        if self.row.name == "berhu":  # the largest distance is that of all elements
            return ()
        shape, weights = site.ins[0].shape, self.weights(site)
        axes = same_index_axes(shape, slots)
        if weights is None or weights.shape != shape[-1:]:
            return axes
        return (*axes[:-1], replace(axes[-1], spans=(*axes[-1].spans, Span("pos_weight", 0))))

    def tile_attrs(self, site: Site, parts: Mapping[str, Region]) -> Attrs | None:
        return {**site.attrs, "count": _divisor(site.attrs, site.ins[0].elements)}

    def lower(self, site: Site) -> Lowering:
        weights = self.weights(site)
        sizes = {
            "count": site.ins[0].elements,
            "divisor": _divisor(site.attrs, site.ins[0].elements),
            "weights": weights.elements if weights else 1,
            "delta": _delta(site.attrs),
        }
        return Lowering("regression", self.name, sizes)


class _Forward(_Pointwise):
    inputs = ("x", "target")
    outputs = ("loss",)

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return (F32.name,)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[0] != ins[1]:
            raise ShapeError("output and target differ in shape")
        if any(weights not in ((1,), ins[0][-1:]) for weights in ins[2:]):
            raise ShapeError(f"one weight, or one for each of {ins[0][-1:]} outputs, is needed")
        return ((),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        total = self.row.value(ins[0], ins[1], _number(attrs, ins[2:])).sum()
        return (np.asarray(total / _divisor(attrs, ins[0].size)),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """Every term errs by its slope times what the difference loses, and by its own rounding."""
        x, target, delta = ins[0], ins[1], _number(attrs, ins[2:])
        terms = np.abs(self.row.slope(x, target, delta)) * self.row.size(x, target, delta)
        total = (np.abs(self.row.value(x, target, delta)) + terms / terms.size).sum()
        return (np.asarray(total / _divisor(attrs, ins[0].size)),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        x, target, *weights = site.node.inputs
        operands = [x, target, grads[0], *weights]
        return {"x": emit.add(f"{self.name}_grad", operands, site.attrs)}

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        axes = self.element_axes(site, ("x", "target"))
        return tuple(replace(axis, reduction=True) for axis in axes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        reduction = repr(attrs.get("reduction", "mean"))
        weights = ins[2] if len(ins) > 2 else None
        return self.row.torch.format(
            x=ins[0], t=ins[1], delta=_delta(attrs), r=reduction, p=weights
        )


class _Gradient(_Pointwise):
    inputs = ("x", "target", "dloss")
    outputs = ("dx",)
    overwrites = ("x",)
    additions = 4

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        slope = self.row.slope(ins[0], ins[1], _number(attrs, ins[3:]))
        return (slope * (ins[2] / _divisor(attrs, ins[0].size)),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return self.element_axes(site, ("x", "target", "dx"))


class _SigmoidGradient(_Gradient):
    """The sigmoid is rounded before the target is taken from it."""

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        weights = 1 + (_number(attrs, ins[3:]) - 1) * ins[1]
        size = 1 + np.abs(ins[1]) + np.abs(weights * _sigmoid(-ins[0]))
        return (size * np.abs(ins[2] / _divisor(attrs, ins[0].size)),)


def _define(row: Loss) -> None:
    forward: dict[str, object] = {"name": row.name, "row": row}
    facts: dict[str, object] = {"name": f"{row.name}_grad", "row": row}
    base = _Gradient
    if row.name == "bce_with_logits":
        base = _SigmoidGradient
        forward["inputs"] = (*_Forward.inputs, "pos_weight?")
        facts["inputs"] = (*_Gradient.inputs, "pos_weight?")
    register(type(row.name, (_Forward,), forward))
    if row.name == "berhu":  # every core reads all elements for the largest distance
        facts["overwrites"] = ()
    register(type(f"{row.name}_grad", (base,), facts))


for _row in TABLE:
    _define(_row)
