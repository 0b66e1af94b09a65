"""From a training graph and a target to a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gradlet.errors import DoesNotFit, GradletError
from gradlet.ir.dtypes import DTYPES
from gradlet.ir.graph import OWN_SPACE, Graph
from gradlet.kernels.catalogue import (
    MAY,
    Kernel,
    candidates,
    families,
    fetched,
    maps,
    scratch_elements,
)
from gradlet.ops import OPS
from gradlet.ops.base import Lowering, Size
from gradlet.planner.check.replay import check_plan
from gradlet.planner.fuse.bias_gradient import FAMILY as CHANNEL_SUM
from gradlet.planner.fuse.bias_gradient import SUM, ride_of
from gradlet.planner.fuse.linear_backward import FAMILY, back_kernels, back_sizes
from gradlet.planner.fuse.loss_gradient import FAMILY as LOSS
from gradlet.planner.fuse.loss_gradient import STEPS, loss_kernels
from gradlet.planner.memory.alias import Storage, share_storage
from gradlet.planner.memory.place import Request, lower_bound, place
from gradlet.planner.memory.residency import FILLS, assign_levels, far_storages, near_forever
from gradlet.planner.model import FAR, NEAR, Buffer, Call, Follow, Plan, Rider
from gradlet.planner.prefix import check_prefix
from gradlet.planner.schedule import Unit, following, ordered_units
from gradlet.planner.tile.build import Tiler
from gradlet.planner.tile.choice import Choice, Context, Wish
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
    wishes   how calls are to run, by name, as far as that fits
    """

    fuse: bool = True
    buffers: str = "auto"
    variants: Mapping[str, str] | None = None
    wishes: Mapping[str, Wish] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.buffers not in BUFFERS:
            raise GradletError(f"buffers '{self.buffers}': one of {', '.join(BUFFERS)}")


