"""The least that a call can take: by the instructions that its cores issue, by what is copied.

A core issues one instruction in a cycle. A node takes at least what its multiply-adds take in the
best register block that the catalogue has for it, and an instruction for each word of its operands.
What lies in a backing memory comes and goes once, at the bandwidth of the DMA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod

from gradlet.ir.elements import F32
from gradlet.kernels.catalogue import Kernel, candidates, variant_of
from gradlet.kernels.source import render
from gradlet.kernels.xpulp.isa.issue import instructions_per_mac
from gradlet.ops import OPS
from gradlet.planner.model import Call, Plan, fetched_places
from gradlet.planner.tiling import WORD, TileView, Tiling, region_elements
from gradlet.targets.target import Target


@dataclass(frozen=True)
class Bound:
    """Cycles: of issuing instructions, of copying between memories."""

    issue: float
    copying: float

    @property
    def cycles(self) -> float:
        """Both go on at the same time."""
        return max(self.issue, self.copying)

    def __add__(self, other: Bound) -> Bound:
        return Bound(self.issue + other.issue, self.copying + other.copying)

    def __mul__(self, times: int) -> Bound:
        return Bound(times * self.issue, times * self.copying)


def bound(plan: Plan, call: Call) -> Bound:
    instructions = max(_of_macs(plan, call), _words(plan, call))
    copying = _copying(plan, call)
    return Bound(instructions / plan.target.cores, copying)


def _of_macs(plan: Plan, call: Call) -> float:
    nodes = {node.name: node for node in plan.graph.nodes}
    work = [OPS[nodes[name].op].work(plan.graph.site(nodes[name])) for name in call.nodes]
    macs = sum(each.macs - each.padded for each in work)
    return macs * _least(call, plan.target) if macs else 0.0


def _least(call: Call, target: Target) -> float:
    """Instructions for a multiply-accumulate: of the best kernel for the whole node and of that
    which runs, as they are or with another store. One, if nobody knows better."""
    whole, kernel = call.whole[0].sizes[0], call.whole[0].kernel
    known = []
    for epilogue in {kernel.epilogue, ""}:
        for dtype in dict.fromkeys((kernel.dtype, F32.name)):
            found = candidates(kernel.family, kernel.mode, epilogue, whole, target.isa, dtype)
            best = next(filter(None, map(_of_kernel, reversed(found))), None)
            if best:
                lanes = WORD // kernel.element.bytes if dtype != kernel.dtype else 1
                known.append(best / lanes)
                break
    own = [_of_kernel(own) for own in call.kernels]
    return min([*known, *filter(None, own)], default=1.0)


@cache
def _of_kernel(kernel: Kernel) -> float | None:
    if not variant_of(kernel).generator:
        return None
    return instructions_per_mac(render(kernel))


def _words(plan: Plan, call: Call) -> float:
    """Of all operands: a word is loaded or stored at least once, by some core. What is looked up by
    places that only the data tell need not be touched."""
    nodes = {node.name: node for node in plan.graph.nodes}
    looked_up = any(OPS[nodes[name].op].integers for name in call.nodes)
    read = {*call.inputs, *call.replaced}
    names = [*call.outputs, *(() if looked_up else read)]
    return sum(plan.graph.tensors[name].bytes for name in filter(None, names)) / WORD


def _copying(plan: Plan, call: Call) -> float:
    machine = dict(plan.target.machine)
    places = plan.buffer_of()
    known = {memory.name: n for n, memory in enumerate(plan.target.memories)}
    inward = outward = farthest = 0
    for name, come, go in _copies(plan, call):
        if known[places[name].level] > 1:
            farthest += come + go
        inward, outward = inward + come, outward + go
    each_way = WORD * machine["dma_ports"] // 2
    beyond = farthest / machine["dma_l3_rate"] if farthest else 0.0
    return max(inward / each_way, outward / each_way, beyond)


def _copies(plan: Plan, call: Call) -> Iterator[tuple[str, int, int]]:
    """Tensors, and how many bytes of them come and go: what is seen through views, and what kernels
    fetch themselves."""
    tiling = call.tiling
    for view in tiling.views if tiling else ():
        if tiling and view and (view.load or view.store):
            size = _bytes(view, tiling)
            yield view.tensor, view.load * size, view.store * size
    for place in fetched_places(call):
        name, view = call.operands[place], tiling.views[place] if tiling else None
        size = _bytes(view, tiling) if tiling and view else plan.graph.tensors[name].bytes
        yield name, size, (place < len(call.outputs)) * size


def _bytes(view: TileView, tiling: Tiling) -> int:
    """Of the parts of an operand that some tile needs."""
    regions = {view.region(tiling.ranges(index)) for index in tiling.indices()}
    return min(prod(view.shape), sum(map(region_elements, regions))) * view.item
