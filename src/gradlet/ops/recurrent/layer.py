"""Recurrent layers: a scan over time, one kernel call per step, and backpropagation through time.

What does not depend on the state, the product of the inputs and its bias, is computed before for
all times at once (`gx`). A scan keeps per time what its gradient needs, and the gradient of `w` is
one product over all times afterwards. Sequences are [time, batch, ...], or [batch, time, ...] with
`batch_first`; `reverse` walks from the last time to the first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gradlet.ir.graph import Array, Attrs, Shape, Site
from gradlet.ops.base import Arrays, Axis, Lowering, Op, ShapeError, Size, Span, Work, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.matmul import as_rows

SCAN = ("batch_first", "reverse")


def in_order(attrs: Attrs, x: Array) -> Array:
    """A sequence as [time, batch, ...], in the order in which the scan walks."""
    x = x.swapaxes(0, 1) if attrs["batch_first"] else x
    return x[::-1] if attrs["reverse"] else x


def as_stored(attrs: Attrs, x: Array) -> Array:
    x = x[::-1] if attrs["reverse"] else x
    return np.ascontiguousarray(x.swapaxes(0, 1) if attrs["batch_first"] else x)


def sigmoid(x: Array) -> Array:
    result: Array = 0.5 * (1 + np.tanh(0.5 * x))
    return result


class _Recurrent(Op):
    """What scans and their gradients share. `sequences` are the operands with times."""

    family: ClassVar[str]
    gates: ClassVar[int]
    phases: ClassVar[int] = 1  # barriers per time
    sequences: ClassVar[tuple[str, ...]]

    def extents(self, site: Site) -> tuple[int, int, int]:
        """(times, batch, hidden)"""
        weight = self.operand(site, "w")
        assert weight is not None
        times, batch = site.ins[0].shape[:2]
        if site.attrs["batch_first"]:
            times, batch = batch, times
        return times, batch, weight.shape[1]

    def work(self, site: Site) -> Work:
        times, batch, hidden = self.extents(site)
        return Work(times * batch * self.gates * hidden * hidden, site.moved_bytes)

    def stores(self, site: Site) -> int:
        """One per step of the kernel."""
        return self.lower(site).repeat

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """Rounding acts like relative disturbances of the operands, carried on through time; a
        disturbed run shows how much of them arrives. All units of a time share the largest."""
        size, generator = 1e-6, np.random.default_rng(0)
        sizes = [np.abs(result) for result in results]
        for _ in range(2):
            moved = [x * (1 + size * generator.choice((-1.0, 1.0), x.shape)) for x in ins]
            for index, other in enumerate(self.reference(attrs, *moved)):
                away = np.abs(other - results[index]).max(axis=-1, keepdims=True) / size
                sizes[index] = np.maximum(sizes[index], away)
        return tuple(sizes)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        dim = 0 if site.attrs["batch_first"] else 1
        spans = [
            Span(slot.rstrip("?"), dim if slot in self.sequences else 0)
            for slot in (*self.inputs, *self.outputs)
            if slot.rstrip("?") not in ("w", "b", "p")
        ]
        present = (*self.inputs[: len(site.ins)], *self.outputs[: len(site.outs)])
        there = {slot.rstrip("?") for slot in present}
        batch = self.extents(site)[1]
        return (Axis("batch", batch, tuple(span for span in spans if span.operand in there)),)

    def sizes(self, site: Site) -> dict[str, Size]:
        times, batch, hidden = self.extents(site)
        return {"hidden": hidden, **_walk(site.attrs, times, batch)}

    def lower(self, site: Site) -> Lowering:
        times = self.extents(site)[0]
        repeat = times * self.phases + int(bool(site.attrs.get("initial", False)))
        return Lowering(self.family, self.name, self.sizes(site), repeat)


class Scan(_Recurrent):
    """Forward over all times."""

    states: ClassVar[tuple[str, ...]] = ("h0",)
    keeps: ClassVar[tuple[int, ...]]  # width of each output, in hidden sizes
    product: ClassVar[int] = 0  # which output of the gradient is that of w h

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        gx, w = ins[:2]
        if len(gx) != 3:
            raise ShapeError("a sequence has three dimensions: time, batch and features")
        batch = gx[0] if attrs["batch_first"] else gx[1]
        hidden = w[-1]
        expected: dict[str, Shape] = {
            "gx": (*gx[:2], self.gates * hidden),
            "w": (self.gates * hidden, hidden),
            "b": (self.gates * hidden,),
            "p?": (3 * hidden,),
            **dict.fromkeys(self.states, (batch, hidden)),
        }
        for slot, shape in zip(self.inputs, ins, strict=False):
            if shape != expected[slot]:
                raise ShapeError(f"{slot} has shape {shape}, not {expected[slot]}")
        return tuple((*gx[:2], width * hidden) for width in self.keeps)

    @abstractmethod
    def gradient_inputs(self, site: Site, grads: Sequence[str]) -> list[str]:
        """What the gradient reads beside dy."""

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        scan = {name: site.attrs[name] for name in site.attrs}
        initial = any(state in wanted for state in self.states)
        dy = grads[0] or emit.add(
            "affine", [site.node.outputs[0]], {"slope": 0.0, "offset": 0.0}
        )  # only the cell state is used
        made = emit.add_many(
            f"{self.name}_grad",
            [dy, *self.gradient_inputs(site, grads)],
            {**scan, "initial": initial},
        )
        result = {"gx": made[0]}
        through = made[self.product]
        if "w" in wanted:
            result["w"] = self.weight_grad(emit, site, through)
        if "b" in wanted:
            result["b"] = emit.add("sum", [through], {"axes": (0, 1)})
        if initial:
            result.update(zip(self.states, made[-len(self.states) :], strict=True))
        return {slot: name for slot, name in result.items() if slot in wanted}

    def weight_grad(self, emit: Emitter, site: Site, dg: str) -> str:
        """A product over all times, of the states as they were before each of them."""
        y, h0 = site.node.outputs[0], site.node.inputs[list(self.inputs).index("h0")]
        before = states_before(emit, site, y, h0)
        rows = [as_rows(emit, dg), as_rows(emit, before)]
        return emit.add("matmul", rows, {"layout": "tn"})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        extra = [repr(value) for name, value in attrs.items() if name not in SCAN]
        ins += ("None",) * (len(self.inputs) - len(ins))
        order = [repr(attrs[name]) for name in SCAN]
        return f"_{self.name}({', '.join([*ins, *extra, *order])})"


def states_before(emit: Emitter, site: Site, states: str, first: str) -> str:
    """What a scan has had as its state at the beginning of each time."""
    return emit.add("delay", [states, first], {name: site.attrs[name] for name in SCAN})


class ScanGrad(_Recurrent):
    """Backward over all times; with `initial`, one step more for the states before the first."""

    made: ClassVar[tuple[int, ...]]  # width of each output with times, in hidden sizes

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        dy = ins[0]
        hidden = dy[-1]
        batch = dy[0] if attrs["batch_first"] else dy[1]
        shapes = [(*dy[:2], width * hidden) for width in self.made]
        if attrs["initial"]:
            shapes += [(batch, hidden)] * (len(self.outputs) - len(self.made))
        return tuple(shapes)


@register
class Delay(Op):
    """A sequence one time later, with `first` at the beginning."""

    name = "delay"
    inputs = ("x", "first")
    overwrites = ("x",)
    exact = True

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        x = in_order(attrs, ins[0])
        return (as_stored(attrs, np.concatenate([ins[1][None], x[:-1]])),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        dim = 0 if site.attrs["batch_first"] else 1
        batch, width = site.ins[1].shape
        return (
            Axis("batch", batch, (Span("x", dim), Span("first", 0), Span("y", dim))),
            Axis("columns", width, (Span("x", 2), Span("first", 1), Span("y", 2))),
        )

    def lower(self, site: Site) -> Lowering:
        times = site.ins[0].shape[1 if site.attrs["batch_first"] else 0]
        batch, width = site.ins[1].shape
        return Lowering("delay", "states", {"width": width, **_walk(site.attrs, times, batch)})


def _walk(attrs: Attrs, times: int, batch: int) -> dict[str, Size]:
    """How a kernel goes through a sequence."""
    first = bool(attrs["batch_first"])
    return {
        "times": times,
        "batch": batch,
        "time_stride": 1 if first else batch,
        "batch_stride": times if first else 1,
        "reverse": int(bool(attrs["reverse"])),
    }


@register
class RecurrentWeightGrad(Op):
    """dw[g, j] = sum over times and batch of dg[t, b, g] * h[t-1, b, j]; the third gate saw `u` in
    place of the state. Rows and columns tell where it begins, and have to be whole."""

    name = "recurrent_weight_grad"
    inputs = ("dg", "y", "h0", "u")
    outputs = ("dw",)
    linear = True

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return ((ins[0][-1], ins[1][-1]),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        dg, y = in_order(attrs, ins[0]), in_order(attrs, ins[1])
        before = np.concatenate([ins[2][None], y[:-1]])
        dw: Array = np.tensordot(dg, before, ((0, 1), (0, 1)))
        rows = 2 * y.shape[-1]
        dw[rows:] = np.tensordot(dg[..., rows:], in_order(attrs, ins[3]), ((0, 1), (0, 1)))
        return (dw,)

    def work(self, site: Site) -> Work:
        return Work(site.ins[0].elements * site.ins[1].shape[-1], site.moved_bytes)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        dim = 0 if site.attrs["batch_first"] else 1
        along = [Span(slot, dim) for slot in ("dg", "y", "u")]
        return (Axis("batch", site.ins[2].shape[0], (*along, Span("h0", 0)), reduction=True),)

    def lower(self, site: Site) -> Lowering:
        first = bool(site.attrs["batch_first"])
        times, batch = site.ins[1].shape[:2][:: -1 if first else 1]
        gates, hidden = site.outs[0].shape
        sizes: dict[str, Size] = {
            "hidden": hidden,
            "gates": gates,
            **_walk(site.attrs, times, batch),
        }
        return Lowering("recurrent_weight", "grad", sizes)