@dataclass(frozen=True)
class _Draft:
    """Calls in order and what they need, before anything has an address."""

    prefix: str
    target: Target
    graph: Graph
    units: list[Unit]
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
    far away and computed tile by tile. Checked before it is returned. With fit=False a plan that is
    too large for the target is returned as well, to be looked at."""
    options = options or Options()
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
    units = ordered_units(
        graph, fuse=options.fuse, whole=() if tiles else target.isa, isa=target.isa
    )
    computing = [unit for unit in units if not OPS[unit.nodes[0].op].view]
    calls = [_call(graph, target, unit, options) for unit in computing]
    storages = share_storage(graph, units, computing)
    requests, persistent = _requests(graph, target, calls, storages)
    return _Draft(prefix, target, graph, computing, calls, storages, requests, persistent)


def _plans(draft: _Draft, options: Options) -> Iterator[Plan]:
    """Ways to use the memories, the fastest first."""
    near, home, last = draft.target.memories[0], draft.target.home, draft.target.memories[-1]
    forever = sum(s.bytes for s in draft.persistent)
    least = forever + lower_bound(draft.requests)
    if options.buffers == "auto" and near != home and least <= draft.target.room(near):
        yield draft.placed(near)
    if near == home or options.buffers == "l1":
        yield draft.placed(near)
        return
    draft = _for_tiles(draft, options)
    whole = draft.placed(home)
    if options.buffers != "none":
        # scratch comes in tiles as well, and may take less
        data = [r for r in draft.requests if r.name in draft.storages]
        if forever + lower_bound(data) <= draft.target.room(home) + draft.target.room(near):
            yield from _tiled(draft, whole, set(), options)
        if last != home:
            for fill in FILLS:
                far = far_storages(whole, draft.requests, draft.persistent, fill)
                yield from _tiled(draft, whole, far, options)
    yield whole
    if last != home:
        yield draft.placed(last)


def _for_tiles(draft: _Draft, options: Options) -> _Draft:
    """Without the calls that cannot be cut into tiles."""
    if not any(call.back or call.loss for call in draft.calls):
        return draft
    return _draft(draft.graph, draft.target, draft.prefix, options, tiles=True)


class _Recorder(Tiler):
    """Remembers what it was asked."""

    contexts: dict[str, Context]

    def choose(self, context: Context) -> Choice:
        self.contexts[context.call.name] = context
        return super().choose(context)


def contexts(
    graph: Graph, target: Target, options: Options
) -> tuple[Tiler, dict[str, Context]] | None:
    """What there is to choose for each call of a network whose data lie far away, and who judges
    it; None if all of them are near."""
    draft = _draft(graph, target, "net", options)
    for found in _plans(draft, options):
        if all(map(found.fits, target.memories)):
            if not found.tilings:
                return None
            draft = _for_tiles(draft, options)
            far = {b.name for b in found.buffers if b.region.startswith(FAR)}
            recorder = _tiler(draft, far, options, _Recorder)
            recorder.contexts = {}
            whole = draft.placed(target.home)
            assign_levels(whole, draft.units, draft.requests, draft.persistent, recorder)
            return recorder, recorder.contexts
    return None


TilerKind = TypeVar("TilerKind", bound=Tiler)


def _tiler(draft: _Draft, far: set[str], options: Options, kind: type[TilerKind]) -> TilerKind:
    storage_of = {tensor: s.name for s in draft.storages.values() for tensor in s.tensors}
    return kind(
        draft.graph,
        draft.target,
        storage_of,
        far,
        options.variants or {},
        buffers=options.buffers,
        wishes=options.wishes,
    )


def _tiled(draft: _Draft, whole: Plan, far: set[str], options: Options) -> Iterator[Plan]:
    """With tiles in the nearest memory, what is worth it there for good, and some storages in the
    farthest."""
    near, last = draft.target.memories[0], draft.target.memories[-1]
    tiler = _tiler(draft, far, options, Tiler)
    levels = assign_levels(whole, draft.units, draft.requests, draft.persistent, tiler)
    if levels is None:
        return
    untiled = {call.scratch for call in levels.calls if not call.tiling}
    gone = levels.near | ({call.scratch for call in draft.calls} - untiled)
    far = far - gone

    def split(items: Sequence[Piece], names: set[str]) -> tuple[list[Piece], list[Piece]]:
        return [i for i in items if i.name in names], [i for i in items if i.name not in names]

    far_requests, requests = split([r for r in draft.requests if r.name not in gone], far)
    near_persistent, persistent = split(draft.persistent, levels.near)
    far_persistent, persistent = split(persistent, far)
    limit = levels.room - near_forever(levels, near_persistent, near.align)
    near_buffers = _buffers(levels.requests, near_persistent, draft.storages, near, NEAR, limit)
    buffers = [
        *_buffers(requests, persistent, draft.storages, whole.level),
        *(_in_calls(b) if b.region == f"{NEAR}arena" else b for b in near_buffers),
        *_buffers(far_requests, far_persistent, draft.storages, last, prefix=FAR),
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
    (first, late), (last, second) = divmod(buffer.first, 2), divmod(buffer.last, 2)
    return replace(buffer, first=first, last=last, late=late == 1, gone=second == 0)


def _call(graph: Graph, target: Target, unit: Unit, options: Options) -> Call:
    if unit.back:
        return _back_call(graph, target, unit, options)
    if unit.loss:
        return _loss_call(graph, target, unit, options)
    first, last = unit.nodes[0], unit.nodes[-1]
    op = OPS[first.op]
    site = graph.site(first)
    lowering = op.lower(site)
    epilogue = last.op if unit.updates or _swallowed(unit, lowering) else ""
    dtype = "f32"
    found = candidates(lowering.family, lowering.mode, epilogue, lowering.sizes, target.isa, dtype)
    found = [kernel for kernel in found if _has_room(kernel, lowering.sizes, target)]
    wish = options.wishes.get(last.name)
    wanted = wish.variant if wish else (options.variants or {}).get(lowering.family)
    kernel = next((k for k in found if k.variant == wanted), found[-1])
    slots = len(op.inputs)
    inputs = first.inputs + ("",) * (slots - len(first.inputs))
    if unit.updates:
        inputs += last.inputs[2:3]  # hyper; the states are among the outputs, in place
    follow = None
    if len(unit.nodes) > 1 and not unit.updates:
        follow = _follow(graph, target, unit, 1 + len(inputs), options)
        inputs += unit.others
    scratch = scratch_elements(kernel, lowering.sizes, target.cores)
    outputs = last.outputs + ("",) * (len(OPS[last.op].outputs) - len(last.outputs))
    rider = None
    if unit.rider:
        rider = _rider(graph, target, unit, len(outputs), options)
        outputs += unit.rider[-1].outputs
    return Call(
        tuple(node.name for node in unit.nodes),
        unit.phase,
        kernel,
        outputs,
        inputs,
        lowering.sizes,
        f"{OWN_SPACE}scratch.{last.name}" if scratch else "",
        sum(OPS[node.op].work(graph.site(node)).macs for node in unit.nodes[:1]),
        lowering.repeat,
        follow=follow,
        rider=rider,
    )


def _has_room(kernel: Kernel, sizes: Mapping[str, Size], target: Target) -> bool:
    """A kernel that fetches its inputs needs the nearest memory for them."""
    if not fetched(kernel, MAY):
        return True
    size = scratch_elements(kernel, sizes, target.cores) * DTYPES[kernel.dtype].bytes
    return size <= target.room(target.memories[0])


def _rider(graph: Graph, target: Target, unit: Unit, made: int, options: Options) -> Rider:
    """made: the position of its first result."""
    node, update = unit.rider
    site, shape = graph.site(unit.nodes[0]), graph.tensors[node.outputs[0]].shape
    ride = ride_of(site, node.inputs[0], shape)
    assert ride is not None, f"{node.name} cannot ride on {unit.nodes[0].name}"
    sizes = ride.sizes(site)
    found = candidates(CHANNEL_SUM, SUM, update.op, sizes, target.isa, "f32")
    wanted = (options.variants or {}).get(CHANNEL_SUM)
    kernel = next((k for k in found if k.variant == wanted), found[-1])
    outputs = made + len(update.outputs)
    summed = outputs + unit.nodes[0].inputs.index(node.inputs[0])
    return Rider((node.name, update.name), kernel, sizes, made, summed)


def _swallowed(unit: Unit, lowering: Lowering) -> bool:
    """Whether the store of the first node's kernel can do what follows."""
    epilogues = families()[lowering.family].modes[lowering.mode].epilogues
    return len(unit.nodes) == 2 and unit.nodes[-1].op in maps() and unit.nodes[-1].op in epilogues


