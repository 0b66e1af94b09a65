"""Losses: softmax cross-entropy over class indices, and mean squared error. Mean reduction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradlet.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import (
    Axis,
    Emitter,
    Lowering,
    Op,
    ShapeError,
    Span,
    Work,
    register,
)
from gradlet.ops.pointwise import same_index_axes

LOSSES = ("cross_entropy", "mse")


def target_of(loss: str, output: Shape) -> tuple[Shape, str]:
    """Shape and dtype of the target that a loss compares an output with."""
    return (output, "f32") if loss == "mse" else ((output[0], *output[2:]), "i32")


def _sizes(logits: Shape) -> dict[str, int]:
    return {
        "batch": logits[0],
        "classes": logits[1],
        "inner": int(np.prod(logits[2:], dtype=int)),
    }


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Array = shifted / shifted.sum(axis=1, keepdims=True)
    return result


class _CrossEntropy(Op):
    def check_dtypes(self, *ins: Tensor) -> None:
        super().check_dtypes(ins[0], *ins[2:])
        if ins[1].dtype != "i32":
            raise ShapeError("class labels must be integers")


@register
class CrossEntropy(_CrossEntropy):
    name = "cross_entropy"
    inputs = ("logits", "labels")
    outputs = ("loss",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        logits, labels = ins
        if len(logits) < 2:
            raise ShapeError("the model's output needs a batch and a class dimension")
        if labels != target_of("cross_entropy", logits)[0]:
            raise ShapeError("labels need the output's shape without the class dimension")
        return ((),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        logits, labels = ins
        top = logits.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logits - top).sum(axis=1, keepdims=True)) + top
        picked = np.take_along_axis(log_sum - logits, labels[:, None], axis=1)
        return (np.asarray(picked.mean()),)

    def magnitude(
        self, attrs: Attrs, ins: Sequence[Array], results: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """The sum of exponentials is 1 or more, and rounded: near 0 the loss keeps that error."""
        logits, labels = ins
        reach = np.abs(logits.max(axis=1, keepdims=True) - logits)
        picked = np.take_along_axis(reach, labels[:, None], axis=1)
        return (np.asarray(np.abs(results[0]) + 1 + picked.mean()),)

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        return {"logits": emit.add("cross_entropy_grad", [*site.node.inputs, grads[0]])}

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        batch = site.ins[0].shape[0]
        return (Axis("batch", batch, (Span("logits", 0), Span("labels", 0)), reduction=True),)

    def lower(self, site: Site) -> Lowering:
        return Lowering("cross_entropy", "forward", _sizes(site.ins[0].shape))

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"F.cross_entropy({ins[0]}, {ins[1]})"


@register
class CrossEntropyGrad(_CrossEntropy):
    name = "cross_entropy_grad"
    inputs = ("logits", "labels", "dloss")
    outputs = ("dlogits",)
    overwrites = ("logits",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        logits, labels, dloss = ins
        one_hot = np.zeros_like(logits)
        np.put_along_axis(one_hot, labels[:, None], 1, axis=1)
        return ((_softmax(logits) - one_hot) * (dloss / labels.size),)

    def magnitude(
        self, attrs: Attrs, ins: Sequence[Array], results: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """softmax - 1 cancels out for a label that is learnt."""
        logits, labels, dloss = ins
        one_hot = np.zeros_like(logits)
        np.put_along_axis(one_hot, labels[:, None], 1, axis=1)
        return ((_softmax(logits) + one_hot) * (np.abs(dloss) / labels.size),)

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        spans = (Span("logits", 0), Span("labels", 0), Span("dlogits", 0))
        return (Axis("batch", site.ins[0].shape[0], spans),)

    def lower(self, site: Site) -> Lowering:
        return Lowering("cross_entropy", "grad", _sizes(site.ins[0].shape))


@register
class MeanSquaredError(Op):
    name = "mse"
    inputs = ("x", "target")
    outputs = ("loss",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[0] != ins[1]:
            raise ShapeError("output and target differ in shape")
        return ((),)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.asarray(np.square(ins[0] - ins[1]).mean()),)

    def vjp(
        self, emit: Emitter, site: Site, grads: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, str]:
        return {"x": emit.add("mse_grad", [*site.node.inputs, grads[0]])}

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return tuple(
            Axis(axis.name, axis.size, axis.spans, reduction=True)
            for axis in same_index_axes(site.ins[0].shape, ("x", "target"))
        )

    def lower(self, site: Site) -> Lowering:
        return Lowering("mse", "forward", {"count": site.ins[0].elements})

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"F.mse_loss({ins[0]}, {ins[1]})"


@register
class MeanSquaredErrorGrad(Op):
    name = "mse_grad"
    inputs = ("x", "target", "dloss")
    outputs = ("dx",)
    overwrites = ("x",)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return ((ins[0] - ins[1]) * (2 * ins[2] / ins[0].size),)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return same_index_axes(site.outs[0].shape, ("x", "target", "dx"))

    def lower(self, site: Site) -> Lowering:
        return Lowering("mse", "grad", {"count": site.ins[0].elements})
