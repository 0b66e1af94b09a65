"""Updates: SGD, with momentum or without, Adam and AdamW; and the reset of an accumulator.

`hyper` is a small tensor (learning rate first, weight decay second) that lives beside the weights,
so that a schedule changes it at run time. What an optimizer remembers of a weight are further
operands, replaced as the weight is. Each update says how torch.optim spells it: that is its oracle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ir.graph import Array, Attrs, Graph, Node, Shape, Site
from gradlet.ir.recipe import Recipe
from gradlet.ops.base import OPS, Arrays, Axis, Lowering, Op, ShapeError, register
from gradlet.ops.lib.pointwise import Pointwise


class Update(Pointwise):
    """One weight's step. Operands are w, g, hyper, what is remembered, then what is shared. The
    settings in `hyper` are fields of a recipe, whose `optimizer` is the name of the op. What is
    remembered is of the weight's element type, or stays in single precision (`keeps_single`)."""

    hyper: ClassVar[tuple[str, ...]]
    keeps_single: ClassVar[bool] = False
    remembers: ClassVar[Mapping[str, str]] = {}  # slot: its name in the state of torch.optim
    torch_optimizer: ClassVar[str]
    family: ClassVar[str] = "sgd"
    additions = 2
    whole = ("hyper", "c")

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins[2] != (len(self.hyper),):
            raise ShapeError(f"hyper-parameters are {self.hyper}")
        return super().shape(attrs, *ins)

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        """Each that of what it replaces."""
        return tuple(ins[self.inputs.index(name.removesuffix("_next"))] for name in self.outputs)

    def lower(self, site: Site) -> Lowering:
        return Lowering(self.family, self.name, {"count": site.outs[0].elements})


@register
class Sgd(Update):
    name = "sgd"
    inputs = ("w", "g", "hyper")
    outputs = ("w_next",)
    overwrites = ("w",)
    hyper = ("lr", "weight_decay")
    torch_optimizer = "torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay)"

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        w, g, (lr, weight_decay) = ins
        return (_sum(weight_decay * w, g, -lr, w),)

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        w, g, (lr, weight_decay) = ins
        result, g = np.abs(w), np.abs(g)  # two arrays, no third: see _sum
        result *= 1 + np.abs(lr * weight_decay)
        g *= np.abs(lr)
        result += g
        return (result,)


def _sum(result: Array, g: Array, lr: float, w: Array) -> Array:
    """w + lr (g + result), in place: weights may be all that memory holds."""
    result += g
    result *= lr
    result += w
    return result


@register
class Momentum(Update):
    """PyTorch starts m with the first gradient: without dampening that is to start at 0."""

    name = "momentum"
    inputs = ("w", "g", "hyper", "m")
    outputs = ("w_next", "m_next")
    hyper = ("lr", "weight_decay", "momentum", "nesterov")
    remembers: ClassVar[Mapping[str, str]] = {"m": "momentum_buffer"}
    torch_optimizer = (
        "torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay, momentum=momentum, "
        "nesterov=bool(nesterov))"
    )
    additions = 4

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        w, g, (lr, weight_decay, momentum, nesterov), m = ins
        slope = g + weight_decay * w
        m_next = momentum * m + slope
        direction = slope + momentum * m_next if nesterov else m_next
        return w - lr * direction, m_next

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        w, g, (lr, weight_decay, momentum, nesterov), m = (np.abs(value) for value in ins)
        slope = g + weight_decay * w
        m_next = momentum * m + slope
        return w + lr * (slope + momentum * m_next if nesterov else m_next), m_next


class _Adam(Update):
    """`c` is 1 - beta^t for both betas, which an AdamCorrection advances once per step."""

    inputs = ("w", "g", "hyper", "m", "v", "c")
    outputs = ("w_next", "m_next", "v_next")
    hyper = ("lr", "weight_decay", "beta1", "beta2", "eps")
    remembers: ClassVar[Mapping[str, str]] = {"m": "exp_avg", "v": "exp_avg_sq"}
    family = "adam"
    keeps_single = True  # squares are too small for half precision, steps of 1/1000 for bfloat16
    additions = 8
    decoupled: ClassVar[bool]

    def dtypes(self, *ins: str) -> tuple[str, ...]:
        return (ins[0], F32.name, F32.name)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        w, g, (lr, weight_decay, beta1, beta2, eps), m, v, c = ins
        if self.decoupled:
            w = w - lr * weight_decay * w
        else:
            g = g + weight_decay * w
        m_next = beta1 * m + (1 - beta1) * g
        v_next = beta2 * v + (1 - beta2) * g * g
        root = np.sqrt(np.abs(v_next) / c[1])  # a disturbed run may bring v below 0
        return w - lr / c[0] * m_next / (root + eps), m_next, v_next

    def magnitude(self, attrs: Attrs, ins: Arrays, results: Arrays) -> Arrays:
        """The step is as uncertain as the terms of m are large, even if they cancel out."""
        w, g, (lr, weight_decay, beta1, _, eps), m, _, c = (np.abs(value) for value in ins)
        slope = g if self.decoupled else g + weight_decay * w
        m_next = beta1 * m + (1 - beta1) * slope
        v_next = np.abs(results[2])
        step = lr / c[0] * m_next / (np.sqrt(v_next) / np.sqrt(c[1]) + eps)
        return w + step, m_next, v_next


