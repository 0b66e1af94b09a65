"""Losses over class labels: softmax cross-entropy, and negative log-likelihood.

Options as in PyTorch: weights of the classes, label smoothing, an index to ignore, mean or sum.
A mean is over the weights of the labels that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ir.graph import Array, Attrs, Shape, Site, Tensor
from gradlet.ops.base import Arrays, Axis, Lowering, Op, ShapeError, Span, Work, number, register
from gradlet.ops.emitter import Emitter, Gradients, Names
from gradlet.ops.learning.regression import POINTWISE

LABELLED = ("cross_entropy", "nll")
LOSSES = (*LABELLED, *POINTWISE)
WEIGHTED_BY = {**dict.fromkeys(LABELLED, "class_weights"), "bce_with_logits": "pos_weight"}
REDUCTIONS = ("mean", "sum")
DEFAULTS: Attrs = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}


def target_of(loss: str, output: Shape) -> tuple[Shape, str]:
    """Shape and dtype of the target that a loss compares an output with."""
    return ((output[0], *output[2:]), "i32") if loss in LABELLED else (output, "f32")


def options_of(loss: str) -> tuple[str, ...]:
    """The fields of a recipe that become attributes of a loss."""
    own = {"cross_entropy": ("ignore_index", "label_smoothing"), "nll": ("ignore_index",)}
    own |= {"huber": ("delta",), "smooth_l1": ("delta",)}
    return ("reduction", *own.get(loss, ()))


def _options(attrs: Attrs) -> Attrs:
    return {**DEFAULTS, **attrs}


def _terms(attrs: Attrs, ins: Sequence[Array]) -> tuple[Array, Array, Array, float]:
    """Weights [C], the label's weight [N, 1, ...] (0 if ignored), one-hot labels, divisor."""
    scores, labels = ins[:2]
    column = (-1, *(1,) * (scores.ndim - 2))
    weights = (ins[2] if len(ins) > 2 else np.ones(scores.shape[1])).reshape(column)
    counted = (labels != _options(attrs)["ignore_index"])[:, None]
    one_hot = np.zeros(scores.shape)
    np.put_along_axis(one_hot, np.where(counted, labels[:, None], 0), 1, axis=1)
    own = (one_hot * weights).sum(axis=1, keepdims=True) * counted
    mean = _options(attrs)["reduction"] == "mean"
    return weights * counted, own, one_hot, float(own.sum()) if mean else 1.0


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


class _Labelled(Op):
    def check_dtypes(self, *ins: Tensor) -> None:
        super().check_dtypes(ins[0], *ins[2:])
        if ins[1].dtype != "i32":
            raise ShapeError("class labels must be integers")

    def work(self, site: Site) -> Work:
        return Work(0, site.moved_bytes, site.ins[0].elements)

    def label_axes(self, site: Site, *more: Span) -> tuple[Axis, ...]:
        """Each label by itself in a sum; a mean is over labels and weights that are not known
        before all of them have been seen. `more` goes along as the logits do."""
        if _options(site.attrs)["reduction"] == "mean":
            return ()
        axes = []
        for dim, extent in enumerate(site.ins[1].shape):
            own = dim + (dim > 0)  # classes are dimension 1 of the logits
            spans = (Span("logits", own), Span("labels", dim))
            axes.append(
                Axis(f"dim{own}", extent, (*spans, *(replace(span, dim=own) for span in more)))
            )
        return tuple(axes)

    def lower(self, site: Site) -> Lowering:
        attrs, shape = _options(site.attrs), site.ins[0].shape
        sizes = {
            "batch": shape[0],
            "classes": shape[1],
            "inner": int(np.prod(shape[2:], dtype=int)),
            "ignore": int(number(attrs, "ignore_index")),
            "mean": int(attrs["reduction"] == "mean"),
            "smoothing": number(attrs, "label_smoothing"),
        }
        return Lowering("cross_entropy", self.name.removeprefix("cross_entropy_"), sizes)


