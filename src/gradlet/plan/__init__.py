"""From a training graph and a target to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gradlet.dtypes import DTYPES
from gradlet.errors import DoesNotFit, GradletError
from gradlet.graph import Graph
from gradlet.kernels import Kernel, candidates, scratch_elements
from gradlet.ops import OPS
from gradlet.plan.alias import Storage, share_storage
from gradlet.plan.check import check_plan
from gradlet.plan.model import NEAR, Buffer, Call, Plan
from gradlet.plan.levels import assign_levels
from gradlet.plan.order import Unit, ordered_units
from gradlet.plan.place import Request, lower_bound, place
from gradlet.plan.tiler import Tiler
from gradlet.target import Memory, Target

__all__ = ["Buffer", "Call", "Plan", "check_plan", "plan"]


@dataclass(frozen=True)
class Options:
    """What may be switched off, mostly to show that it changes no result."""

    fuse: bool = True
    buffers: str = "double"  # boxes fetched ahead; single: before each tile; none: no tiles
    variants: Mapping[str, str] | None = None  # kernel variant by family, else the last that fits


def plan(
    graph: Graph,
    target: Target,
    *,
    prefix: str = "net",
    options: Options | None = None,
    fit: bool = True,
) -> Plan:
    """Order, kernels and addresses: all in the nearest memory that is large enough, and of what is
    farther away the most used part nearer. Checked before it is returned. With fit=False a plan
    that is too large for the target is returned as well, to be looked at."""
    options = options or Options()
    if not prefix.isidentifier() or not prefix.isascii():
        raise GradletError(f"prefix '{prefix}' cannot begin a C name")
    units = ordered_units(graph, fuse=options.fuse)
    computing = [unit for unit in units if not OPS[unit.nodes[0].op].view]
    calls = [_call(graph, target, unit, options) for unit in computing]
    storages = share_storage(graph, units, computing)
    requests, persistent = _requests(graph, target, calls, storages)
    bound = lower_bound(requests) + sum(storage.bytes for storage in persistent)
    plans = []
    for memory in target.memories:
        if bound > target.room(memory) and memory != target.memories[-1]:
            continue
        buffers = _buffers(requests, persistent, storages, memory)
        plans.append(Plan(prefix, target, graph, tuple(calls), tuple(buffers), bound))
        sizes = plans[-1].sizes_bytes if len(target.memories) > 1 else 0
        if plans[-1].used + sizes <= target.room(memory):
            result = plans[-1]
            if options.buffers != "none":
                result = _tiled(result, computing, requests, persistent, storages, options)
            check_plan(result)
            return result
    if not fit:
        return plans[-1]
    raise DoesNotFit(_too_large(plans[-1]))


def _tiled(
    plan: Plan,
    units: list[Unit],
    requests: list[Request],
    persistent: list[Storage],
    storages: dict[str, Storage],
    options: Options,
) -> Plan:
    """The same with tiles in the nearest memory, and what is worth it there for good."""
    near = plan.target.memories[0]
    if plan.level == near:
        return plan
    storage_of = {tensor: s.name for s in storages.values() for tensor in s.tensors}
    tiler = Tiler(
        plan.graph,
        plan.target,
        storage_of,
        options.variants or {},
        ahead=options.buffers != "single",
    )
    levels = assign_levels(plan, units, requests, persistent, tiler)
    if levels is None:
        return plan
    tiled = {call.scratch for call in plan.calls} - {c.scratch for c in levels.calls if not c.tiling}
    gone = levels.near | tiled
    far_requests = [request for request in requests if request.name not in gone]
    far_persistent = [storage for storage in persistent if storage.name not in levels.near]
    near_persistent = [storage for storage in persistent if storage.name in levels.near]
    buffers = [
        *_buffers(far_requests, far_persistent, storages, plan.level),
        *_buffers(levels.requests, near_persistent, storages, near, prefix=NEAR),
    ]
    bound = sum(storage.bytes for storage in persistent)
    bound += lower_bound(far_requests) + lower_bound(levels.requests)
    result = replace(plan, calls=tuple(levels.calls), buffers=tuple(buffers), lower_bound=bound)
    far_bytes = result.level_bytes(plan.level.name) + result.image_bytes + result.tables_bytes
    return result if far_bytes <= plan.target.room(plan.level) else plan


def _buffers(
    requests: list[Request],
    persistent: list[Storage],
    storages: dict[str, Storage],
    memory: Memory,
    prefix: str = "",
) -> list[Buffer]:
    offsets = place(requests, memory.align)
    return [
        *_persistent_buffers(persistent, memory.name, memory.align, prefix),
        *(
            Buffer(
                r.name,
                memory.name,
                f"{prefix}arena",
                offsets[r.name],
                r.bytes,
                r.first,
                r.last,
                storages[r.name].tensors if r.name in storages else (r.name,),
            )
            for r in requests
        ),
    ]


def _call(graph: Graph, target: Target, unit: Unit, options: Options) -> Call:
    first, last = unit.nodes[0], unit.nodes[-1]
    op = OPS[first.op]
    site = graph.site(first)
    lowering = op.lower(site)
    epilogue = last.op if last is not first else ""
    dtype = "f32"
    found = candidates(lowering.family, lowering.mode, epilogue, lowering.sizes, target.isa, dtype)
    wanted = (options.variants or {}).get(lowering.family)
    kernel = next((k for k in found if k.variant == wanted), found[-1])
    slots = len(op.inputs)
    inputs = first.inputs + ("",) * (slots - len(first.inputs))
    if epilogue:
        inputs += last.inputs[2:3]  # hyper; the states are among the outputs, in place
    scratch = scratch_elements(kernel, lowering.sizes, target.cores)
    return Call(
        tuple(node.name for node in unit.nodes),
        unit.phase,
        kernel,
        last.outputs + ("",) * (len(OPS[last.op].outputs) - len(last.outputs)),
        inputs,
        lowering.sizes,
        f"scratch.{last.name}" if scratch else "",
        sum(OPS[node.op].work(graph.site(node)).macs for node in unit.nodes[:1]),
        lowering.repeat,
    )


def _requests(
    graph: Graph, target: Target, calls: list[Call], storages: dict[str, Storage]
) -> tuple[list[Request], list[Storage]]:
    """What the arena must hold and when, and what lives outside it for ever."""
    requests, persistent = [], []
    for storage in storages.values():
        if storage.region != "arena":
            persistent.append(storage)
        else:
            requests.append(Request(storage.name, storage.bytes, storage.first, storage.last))
    for index, call in enumerate(calls):
        if call.scratch:
            elements = scratch_elements(call.kernel, call.sizes, target.cores)
            size = elements * DTYPES[call.kernel.dtype].bytes
            requests.append(Request(call.scratch, size, index, index))
    return requests, persistent


def _persistent_buffers(
    storages: list[Storage], level: str, align: int, prefix: str
) -> list[Buffer]:
    buffers = []
    ends = {"weights": 0, "constants": 0}
    for storage in storages:
        offset = -(-ends[storage.region] // align) * align
        ends[storage.region] = offset + storage.bytes
        buffers.append(
            Buffer(
                storage.name,
                level,
                f"{prefix}{storage.region}",
                offset,
                storage.bytes,
                storage.first,
                storage.last,
                storage.tensors,
            )
        )
    return buffers


def _too_large(plan: Plan) -> str:
    target = plan.target
    missing = plan.used - target.room(target.memories[-1])
    rooms = " and ".join(f"{target.room(m):,} of {m.name}" for m in target.memories)
    largest = sorted(plan.buffers, key=lambda b: (-b.bytes, b.name))[:3]
    consumers = ", ".join(f"{b.tensors[0]} ({b.bytes:,} bytes)" for b in largest)
    return (
        f"model '{plan.graph.name}' does not fit: it needs {plan.used:,} bytes, the target "
        f"'{target.name}' has {rooms} for data ({missing:,} missing).\nThe largest consumers: "
        f"{consumers}.\nA smaller --batch, --update last:N or a smaller input lowers the need."
    )


__all__ += ["Kernel", "Options"]
