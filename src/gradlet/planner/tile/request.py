"""What there is to choose for a call: its operands, its axes, and what tiles of a size cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gradlet.ir.graph import Graph, Shape, Site
from gradlet.kernels.catalogue import (
    Kernel,
    cost_matters,
    families,
    modelled_cost,
    register_block,
    scratch_bytes,
    variant_of,
)
from gradlet.ops import OPS
from gradlet.ops.base import Axis, Op, Size, Span
from gradlet.planner.fuse.bias_gradient import FusedSum, fused_sum
from gradlet.planner.fuse.rule import FusionGroup
from gradlet.planner.fuse.rules import RULES
from gradlet.planner.model import Call
from gradlet.planner.tile.classes import signature
from gradlet.planner.tile.search import Operand, Problem
from gradlet.targets.cost import Cost
from gradlet.targets.target import Target

SUM = "sum"
BESIDE = "beside"
"""The slot of what is fused with a node horizontally, which is none of the node's own."""


class Problems:
    def __init__(
        self,
        graph: Graph,
        target: Target,
        storage_of: Mapping[str, str],
        farthest: Collection[str],
    ) -> None:
        self.graph, self.target = graph, target
        self.storage_of, self.farthest = storage_of, farthest
        self._tileable: dict[object, tuple[bool, ...]] = {}
        self._sites: dict[str, Site] = {}
        self._sums: dict[str, FusedSum | None] = {}

    def operands_of(
        self, group: FusionGroup, call: Call, in_l1: Collection[str]
    ) -> Sequence[Operand | None]:
        """By position among the outputs and inputs of the call."""
        if not cut(group):
            return self._whole_operands(call, in_l1)
        first = group.nodes[0]
        op, fused = OPS[first.op], call.updates
        axes = self._axes(op, self.site_of(group))
        made = call.outputs[: call.own_outputs]
        outputs = [op.outputs[0] if fused else slot for slot, _ in _paired(op.outputs, made, fused)]
        inputs = [slot.rstrip("?") for slot in op.inputs]
        found: list[Operand | None] = []
        shapes = self._shapes(group, call)
        for position, name in enumerate((*call.outputs, *call.inputs)):
            if not name:
                found.append(None)
                continue
            written = position < len(call.outputs)
            place = position - len(call.outputs)
            beside = call.own_outputs <= position < len(call.outputs)
            if beside:
                slot = BESIDE
            elif written:
                slot = outputs[position]
            elif place < len(inputs):
                slot = inputs[place]
            else:  # settings of an update are needed whole; what follows goes with the result
                slot = "" if fused else op.outputs[0]
            spans = tuple(
                (number, span)
                for number, axis in enumerate(axes)
                for span in self._spans(group, axis)
                if span.operand == slot.rstrip("?")
            )
            storage = self.storage_of[name]
            found.append(
                Operand(
                    name,
                    shapes[name],
                    self.graph.tensors[name].element.bytes,
                    spans,
                    load=not written or fused,
                    store=written,
                    buffered=storage not in in_l1,
                    once=slot in op.adds_once,
                    storage=storage,
                    farthest=storage in self.farthest,
                    beside=beside,
                )
            )
        return found

    def _whole_operands(self, call: Call, in_l1: Collection[str]) -> Sequence[Operand | None]:
        """Of a call that is a single tile."""
        found: list[Operand | None] = []
        for position, name in enumerate(call.operands):
            tensor, storage = self.graph.tensors[name], self.storage_of[name]
            written = position < len(call.outputs)
            found.append(
                Operand(
                    name,
                    tensor.shape,
                    tensor.element.bytes,
                    (),
                    load=not written or name in call.replaced,
                    store=written,
                    buffered=storage not in in_l1,
                    storage=storage,
                    farthest=storage in self.farthest,
                )
            )
        return found

    def fused_sum(self, group: FusionGroup) -> FusedSum | None:
        """How the sum beside a group goes with its tiles."""
        if not group.beside:
            return None
        node = group.beside[0]
        if node.name not in self._sums:
            shape = self.graph.tensors[node.outputs[0]].shape
            self._sums[node.name] = fused_sum(self.site_of(group), node.inputs[0], shape)
        return self._sums[node.name]

    def _spans(self, group: FusionGroup, axis: Axis) -> tuple[Span, ...]:
        """Of all operands; a sum beside is cut where its operand is."""
        total = self.fused_sum(group)
        own = (s for s in axis.spans if total and (s.operand, s.dim) == (total.slot, total.kept))
        return (*axis.spans, *(Span(BESIDE, 0) for _ in own))

    def site_of(self, group: FusionGroup) -> Site:
        """The node that computes, in as few dimensions as it has."""
        node = group.nodes[0]
        if node.name not in self._sites:
            self._sites[node.name] = OPS[node.op].flat(self.graph.site(node))
        return self._sites[node.name]

    def _shapes(self, group: FusionGroup, call: Call) -> dict[str, Shape]:
        """Of the operands, as that node sees them; what goes with the result has its shape."""
        site = self.site_of(group)
        seen = {t.name: t.shape for t in (*site.ins, *site.outs)}
        made, now = self.graph.tensors[site.outs[0].name].shape, site.outs[0].shape
        shapes = {}
        for name in filter(None, (*call.outputs, *call.inputs)):
            own = self.graph.tensors[name].shape
            shapes[name] = seen.get(name, now if own == made else own)
        return shapes

    def _axes(self, op: Op, site: Site) -> tuple[Axis, ...]:
        return tuple(axis for axis in op.axes(site) if axis.size > 1)

    def problem_of(
        self,
        group: FusionGroup,
        call: Call,
        site: Site,
        operands: Sequence[Operand | None],
        refused: set[str],
        double_buffered: bool,
    ) -> Problem:
        op = OPS[site.node.op]
        axes = self._axes(op, site) if cut(group) else ()
        tileable = self._tileable_axes(op, site, axes)
        mode = families()[call.kernel.family].modes[call.kernel.mode]
        sums = SUM in mode.epilogues and len(site.outs) == 1
        if call.kernel.element.accumulate:  # sums of tiles would be rounded to what is stored
            sums = False
        allowed = tuple(
            can and axis.name not in refused and (sums or not axis.reduction)
            for can, axis in zip(tileable, axes, strict=True)
        )
        present = tuple(operand for operand in operands if operand)
        gradient = None
        if call.updates and operands[0]:
            gradient = replace(
                operands[0],
                tensor=site.outs[0].name,
                load=False,
                store=False,
                buffered=True,
                storage="",
            )
        return Problem(
            axes,
            tuple(register_block(call.kernel, axis.name, call.sizes) for axis in axes),
            present,
            call.macs,
            self.target.cores,
            self.target.cost,
            double_buffered,
            lambda tile, constants: self._tile_needs(call, site, axes, tile, constants),
            allowed,
            gradient,
        )

    def scratch(self, kernel: Kernel, sizes: Mapping[str, Size]) -> int:
        if not variant_of(kernel).scratch:
            return 0
        return scratch_bytes(kernel, sizes, self.target.cores)

    def _tile_needs(
        self,
        call: Call,
        site: Site,
        axes: Sequence[Axis],
        tile: Sequence[int],
        constants: Cost,
    ) -> tuple[int, float]:
        """Scratch and cycles of the first tile by the kernel of the whole node; the others are
        alike."""
        kernel = call.kernel
        if not variant_of(kernel).scratch and not cost_matters(kernel):
            return 0, 0.0
        op = OPS[site.node.op]
        ranges = {axis.name: (0, n) for axis, n in zip(axes, tile, strict=True) if n < axis.size}
        sizes = op.lower(op.tile(site, ranges) or site).sizes if ranges else call.sizes
        busiest = modelled_cost(kernel, sizes, self.target.cores, constants)
        return self.scratch(kernel, sizes), busiest

    def _tileable_axes(self, op: Op, site: Site, axes: tuple[Axis, ...]) -> tuple[bool, ...]:
        key = signature(site)
        if key not in self._tileable:
            self._tileable[key] = tuple(
                all(
                    op.tile(site, {axis.name: part}) is not None
                    for part in ((0, 1), (axis.size // 2, axis.size), (axis.size - 1, axis.size))
                )
                for axis in axes
            )
        return self._tileable[key]


def cut(group: FusionGroup) -> bool:
    """Whether its call runs tile by tile; else it is a single tile."""
    return not group.fusion or RULES[group.fusion].cut


def _paired(slots_: Sequence[str], names: Sequence[str], fused: bool) -> list[tuple[str, str]]:
    if fused:
        return [(slots_[0], name) for name in names]
    return list(zip((slot.rstrip("?") for slot in slots_), names, strict=False))
