"""From a training graph and a target to a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gradlet.errors import DoesNotFit, GradletError
from gradlet.ir.graph import Graph
from gradlet.kernels.catalogue import Kernel, scratch_bytes
from gradlet.ops import OPS
from gradlet.planner.check.replay import check_plan
from gradlet.planner.fuse.rule import FusionGroup, Lowerer
from gradlet.planner.fuse.rules import RULES, call_of
from gradlet.planner.memory.alias import Storage, share_storage
from gradlet.planner.memory.place import Request, lower_bound, place
from gradlet.planner.memory.residency import (
    FILLS,
    assign_levels,
    farthest_storages,
    persistent_bytes,
)
from gradlet.planner.model import FARTHEST, L1, Buffer, Call, Plan
from gradlet.planner.prefix import check_prefix
from gradlet.planner.schedule import ordered_groups
from gradlet.planner.tile.build import Tiler
from gradlet.planner.tile.schedule import Schedule, ScheduleOverride, TilingRequest
from gradlet.targets.target import Memory, Target

Piece = TypeVar("Piece", Request, Storage)

__all__ = ["Buffer", "Call", "Plan", "check_plan", "plan"]


BUFFERS = ("auto", "l1", "double", "single", "none")


@dataclass(frozen=True)
class Options:
    """What may be chosen, or switched off to show that it changes no result.

    buffers  auto: all in the nearest memory if it fits there, else tiles; l1: all there, or not at
             all; double: tiles, the next one fetched while this one is computed; single: fetched
             before it is; none: no tiles, everything is used where it lies
    variants kernel variant by family, else the last that fits
    overrides   how calls are to run, by name, as far as that fits
    exact    only kernels whose errors are those of plain sums
    sums     f32, or chunked: of narrow elements in 16 bits over at most 32 terms, then in f32
    """

    fuse: bool = True
    buffers: str = "auto"
    variants: Mapping[str, str] | None = None
    overrides: Mapping[str, ScheduleOverride] = field(default_factory=dict)
    exact: bool = False
    sums: str = "f32"

    def __post_init__(self) -> None:
        if self.buffers not in BUFFERS:
            raise GradletError(f"buffers '{self.buffers}': one of {', '.join(BUFFERS)}")


@dataclass(frozen=True)
class _Draft:
    """Calls in order and what they need, before anything has an address."""

    prefix: str
    target: Target
    graph: Graph
    groups: list[FusionGroup]
    calls: list[Call]
    storages: dict[str, Storage]
    requests: list[Request]
    persistent: list[Storage]

    def placed(self, memory: Memory) -> Plan:
        """All in one memory."""
        buffers = _buffers(self.requests, self.persistent, self.storages, memory)
        return Plan(self.prefix, self.target, self.graph, tuple(self.calls), tuple(buffers))


def plan(
    graph: Graph,
    target: Target,
    *,
    prefix: str = "net",
    options: Options | None = None,
    fit: bool = True,
) -> Plan:
    """Order, kernels, tiles and addresses: all in the nearest memory if it is large enough, else
    in backing memory and computed tile by tile. Checked before it is returned. With fit=False a
    plan that is too large for the target is returned as well, to be looked at."""
    options = options or Options()
    target = (target.exact() if options.exact else target).summed(options.sums)
    check_prefix(prefix)
    draft = _draft(graph, target, prefix, options)
    result = None
    for result in _plans(draft, options):
        if all(map(result.fits, target.memories)):
            check_plan(result)
            return result
    assert result is not None
    if not fit:
        return result
    raise DoesNotFit(_too_large(result))


def _draft(
    graph: Graph, target: Target, prefix: str, options: Options, *, tiles: bool = False
) -> _Draft:
    backed = target if tiles else None
    groups = ordered_groups(graph, target.isa, fuse=options.fuse, backed=backed)
    computing = [group for group in groups if not OPS[group.nodes[0].op].view]
    asked = {name: override.variant for name, override in options.overrides.items()}
    lower = Lowerer(graph, target, options.variants or {}, asked)
    calls = [call_of(lower, group) for group in computing]
    storages = share_storage(graph, groups, computing)
    requests, persistent = _requests(graph, target, calls, storages)
    return _Draft(prefix, target, graph, computing, calls, storages, requests, persistent)


def _plans(draft: _Draft, options: Options) -> Iterator[Plan]:
    """Ways to use the memories, the fastest first."""
    l1, home, last = draft.target.memories[0], draft.target.home, draft.target.memories[-1]
    persistent = sum(s.bytes for s in draft.persistent)
    least = persistent + lower_bound(draft.requests)
    if options.buffers == "auto" and l1 != home and least <= draft.target.room(l1):
        yield draft.placed(l1)
    if l1 == home or options.buffers == "l1":
        yield draft.placed(l1)
        return
    draft = _for_tiles(draft, options)
    whole = draft.placed(home)
    if options.buffers != "none":
        # scratch comes in tiles as well, and may take less
        data = [r for r in draft.requests if r.name in draft.storages]
        if persistent + lower_bound(data) <= draft.target.room(home) + draft.target.room(l1):
            yield from _tiled(draft, whole, set(), options)
        if last != home:
            for fill in FILLS:
                farthest = farthest_storages(whole, draft.requests, draft.persistent, fill)
                yield from _tiled(draft, whole, farthest, options)
    yield whole
    if last != home:
        yield draft.placed(last)


def _for_tiles(draft: _Draft, options: Options) -> _Draft:
    """Without the calls that cannot run on operands in backing memory."""
    used = {group.fusion for group in draft.groups if group.fusion}
    if all(RULES[fusion].tiles and RULES[fusion].cut for fusion in used):
        return draft
    return _draft(draft.graph, draft.target, draft.prefix, options, tiles=True)


class _Recorder(Tiler):
    """Remembers what it was asked."""

    tiling_requests: dict[str, TilingRequest]

    def choose(self, request: TilingRequest) -> Schedule:
        self.tiling_requests[request.call.name] = request
        return super().choose(request)


def tiling_requests(
    graph: Graph, target: Target, options: Options
) -> tuple[Tiler, dict[str, TilingRequest]] | None:
    """What there is to choose for each call of a network whose data lie in backing memory,
    and who judges it; None if all of them lie in L1."""
    draft = _draft(graph, target, "net", options)
    for found in _plans(draft, options):
        if all(map(found.fits, target.memories)):
            if not found.tilings:
                return None
            draft = _for_tiles(draft, options)
            farthest = {b.name for b in found.buffers if b.region.startswith(FARTHEST)}
            recorder = _tiler(draft, farthest, options, _Recorder)
            recorder.tiling_requests = {}
            whole = draft.placed(target.home)
            assign_levels(whole, draft.groups, draft.requests, draft.persistent, recorder)
            return recorder, recorder.tiling_requests
    return None


TilerKind = TypeVar("TilerKind", bound=Tiler)


def _tiler(draft: _Draft, farthest: set[str], options: Options, kind: type[TilerKind]) -> TilerKind:
    storage_of = {tensor: s.name for s in draft.storages.values() for tensor in s.tensors}
    return kind(
        draft.graph,
        draft.target,
        storage_of,
        farthest,
        options.variants or {},
        buffers=options.buffers,
        overrides=options.overrides,
    )


def _tiled(draft: _Draft, whole: Plan, farthest: set[str], options: Options) -> Iterator[Plan]:
    """With tiles in the nearest memory, what is worth it there for good, and some storages in the
    farthest."""
    l1, last = draft.target.memories[0], draft.target.memories[-1]
    tiler = _tiler(draft, farthest, options, Tiler)
    levels = assign_levels(whole, draft.groups, draft.requests, draft.persistent, tiler)
    if levels is None:
        return
    untiled = {call.scratch for call in levels.calls if not call.tiling}
    moved = levels.in_l1 | ({call.scratch for call in draft.calls} - untiled)
    farthest = farthest - moved

    def split(items: Sequence[Piece], names: set[str]) -> tuple[list[Piece], list[Piece]]:
        return [i for i in items if i.name in names], [i for i in items if i.name not in names]

    farthest_requests, requests = split(
        [r for r in draft.requests if r.name not in moved], farthest
    )
    l1_persistent, persistent = split(draft.persistent, levels.in_l1)
    farthest_persistent, persistent = split(persistent, farthest)
    limit = levels.room - persistent_bytes(levels, l1_persistent, l1.align)
    l1_buffers = _buffers(levels.requests, l1_persistent, draft.storages, l1, L1, limit)
    buffers = [
        *_buffers(requests, persistent, draft.storages, whole.level),
        *(_in_calls(b) if b.region == f"{L1}arena" else b for b in l1_buffers),
        *_buffers(farthest_requests, farthest_persistent, draft.storages, last, prefix=FARTHEST),
    ]
    yield replace(whole, calls=tuple(levels.calls), buffers=tuple(buffers))


def _buffers(
    requests: list[Request],
    persistent: list[Storage],
    storages: dict[str, Storage],
    memory: Memory,
    prefix: str = "",
    limit: int = 0,
) -> list[Buffer]:
    offsets = place(requests, memory.align, limit)
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


def _in_calls(buffer: Buffer) -> Buffer:
    """Of a buffer whose life was counted in halves of calls."""
    (first, late), (last, to_the_end) = divmod(buffer.first, 2), divmod(buffer.last, 2)
    own = replace(buffer, first=first, last=last)
    return replace(own, from_last_tile=late == 1, before_last_tile=to_the_end == 0)


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
            size = scratch_bytes(call.kernel, call.sizes, target.cores)
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
    """In a sentence; reports/fit.py has more to say."""
    memory = next(m for m in plan.target.memories if not plan.fits(m))
    used, room = plan.taken(memory), plan.target.room(memory)
    largest = sorted(plan.buffers, key=lambda b: (-b.bytes, b.name))[:3]
    consumers = ", ".join(f"{b.tensors[0]} ({b.bytes:,} bytes)" for b in largest)
    return (
        f"model '{plan.graph.name}' does not fit: it needs {used:,} bytes of {memory.name}, the "
        f"target '{plan.target.name}' has {room:,} for data ({used - room:,} missing).\n"
        f"The largest consumers: {consumers}.\n"
        f"A smaller --batch, --update last:N or a smaller input lowers the need."
    )


__all__ += ["Kernel", "Options", "ScheduleOverride", "Tiler", "TilingRequest", "tiling_requests"]
