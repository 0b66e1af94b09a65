"""Scaling of the loss, so that small gradients are no zeros in half precision, and large ones do
no harm: a step in which a gradient overflows changes no weight.

`scale` is a state of three numbers: the scale, steps since it changed, steps that were skipped. A
skipped step runs like any other, with gradients of 0 and settings under which an optimizer leaves
everything as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ir.graph import Array, Attrs, Graph, Shape, Site
from gradlet.ops.base import Arrays, Axis, Lowering, Op, ShapeError, Size, integer, ints, register
from gradlet.ops.learning.clip import PARTS, ClipSquares, clip_begin
from gradlet.ops.learning.optimizer import operand_of
from gradlet.ops.lib.pointwise import Pointwise

LEAST, MOST = 2.0**-14, 2.0**24
"""Between these does a dynamic scale move."""


class _Single(Op):
    """A few numbers, made by one core."""

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return ()

    def lower(self, site: Site) -> Lowering:
        return Lowering("loss_scale", self.mode, {**_SIZES, "count": self.count(site)})

    mode: ClassVar[str]

    def count(self, site: Site) -> int:
        """Of what has overflowed, or of the numbers themselves."""
        return PARTS if "faults" in self.inputs else site.ins[0].elements


_SIZES: Mapping[str, Size] = {"begin": 0, "interval": 0, "neutral": (0,) * 6}


@register
class ScaleSeed(_Single):
    """What the gradient of a loss begins with."""

    name = "scale_seed"
    inputs = ("x", "scale")
    mode = "seed"
    additions = 1

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.asarray(ins[0] * ins[1][0]),)


@register
class Overflow(ClipSquares):
    """How many elements of a gradient, and of those before, are infinite or no number; in parts, as
    a norm."""

    name = "overflow"
    exact = True

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        bad = np.where(np.isfinite(ins[0]), 0.0, 1.0)
        return super().reference(attrs, bad, *ins[1:])

    def lower(self, site: Site) -> Lowering:
        sizes = {**_SIZES, "count": site.ins[0].elements, "begin": clip_begin(site.attrs)}
        return Lowering("loss_scale", "overflow", sizes)


@register
class ScaleGate(_Single):
    """1 / scale and 0, or 0 and 1 if the step is skipped."""

    name = "scale_gate"
    inputs = ("scale", "faults")
    mode = "gate"
    additions = 1

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins != ((3,), (PARTS,)):
            raise ShapeError("a scale and the counts of what has overflowed are needed")
        return ((2,),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        fault = float(ins[1].sum()) > 0
        return (np.asarray([0.0 if fault else 1 / ins[0][0], float(fault)]),)


@register
class ScaleNeutral(_Single):
    """Settings of an optimizer, or the `neutral` ones of a skipped step; -1 stays what it is."""

    name = "scale_neutral"
    inputs = ("x", "gate")
    exact = True
    mode = "neutral"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        neutral = np.asarray(ints(attrs, "neutral"))
        return (np.where((ins[1][1] > 0) & (neutral >= 0), neutral, ins[0]),)

    def lower(self, site: Site) -> Lowering:
        made, neutral = super().lower(site), ints(site.attrs, "neutral")
        sizes = {**made.sizes, "neutral": (*neutral, *(0,) * (6 - len(neutral)))}
        return Lowering(made.family, made.mode, sizes)


@register
class ScaleNext(_Single):
    """Without an `interval` the scale stays, and skipped steps are counted."""

    name = "scale_next"
    inputs = ("scale", "faults")
    exact = True
    mode = "next"
    overwrites = ("scale",)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        (scale, good, skipped), interval = ins[0], integer(attrs, "interval")
        if float(ins[1].sum()) > 0:
            smaller = scale * 0.5 if interval and scale > LEAST else scale
            return (np.asarray([smaller, 0.0, skipped + 1]),)
        if interval and good + 1 >= interval and scale < MOST:
            return (np.asarray([scale * 2, 0.0, skipped]),)
        return (np.asarray([scale, good + 1, skipped]),)

    def lower(self, site: Site) -> Lowering:
        made = super().lower(site)
        sizes = {**made.sizes, "interval": integer(site.attrs, "interval")}
        return Lowering(made.family, made.mode, sizes)


class _Unscale(Pointwise):
    inputs = ("g", "gate")
    whole = ("gate",)
    additions = 1
    sizes = _SIZES

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        g, (inverse, fault) = ins
        return (np.zeros_like(g) if fault > 0 else g * inverse,)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        return tuple(np.abs(result) for result in results)


@register
class Unscale(_Unscale):
    name = "unscale"
    overwrites = ("g",)
    kernel = ("loss_scale", "unscale")


@register
class UnscaleWide(_Unscale):
    """In single precision, for a weight that is."""

    name = "unscale_wide"
    kernel = ("loss_scale", "unscale_wide")

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return (F32.name,)


def scale_of(graph: Graph) -> str:
    """Where the scale of the loss lies; '' if it is not scaled."""
    return operand_of(graph, "scale", ScaleNext.name)


def interval_of(graph: Graph) -> int:
    """After so many good steps the scale doubles; 0 if it is static, or there is none."""
    nodes = (node for node in graph.nodes if node.op == ScaleNext.name)
    return next((integer(node.attrs, "interval") for node in nodes), 0)