class _Loss(_Labelled):
    inputs = ("logits", "labels", "weights?")
    outputs = ("loss",)

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return (F32.name,)

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        logits, labels = ins[:2]
        if len(logits) < 2:
            raise ShapeError("the model's output needs a batch and a class dimension")
        if labels != target_of("cross_entropy", logits)[0]:
            raise ShapeError("labels need the output's shape without the class dimension")
        if any(weights != logits[1:2] for weights in ins[2:]):
            raise ShapeError(f"one weight for each of the {logits[1]} classes is needed")
        return ((),)

    def vjp(self, emit: Emitter, site: Site, grads: Names, wanted: Names) -> Gradients:
        logits, labels, *weights = site.node.inputs
        inputs = [logits, labels, grads[0], *weights]
        return {"logits": emit.add(f"{self.name}_grad", inputs, site.attrs)}

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return tuple(replace(axis, reduction=True) for axis in self.label_axes(site))

    def spelling(self, attrs: Attrs, ins: Sequence[str]) -> str:
        options = _options(attrs)
        weights = f", weight={ins[2]}" if len(ins) > 2 else ""
        text = f"{ins[0]}, {ins[1]}{weights}, reduction={options['reduction']!r}"
        return f"{text}, ignore_index={options['ignore_index']}"


class _LossGrad(_Labelled):
    inputs = ("logits", "labels", "dloss", "weights?")
    outputs = ("dlogits",)
    overwrites = ("logits",)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return self.label_axes(site, Span("dlogits", 0))


@register
class CrossEntropy(_Loss):
    name = "cross_entropy"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        weights, own, one_hot, divisor = _terms(attrs, ins)
        smoothing = number(_options(attrs), "label_smoothing")
        aim = (1 - smoothing) * own * one_hot + smoothing / ins[0].shape[1] * weights
        return (np.asarray(-(aim * _log_softmax(ins[0])).sum() / divisor),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """A sure label's loss is the logarithm of a sum near 1, which is rounded at 1."""
        _, own, _, divisor = _terms(attrs, ins)
        return (np.abs(results[0]) + own.sum() / divisor,)

    def lower(self, site: Site) -> Lowering:
        return Lowering("cross_entropy", "forward", super().lower(site).sizes)

    def torch(self, attrs: Attrs, *ins: str) -> str:
        smoothing = f"label_smoothing={number(_options(attrs), 'label_smoothing')}"
        return f"F.cross_entropy({self.spelling(attrs, ins)}, {smoothing})"


@register
class CrossEntropyGrad(_LossGrad):
    name = "cross_entropy_grad"

    def _parts(self, attrs: Attrs, ins: Sequence[Array]) -> tuple[Array, Array]:
        """What is taken away, and what it is taken from."""
        logits, labels, dloss, *rest = ins
        weights, own, one_hot, divisor = _terms(attrs, (logits, labels, *rest))
        smoothing = number(_options(attrs), "label_smoothing")
        share = smoothing / logits.shape[1]
        aim = (1 - smoothing) * own * one_hot + share * weights
        scale = dloss / divisor
        return aim * scale, np.exp(_log_softmax(logits)) * aim.sum(axis=1, keepdims=True) * scale

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        aim, spread = self._parts(attrs, ins)
        return (spread - aim,)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        aim, spread = self._parts(attrs, ins)
        return (np.abs(spread) + np.abs(aim),)

    def roundings(self, site: Site, out: Tensor) -> float:
        return 8 + out.shape[1]


@register
class NegativeLogLikelihood(_Loss):
    name = "nll"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        _, own, one_hot, divisor = _terms(attrs, ins)
        return (np.asarray(-(own * one_hot * ins[0]).sum() / divisor),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        return self.reference(attrs, -np.abs(ins[0]), *ins[1:])

    def torch(self, attrs: Attrs, *ins: str) -> str:
        return f"F.nll_loss({self.spelling(attrs, ins)})"


@register
class NegativeLogLikelihoodGrad(_LossGrad):
    name = "nll_grad"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        logits, labels, dloss, *rest = ins
        _, own, one_hot, divisor = _terms(attrs, (logits, labels, *rest))
        return (-one_hot * own * (dloss / divisor),)

    def roundings(self, site: Site, out: Tensor) -> float:
        return 4 + site.ins[1].elements
