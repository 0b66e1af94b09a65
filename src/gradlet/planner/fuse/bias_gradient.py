"""Bias gradients, fused horizontally with weight gradients: the gradient of a bias is the sum of
what the gradient of the weights reads, so both are made while a part of that is at hand. The sum is
a launch with no barrier before it, and it is updated as the weights are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from gradlet.ir.graph import Graph, Node, Shape, Site
from gradlet.ops import OPS
from gradlet.ops.base import Size, Span
from gradlet.planner.fuse.rule import FusionGroup, Lowerer, Rule, fused_dtype
from gradlet.planner.fuse.update import fusable, updating
from gradlet.planner.launch import Launch
from gradlet.planner.model import BIAS_GRADIENT, Call
from gradlet.planner.views import view_sources

SUM, FAMILY = "sum", "channel_sum"
Pair = tuple[Node, Node]
"""A gradient and the update that swallows it."""


@dataclass(frozen=True)
class FusedSum:
    """How a sum goes with the tiles of another node. slot: the operand of that node which is
    summed; kept: the dimension of it that the sum keeps; first_along: axes along which only the
    first tiles see what is not summed yet."""

    slot: str
    kept: int
    first_along: tuple[str, ...]

    def sizes(self, carrier: Site) -> dict[str, Size]:
        """Of the kernel that sums up the operand as the carrier sees it, or a tile of it."""
        summed = OPS[carrier.node.op].operand(carrier, self.slot)
        assert summed is not None
        before, behind = summed.shape[: self.kept], summed.shape[self.kept + 1 :]
        return {
            "outer": prod(before),
            "channels": summed.shape[self.kept],
            "inner": prod(behind),
        }


def fused_sum(carrier: Site, summed: str, shape: Shape) -> FusedSum | None:
    """How a sum of this tensor to this shape can go with the tiles of a node; None if it cannot."""
    op = OPS[carrier.node.op]
    slots = [
        slot for slot, tensor in op.slots(carrier)[: len(carrier.ins)] if tensor.name == summed
    ]
    if len(slots) != 1 or len(shape) != 1:
        return None
    (slot,) = slots
    kept, first_along, covered = [], [], []
    for axis in op.axes(carrier):
        own = [span for span in axis.spans if span.operand == slot]
        if any(span != Span(slot, span.dim) for span in own):
            return None
        covered += [span.dim for span in own]
        if not axis.reduction:
            kept += [span.dim for span in own]
            first_along += [] if own else [axis.name]
    tensor = op.operand(carrier, slot)
    assert tensor is not None
    whole = len(covered) == len(set(covered)) and len(kept) == 1
    if not whole or tensor.shape[kept[0]] != shape[0]:
        return None
    return FusedSum(slot, kept[0], tuple(first_along))


def groups(graph: Graph, isa: tuple[str, ...]) -> Iterator[FusionGroup]:
    """A weight gradient and its update, and the sum that goes with it, with the same kind of
    update."""
    fused = fusable(graph, isa)
    nodes = {node.name: node for node in graph.nodes}
    for first, pair in pairs(graph, fused).items():
        yield FusionGroup((nodes[first], fused[first]), BIAS_GRADIENT, pair)


def call(lower: Lowerer, group: FusionGroup) -> Call:
    made = updating(lower, group)
    carrier, (node, update) = group.nodes[0], group.beside
    site = lower.graph.site(carrier)
    total = fused_sum(site, node.inputs[0], lower.graph.tensors[node.outputs[0]].shape)
    assert total is not None, f"{node.name} does not go with {carrier.name}"
    sizes = total.sizes(site)
    outputs = len(made.outputs)
    results = range(outputs - len(update.outputs), outputs)
    summed = outputs + carrier.inputs.index(node.inputs[0])
    kernel = lower.kernel(FAMILY, SUM, update.op, sizes, fused_dtype(lower.graph, node, update))
    operands = (*results, summed, len(made.operands) - 1)
    return replace(made, whole=(*made.whole, Launch(kernel, operands, (sizes,), barrier=False)))


def pairs(graph: Graph, fused: Mapping[str, Node]) -> dict[str, Pair]:
    """From a weight gradient to the sum that goes with it, and its update."""
    source = view_sources(graph)
    sums: dict[str, list[Pair]] = {}
    for node in graph.nodes:
        if node.op == SUM and node.name in fused:
            sums.setdefault(node.inputs[0], []).append((node, fused[node.name]))
    found: dict[str, Pair] = {}
    for node in graph.nodes:
        update = fused.get(node.name)
        if update is None or node.op == SUM:
            continue
        site = graph.site(node)
        for name in node.inputs:
            for other in sums.get(name, ()):
                if node.name in found or not _goes_with(graph, site, update, other):
                    continue
                # there is no barrier between both: neither may read what the other one updates
                if source[other[1].inputs[0]] not in {source[n] for n in node.inputs}:
                    found[node.name] = other
                    sums[name] = [pair for pair in sums[name] if pair is not other]
    return found


def _goes_with(graph: Graph, carrier: Site, update: Node, pair: Pair) -> bool:
    total, own = pair
    shape = graph.tensors[total.outputs[0]].shape
    same = (update.op, update.inputs[2:3], carrier.node.phase)
    alike = same == (own.op, own.inputs[2:3], total.phase)
    sites = (carrier, OPS[carrier.node.op].flat(carrier))
    return alike and all(fused_sum(site, total.inputs[0], shape) for site in sites)


RULE = Rule(BIAS_GRADIENT, groups, call)