@register
class Adam(_Adam):
    name = "adam"
    decoupled = False
    torch_optimizer = (
        "torch.optim.Adam(parameters, lr=lr, betas=(beta1, beta2), eps=eps, "
        "weight_decay=weight_decay)"
    )


@register
class AdamW(_Adam):
    name = "adamw"
    decoupled = True
    torch_optimizer = Adam.torch_optimizer.replace("Adam", "AdamW")


@register
class AdamCorrection(Op):
    """1 - beta^t for both betas as a running value: 1 - beta + beta c keeps every bit of a small
    difference, which 1 minus a power would lose."""

    name = "adam_correction"
    inputs = ("c", "hyper")
    outputs = ("c_next",)
    overwrites = ("c",)
    additions = 2

    def shape(self, attrs: Attrs, *ins: Shape) -> tuple[Shape, ...]:
        if ins != ((2,), (len(_Adam.hyper),)):
            raise ShapeError("two corrections and Adam's hyper-parameters are needed")
        return (ins[0],)

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        c, hyper = ins
        betas = hyper[2:4]
        return (1 - betas + betas * c,)

    def axes(self, site: Site) -> tuple[Axis, ...]:
        return ()

    def lower(self, site: Site) -> Lowering:
        return Lowering("adam", "correction", {"count": 2})


@register
class Reset(Pointwise):
    name = "reset"
    inputs = ("x",)
    exact = True
    overwrites = ("x",)
    kernel = ("unary", "reset")

    def reference(self, attrs: Attrs, *ins: Array) -> tuple[Array, ...]:
        return (np.zeros_like(ins[0]),)


def optimizers() -> tuple[str, ...]:
    """What a recipe may name; with a momentum, SGD is another op."""
    names = (name for name, op in OPS.items() if isinstance(op, Update))
    return tuple(name for name in names if name != Momentum.name)


def wanted_update(recipe: Recipe) -> Update:
    return update_op(Momentum.name if recipe.momentum else recipe.optimizer)


def update_op(name: str) -> Update:
    op = OPS[name]
    assert isinstance(op, Update)
    return op


def operand_of(graph: Graph, slot: str, *ops: str) -> str:
    """The tensor in a slot of the first node of these ops; '' if there is none."""
    for node in graph.nodes:
        if node.op in ops:
            return node.inputs[OPS[node.op].inputs.index(slot)]
    return ""


def hyper_of(graph: Graph) -> str:
    """Where the settings of the optimizer lie."""
    hyper = operand_of(graph, "hyper", optimizer_of(graph).name)
    made = graph.producer().get(hyper)  # where steps may be skipped
    return made.inputs[0] if made else hyper


def clip_of(graph: Graph) -> str:
    """Where the limit of the gradients lies, if they are clipped."""
    return operand_of(graph, "clip", "clip_value", "clip_factor")


def correction_of(graph: Graph) -> str:
    """Where Adam keeps how much it has seen, which all weights share."""
    return operand_of(graph, "c", "adam_correction")


def remembered_of(graph: Graph) -> dict[str, dict[str, str]]:
    """What the optimizer remembers: for each name in the state of torch.optim the tensors, by the
    weights that they belong to."""
    op = optimizer_of(graph)
    updates = [node for node in graph.nodes if node.op == op.name]
    return {
        key: {_weight(graph, node): node.inputs[op.inputs.index(slot)] for node in updates}
        for slot, key in op.remembers.items()
    }


def _weight(graph: Graph, update: Node) -> str:
    """Whose step it is, also where the step takes a copy of it in another element type."""
    made = graph.producer().get(update.inputs[0])
    return made.inputs[0] if made else update.inputs[0]


def optimizer_of(graph: Graph) -> Update:
    """What updates the weights of a training graph."""
    return next(op for node in graph.nodes if isinstance(op := OPS[node.op], Update))
