"""Sums that ride on a weight gradient: the gradient of a bias reads the very gradient that the
gradient of the weights reads, so both are made while a part of it is at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gradlet.ir.graph import Graph, Node, Shape, Site
from gradlet.ops import OPS
from gradlet.ops.base import Size, Span
from gradlet.planner.views import view_sources

SUM, FAMILY = "sum", "channel_sum"
Pair = tuple[Node, Node]
"""A gradient and the update that swallows it."""


@dataclass(frozen=True)
class Ride:
    """How a sum goes with the tiles of another node. slot: the operand of that node which is
    summed; kept: the dimension of it that the sum keeps; idle: axes along which only the first
    tiles see what is not summed yet."""

    slot: str
    kept: int
    idle: tuple[str, ...]

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


def ride_of(carrier: Site, summed: str, shape: Shape) -> Ride | None:
    """How a sum of this tensor to this shape can go with the tiles of a node; None if it cannot."""
    op = OPS[carrier.node.op]
    slots = [
        slot for slot, tensor in op.slots(carrier)[: len(carrier.ins)] if tensor.name == summed
    ]
    if len(slots) != 1 or len(shape) != 1:
        return None
    (slot,) = slots
    kept, idle, covered = [], [], []
    for axis in op.axes(carrier):
        own = [span for span in axis.spans if span.operand == slot]
        if any(span != Span(slot, span.dim) for span in own):
            return None
        covered += [span.dim for span in own]
        if not axis.reduction:
            kept += [span.dim for span in own]
            idle += [] if own else [axis.name]
    tensor = op.operand(carrier, slot)
    assert tensor is not None
    whole = len(covered) == len(set(covered)) and len(kept) == 1
    return Ride(slot, kept[0], tuple(idle)) if whole and tensor.shape[kept[0]] == shape[0] else None


def riders(graph: Graph, fused: Mapping[str, Node]) -> dict[str, Pair]:
    """From a weight gradient that an update swallows to the sum that goes with it, with the same
    kind of update."""
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
            for rider in sums.get(name, ()):
                if node.name in found or not _goes_with(graph, site, update, rider):
                    continue
                # there is no barrier between both: neither may read what the other one updates
                if source[rider[1].inputs[0]] not in {source[n] for n in node.inputs}:
                    found[node.name] = rider
                    sums[name] = [other for other in sums[name] if other is not rider]
    return found


def _goes_with(graph: Graph, carrier: Site, update: Node, rider: Pair) -> bool:
    total, own = rider
    shape = graph.tensors[total.outputs[0]].shape
    same = (update.op, update.inputs[2:3], carrier.node.phase)
    alike = same == (own.op, own.inputs[2:3], total.phase)
    sites = (carrier, OPS[carrier.node.op].flat(carrier))
    return alike and all(ride_of(site, total.inputs[0], shape) for site in sites)
