"""Losses that are one call with their gradient: both need the same exponentials and their sum."""

from __future__ import annotations

from collections.abc import Iterator

from gradlet.ir.graph import Graph, Node
from gradlet.kernels.catalogue import Kernel, candidates, families
from gradlet.ops import OPS
from gradlet.planner.fuse.rule import FusionGroup, Lowerer, Rule
from gradlet.planner.launch import Launch
from gradlet.planner.model import LOSS_GRADIENT, Call

FAMILY = "loss"
STEPS = 2


def loss_kernels(graph: Graph, loss: Node, isa: tuple[str, ...]) -> list[Kernel]:
    sizes = OPS[loss.op].lower(graph.site(loss)).sizes
    return candidates(FAMILY, loss.op, "", sizes, isa, graph.tensors[loss.inputs[0]].dtype)


def groups(graph: Graph, isa: tuple[str, ...]) -> Iterator[FusionGroup]:
    """The loss and its gradient, if a kernel for such cores makes both."""
    for loss in graph.nodes:
        if loss.op not in families()[FAMILY].modes:
            continue
        if all(kernel.variant == "ref" for kernel in loss_kernels(graph, loss, isa)):
            continue
        scores, labels, *weights = loss.inputs
        for node in graph.nodes:
            if node.op != f"{loss.op}_grad" or node.attrs != loss.attrs:
                continue
            seed = node.inputs[2]
            if node.inputs != (scores, labels, seed, *weights):
                continue
            if graph.tensors[seed].role == "const":
                yield FusionGroup((loss, node), LOSS_GRADIENT)


def call(lower: Lowerer, group: FusionGroup) -> Call:
    loss, gradient = group.nodes
    kernel = lower.best(loss_kernels(lower.graph, loss, lower.target.isa))
    sizes = OPS[loss.op].lower(lower.graph.site(loss)).sizes
    outputs = (*loss.outputs, *gradient.outputs)
    inputs = gradient.inputs + ("",) * (4 - len(gradient.inputs))
    operands = tuple(n if name else None for n, name in enumerate((*outputs, *inputs)))
    return Call(
        gradient.name,
        (loss.name, gradient.name),
        group.fusion,
        group.phase,
        outputs,
        inputs,
        (Launch(kernel, operands, (sizes,), repeat=STEPS),),
        lower.scratch(kernel, sizes, loss.name),
        0,
    )


RULE = Rule(LOSS_GRADIENT, groups, call, tiles=False)
