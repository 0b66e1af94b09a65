"""Losses that are one call with their gradient: both need the same exponentials and their sum."""

from __future__ import annotations

from collections.abc import Iterator

from gradlet.ir.graph import Graph, Node
from gradlet.kernels.catalogue import Kernel, candidates, families
from gradlet.ops import OPS

FAMILY = "loss"
STEPS = 2


def loss_kernels(graph: Graph, loss: Node, isa: tuple[str, ...]) -> list[Kernel]:
    sizes = OPS[loss.op].lower(graph.site(loss)).sizes
    return candidates(FAMILY, loss.op, "", sizes, isa, "f32")


def losses(graph: Graph, isa: tuple[str, ...]) -> Iterator[tuple[Node, Node]]:
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
                yield loss, node