def _back_call(graph: Graph, target: Target, unit: Unit, options: Options) -> Call:
    product, *more, gradient, update = unit.nodes
    found = back_kernels(graph, product, target.isa, masked=bool(more))
    wanted = (options.variants or {}).get(FAMILY)
    return Call(
        tuple(node.name for node in unit.nodes if not OPS[node.op].view),
        unit.phase,
        next((kernel for kernel in found if kernel.variant == wanted), found[-1]),
        (*[product, *more][-1].outputs, *update.outputs),
        (*gradient.inputs, update.inputs[2]),
        back_sizes(graph, product),
        "",
        sum(OPS[node.op].work(graph.site(node)).macs for node in (product, gradient)),
    )


def _loss_call(graph: Graph, target: Target, unit: Unit, options: Options) -> Call:
    loss, gradient = unit.nodes
    found = loss_kernels(graph, loss, target.isa)
    wanted = (options.variants or {}).get(LOSS)
    kernel = next((kernel for kernel in found if kernel.variant == wanted), found[-1])
    sizes = OPS[loss.op].lower(graph.site(loss)).sizes
    return Call(
        (loss.name, gradient.name),
        unit.phase,
        kernel,
        (*loss.outputs, *gradient.outputs),
        gradient.inputs + ("",) * (4 - len(gradient.inputs)),
        sizes,
        f"{OWN_SPACE}scratch.{loss.name}" if scratch_elements(kernel, sizes, target.cores) else "",
        0,
        STEPS,
    )


def _follow(graph: Graph, target: Target, unit: Unit, behind: int, options: Options) -> Follow:
    """The elementwise nodes of a unit; their other operands come at position `behind` and on."""
    node, *followers = unit.nodes
    lowering = following(graph, followers)
    found = candidates(lowering.family, lowering.mode, "", lowering.sizes, target.isa, "f32")
    wanted = (options.variants or {}).get(lowering.family)
    kernel = next((k for k in found if k.variant == wanted), found[-1])
    positions = range(behind, behind + len(unit.others))
    if len(followers) > 1:  # the result so far is the first operand, the others are in their order
        return Follow(kernel, lowering.sizes, (0, 0, *positions))
    remaining, inputs = iter(positions), followers[0].inputs
    operands = (0, *(0 if name == node.outputs[0] else next(remaining) for name in inputs))
    slots = len(OPS[followers[0].op].inputs)
    assert len(operands) == 1 + slots, f"{followers[0].op} has operands that are left out"
    return Follow(kernel, lowering.sizes, operands)


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


__all__ += ["Context", "Kernel", "Options", "Tiler", "Wish", "contexts"]
