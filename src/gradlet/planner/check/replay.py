"""Replays a plan over a shadow memory, with none of the planner's code.

Every unit of every region, as many bytes as the smallest element has, remembers which part of
which value was last written there. A call must find its inputs, whole and unspoilt; two steps are
replayed, so that what a step leaves behind is what the next one expects.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradlet.errors import InternalError
from gradlet.ir.graph import Array, Graph, Node
from gradlet.kernels.catalogue import scratch_bytes, streamed
from gradlet.planner.check.fusions import fusion_faults
from gradlet.planner.check.ops import tiling_faults
from gradlet.planner.check.overlap import overlap_faults
from gradlet.planner.check.tiles import TileReplay, prefetch_faults
from gradlet.planner.model import Buffer, Call, Plan


def check_plan(plan: Plan) -> None:
    faults = [*_layout(plan), *_coverage(plan), *_tilings(plan)]
    if not faults:
        faults = [*overlap_faults(plan), *_replay(plan)]
    if faults:
        shown = "\n  ".join(faults[:10])
        raise InternalError(f"plan of '{plan.graph.name}' is not sound:\n  {shown}")


def _layout(plan: Plan) -> Iterator[str]:
    sizes = {memory.name: memory for memory in plan.target.memories}
    seen: set[str] = set()
    used: dict[str, int] = {}
    for buffer in plan.buffers:
        if buffer.level not in sizes:
            yield f"'{buffer.name}' is in the unknown memory {buffer.level}"
            continue
        if buffer.offset < 0 or buffer.offset % sizes[buffer.level].align:
            yield f"'{buffer.name}' is not aligned"
        for name in buffer.tensors:
            if name in seen:
                yield f"'{name}' lives in two buffers"
            seen.add(name)
            tensor = plan.graph.tensors.get(name)
            if tensor is not None and tensor.bytes > buffer.bytes:
                yield f"'{name}' is larger than its buffer '{buffer.name}'"
        key = f"{buffer.level} {buffer.region}"
        used[key] = max(used.get(key, 0), buffer.offset + buffer.bytes)
    extra = {plan.target.memories[0].name: plan.control_bytes}
    extra[plan.target.home.name] = extra.get(plan.target.home.name, 0) + plan.tables_bytes
    for level, memory in sizes.items():
        total = sum(size for key, size in used.items() if key.startswith(level + " "))
        total += extra.get(level, 0)
        if total > plan.target.room(memory):
            yield f"{level} needs {total} bytes and has {plan.target.room(memory)}"


def _coverage(plan: Plan) -> Iterator[str]:
    """Each node that computes is in exactly one call, after what it depends on."""
    from gradlet.ops import OPS

    done = [name for call in plan.calls for name in call.nodes]
    expected = [node.name for node in plan.graph.nodes if not OPS[node.op].view]
    if sorted(done) != sorted(expected):
        yield f"calls compute {sorted(set(done) ^ set(expected))} never or twice"
    ops = {node.name: node.op for node in plan.graph.nodes}
    for call in plan.calls:
        if call.kernel.epilogue not in ("", ops.get(call.name)):
            yield f"'{call.name}' is not what {call.kernel.name} ends with"
    buffers = {name for buffer in plan.buffers for name in buffer.tensors}
    for call in plan.calls:
        for name in filter(None, (*call.outputs, *call.inputs, call.scratch)):
            if name not in buffers:
                yield f"'{call.name}' touches '{name}', which has no address"


def _tilings(plan: Plan) -> Iterator[str]:
    from gradlet.ops import OPS

    nodes = {node.name: node for node in plan.graph.nodes}
    l1, places = plan.target.memories[0].name, plan.buffer_of()
    for call in plan.calls:
        for name in _fetched_names(call):
            if not name or places[name].level == l1:
                yield f"'{call.name}' fetches '{name}' itself, which does not lie in backing memory"
        own = [nodes[name] for name in call.nodes]
        faults = list(fusion_faults(plan.graph, own, call))
        if call.tiling and not faults:
            site = OPS[own[0].op].flat(plan.graph.site(own[0]))
            faults = list(tiling_faults(site, call, own))
        yield from (f"'{call.name}': {fault}" for fault in faults)


def _fetched_names(call: Call) -> Iterator[str]:
    """What kernels of a call fetch themselves."""
    for launch in call.launches:
        for position in (launch.operands[number] for number in streamed(launch.kernel)):
            yield "" if position is None else (*call.operands, "")[position]


class _Shadow:
    def __init__(self, plan: Plan) -> None:
        self.places = {name: buffer for buffer in plan.buffers for name in buffer.tensors}
        self.graph = plan.graph
        self.unit = min(tensor.element.bytes for tensor in plan.graph.tensors.values())
        ends: dict[tuple[str, str], int] = {}
        for b in plan.buffers:
            key = (b.level, b.region)
            ends[key] = max(ends.get(key, 0), b.offset + b.bytes)
        self.units = {key: np.full(-(-end // self.unit), -1, np.int64) for key, end in ends.items()}
        self.ids: dict[str, int] = {}

    def span(self, buffer: Buffer, size: int) -> Array:
        units = self.units[buffer.level, buffer.region]
        return units[buffer.offset // self.unit : -(-(buffer.offset + size) // self.unit)]

    def elements(self, name: str) -> Array:
        """What the units of a value hold where it is whole."""
        return self.first(name) + np.arange(self.graph.tensors[name].bytes // self.unit)

    def first(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids)) << 32

    def write(self, name: str) -> None:
        self.span(self.places[name], self.graph.tensors[name].bytes)[:] = self.elements(name)

    def holds(self, name: str) -> bool:
        span = self.span(self.places[name], self.graph.tensors[name].bytes)
        return bool((span == self.elements(name)).all())


def _replay(plan: Plan) -> Iterator[str]:
    shadow = _Shadow(plan)
    source = _sources(plan.graph)
    nodes = {node.name: node for node in plan.graph.nodes}
    for tensor in plan.graph.of_role("param", "const", "state"):
        if tensor.name in shadow.places:
            shadow.write(tensor.name)
    for step in (1, 2):
        for tensor in plan.graph.of_role("input", "target"):
            if tensor.name in shadow.places:
                shadow.write(tensor.name)
        for index, call in enumerate(plan.calls):
            for fault in prefetch_faults(shadow, plan.calls[index - 1] if index else None, call):
                yield f"step {step}: '{call.name}': {fault}"
            for fault in _replay_call(plan, shadow, source, call, nodes):
                yield f"step {step}: {fault}"
        for name in (*plan.graph.outputs, *filter(None, [plan.graph.loss])):
            if not shadow.holds(source[name]):
                yield f"step {step}: '{name}' is spoilt before the end"
        final = dict(plan.graph.updates)
        for old, new in final.items():
            if shadow.places[old] is not shadow.places[new]:
                yield f"'{new}' does not replace '{old}' in place"
            elif not shadow.holds(source[new]):
                yield f"step {step}: the update '{new}' is not there at the end"
            shadow.write(old)


def _replay_call(
    plan: Plan, shadow: _Shadow, source: dict[str, str], call: Call, nodes: dict[str, Node]
) -> Iterator[str]:
    made = {name for n in call.nodes for name in nodes[n].outputs}
    reads = [n for node in call.nodes for n in nodes[node].inputs if source[n] not in made]
    for name in reads:
        if not shadow.holds(source[name]):
            yield f"'{call.name}' reads '{name}', but something else is there"
    if call.scratch:
        buffer = shadow.places[call.scratch]
        needed = max(
            scratch_bytes(launch.kernel, sizes, plan.target.cores)
            for launch in call.launches
            for sizes in launch.sizes
        )
        if buffer.bytes < needed:
            yield f"the scratch of '{call.name}' has {buffer.bytes} bytes, not {needed}"
        shadow.span(buffer, buffer.bytes)[:] = -1
        for name in reads:  # scratch must not lie on an operand
            if not shadow.holds(source[name]):
                yield f"the scratch of '{call.name}' overlaps '{name}'"
    if call.tiling is None:
        for name in filter(None, call.outputs):
            shadow.write(name)
        return
    old = {new: before for before, new in plan.graph.updates}
    for fault in TileReplay(shadow, call, source, old).faults():
        yield f"'{call.name}': {fault}"
    for name in filter(None, call.outputs):
        if not shadow.holds(name):
            yield f"the tiles of '{call.name}' leave '{name}' unfinished"


def _sources(graph: Graph) -> dict[str, str]:
    """The tensor whose bytes each tensor shows: itself, or what it is a view of."""
    from gradlet.ops import OPS

    source = {name: name for name in graph.tensors}
    for node in graph.nodes:
        if OPS[node.op].view:
            source[node.outputs[0]] = source[node.inputs[0]]
    return source
