"""Updates in the store of a weight gradient: the gradient never takes any memory."""

from __future__ import annotations

from collections.abc import Iterator

from gradlet.ir.graph import Graph, Node
from gradlet.kernels.catalogue import fuses, updates
from gradlet.ops import OPS
from gradlet.planner.fuse.rule import FusionGroup, Lowerer, Rule, fused_dtype
from gradlet.planner.model import UPDATE, Call
from gradlet.planner.views import view_sources


def groups(graph: Graph, isa: tuple[str, ...]) -> Iterator[FusionGroup]:
    nodes = {node.name: node for node in graph.nodes}
    for first, update in fusable(graph, isa).items():
        yield FusionGroup((nodes[first], update), UPDATE)


def updating(lower: Lowerer, group: FusionGroup) -> Call:
    """The states of the optimizer are among the outputs, in place; its settings the last input."""
    update = group.nodes[-1]
    return lower.single(group, update.op, settings=update.inputs[2:3])


def fusable(graph: Graph, isa: tuple[str, ...]) -> dict[str, Node]:
    """Weight-gradient nodes whose only reader is an update that a kernel can swallow."""
    if graph.accumulate > 1:
        return {}
    consumers, source = graph.consumers(), view_sources(graph)
    found: dict[str, Node] = {}
    for node in graph.nodes:
        if node.phase != "backward" or len(node.outputs) != 1:
            continue
        readers = consumers[node.outputs[0]]
        if len(readers) != 1 or readers[0].op not in updates():
            continue
        update = readers[0]
        if update.inputs[1] != node.outputs[0]:
            continue
        if source[update.inputs[0]] in {source[name] for name in node.inputs}:
            continue  # it would read what it overwrites
        if OPS[node.op].view:
            continue
        made, dtype = OPS[node.op].lower(graph.site(node)), fused_dtype(graph, node, update)
        able = fuses(made.family, made.mode, update.op, made.sizes, isa, dtype)
        if able and node.outputs[0] not in graph.outputs:
            found[node.name] = update
    return found


RULE = Rule(UPDATE, groups, updating)
