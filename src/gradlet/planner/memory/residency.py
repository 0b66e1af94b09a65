"""Which data lie in which memory, when not all of them fit into the nearest, and the tiles then.

Small things that are touched often reside in L1 for good. Every other call sees its
operands through views. What room the views leave goes to tensors for their whole life, those
that save the most copying per byte first: a result then stays in L1 for its reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from gradlet.ir.graph import OWN_SPACE, Array
from gradlet.planner.fuse.rule import FusionGroup
from gradlet.planner.memory.alias import Storage
from gradlet.planner.memory.place import Request, height
from gradlet.planner.memory.stages import Ledger, prefetch, stages_in_use
from gradlet.planner.model import Call, Plan
from gradlet.planner.tile.build import Tiler
from gradlet.planner.tile.schedule import Schedule, TilingRequest
from gradlet.planner.tile.table import control_bytes, views_of
from gradlet.planner.tiling import Tiling, dense
from gradlet.support.progress import counted

SMALL = 512
SMALL_SHARE = 0.2
RESERVE = 1536
"""Bytes kept at first for the table of the running call and its state."""


@dataclass
class Levels:
    """in_l1: storages in the nearest memory. requests: what is needed there and when, in halves of
    calls."""

    calls: list[Call]
    in_l1: set[str]
    requests: list[Request]
    room: int


def assign_levels(
    plan: Plan,
    groups: Sequence[FusionGroup],
    requests: Sequence[Request],
    persistent: Sequence[Storage],
    tiler: Tiler,
) -> Levels | None:
    """Tilings for the calls of a plan whose data lie in backing memory; None without room."""
    memory = plan.target.memories[0]
    kept, spare = RESERVE, 0
    while kept < plan.target.room(memory):
        found = _assigned(plan, groups, requests, persistent, tiler, kept, spare)
        needed = control_bytes([call.tiling for call in found.calls if call.tiling])
        room = found.room - persistent_bytes(found, persistent, memory.align)
        excess = height(found.requests, memory.align, room) - room
        if needed <= kept and excess <= 0:
            return found
        if needed > kept:
            kept = needed
        elif spare < found.room:  # no placement without gaps was found: promote less
            spare += max(excess, found.room // 64)
        else:
            kept += excess
    return None


FILLS = (0.96, 0.92, 0.86)
"""Shares of the middle memory that are planned for, one after the other; its tables come on top."""


def farthest_storages(
    plan: Plan, requests: Sequence[Request], persistent: Sequence[Storage], fill: float
) -> set[str]:
    """What goes into the farthest memory, so that the rest fits into that share of the middle one:
    large things that few calls touch first."""
    users: dict[str, int] = {}
    places = plan.buffer_of()
    for call in plan.calls:
        for name in {places[n].name for n in (*call.outputs, *call.inputs) if n}:
            users[name] = users.get(name, 0) + 1
    room = plan.target.room(plan.target.home) * fill
    end = len(plan.calls)
    spans = {r.name: r for r in requests if r.name in users}
    spans |= {s.name: Request(s.name, s.bytes, 0, end) for s in persistent}
    alive: Array = np.zeros(end + 1, np.int64)
    for span in spans.values():
        alive[span.first : span.last + 1] += span.bytes
    farthest: set[str] = set()
    for name in sorted(spans, key=lambda n: (users.get(n, 0) / max(1, spans[n].bytes), n)):
        span = spans[name]
        if alive.max(initial=0) <= room:
            break
        if alive[span.first : span.last + 1].max() <= room:
            continue  # there is room enough while it lives
        alive[span.first : span.last + 1] -= span.bytes
        farthest.add(name)
    return farthest


def _assigned(
    plan: Plan,
    groups: Sequence[FusionGroup],
    requests: Sequence[Request],
    persistent: Sequence[Storage],
    tiler: Tiler,
    reserve: int,
    spare: int,
) -> Levels:
    """reserve: bytes that nothing gets. spare: what is not given to whole tensors and to prefetched
    regions; those of single calls find a place anyhow."""
    memory = plan.target.memories[0]
    room = plan.target.room(memory) - reserve
    end = len(plan.calls)
    spans = {r.name: Request(r.name, r.bytes, 2 * r.first, 2 * r.last + 1) for r in requests}
    spans |= {s.name: Request(s.name, s.bytes, 0, 2 * end + 1) for s in persistent}
    ledger = Ledger(end, memory.align)
    users = _users(plan, tiler.storage_of)
    in_l1 = _small(spans, users, ledger, room)
    pairs = zip(groups, plan.calls, strict=True)
    schedules = [
        tiler.choose(
            TilingRequest(
                group, call, frozenset(in_l1), ledger.free(room, 2 * index, 2 * index + 1)
            )
        )
        for index, (group, call) in enumerate(counted(pairs, end, "tiles of calls"))
    ]
    for index, schedule in enumerate(schedules):
        ledger.add(schedule.scratch, 2 * index, 2 * index + 1)
        ledger.occupy(stages_in_use(schedule.tiling, index))
    _promote(plan, spans, users, in_l1, schedules, ledger, room - spare)
    schedules = [
        _whole(call, _plain(schedule)) for call, schedule in zip(plan.calls, schedules, strict=True)
    ]
    prefetch(plan, schedules, tiler.storage_of, ledger, room - spare)
    return _settled(plan, schedules, in_l1, spans, persistent, room)


def _users(plan: Plan, storage_of: Mapping[str, str]) -> dict[str, list[int]]:
    """The calls that touch each storage, scratch included."""
    found: dict[str, list[int]] = {}
    for index, call in enumerate(plan.calls):
        names = {storage_of[n] for n in (*call.outputs, *call.inputs) if n}
        if call.scratch:
            names.add(call.scratch)
        for name in sorted(names):
            found.setdefault(name, []).append(index)
    return found


def _small(
    spans: Mapping[str, Request], users: Mapping[str, list[int]], ledger: Ledger, room: int
) -> set[str]:
    """Settings, biases, losses: too small to be worth a transfer each."""
    in_l1 = set()
    for name in sorted(spans, key=lambda n: (spans[n].bytes, n)):
        span = spans[name]
        if span.bytes > SMALL or name not in users:
            continue
        if ledger.free(int(room * SMALL_SHARE), span.first, span.last) >= span.bytes:
            ledger.add(span.bytes, span.first, span.last)
            in_l1.add(name)
    return in_l1


def _promote(
    plan: Plan,
    spans: Mapping[str, Request],
    users: Mapping[str, list[int]],
    in_l1: set[str],
    schedules: list[Schedule],
    ledger: Ledger,
    room: int,
) -> None:
    """Give what room is left to storages: to scratch, then to what is copied most per byte."""
    tensors = {b.name: b.tensors for b in plan.buffers}
    traffic = {
        name: _traffic(tensors[name], schedules, users[name]) for name in users if name in spans
    }
    # the scratch of a whole node that is tiled now: tiles have scratch of theirs
    replaced = {
        c.scratch for c, schedule in zip(plan.calls, schedules, strict=True) if schedule.tiling
    }
    scratch = {call.scratch for call in plan.calls}
    ranked = sorted(
        (name for name in traffic if name not in in_l1 and name not in replaced),
        key=lambda n: (n not in scratch, -traffic[n] / max(1, spans[n].bytes), n),
    )
    for name in ranked:
        span, own = spans[name], set(tensors[name])
        gained = _gains(own, schedules, users[name])
        if gained is None:
            continue
        for index in gained:
            ledger.occupy(stages_in_use(schedules[index].tiling, index, own), -1)
        if ledger.free(room, span.first, span.last) >= span.bytes:
            ledger.add(span.bytes, span.first, span.last)
            in_l1.add(name)
            for index in gained:
                schedules[index] = _in_place(schedules[index], own)
        else:
            for index in gained:
                ledger.occupy(stages_in_use(schedules[index].tiling, index, own))


def _traffic(tensors: Sequence[str], schedules: Sequence[Schedule], users: Sequence[int]) -> int:
    """Bytes that are copied, or touched in backing memory, as these tensors are not in L1."""
    total = 0
    for index in users:
        tiling = schedules[index].tiling
        if tiling is None:
            total += 64  # whatever the call does there is slow
            continue
        for view in tiling.views:
            if view and view.tensor in tensors:
                times = 1
                for number, axis in enumerate(tiling.axes):
                    if view.axes and number <= view.axes[-1]:
                        times *= axis.count
                total += view.stage_bytes * times * (view.load + view.store)
    return total


def _gains(
    tensors: set[str], schedules: Sequence[Schedule], users: Sequence[int]
) -> Sequence[int] | None:
    """The calls that can do without views on these, or None if one of them needs a copy, or
    fetches them itself from backing memory."""
    for index in users:
        tiling = schedules[index].tiling
        for view in tiling.views if tiling else ():
            if view is None or view.tensor not in tensors or tiling is None:
                continue
            if view.fetched:
                return None
            regions = (view.region(tiling.ranges(at)) for at in _corners(tiling))
            if not all(dense(view.shape, region) for region in regions):
                return None
    return users


def _corners(tiling: Tiling) -> list[tuple[int, ...]]:
    """A tile of each kind."""
    return list(product(*({axis.classes.index(k) for k in axis.classes} for axis in tiling.axes)))


def _in_place(schedule: Schedule, tensors: set[str]) -> Schedule:
    tiling = schedule.tiling
    for tensor in sorted(tensors):
        tiling = tiling.used_in_place(tensor) if tiling else None
    changed = replace(schedule, tiling=tiling)
    fetches = tiling is not None and any(w and w.fetched for w in tiling.views)
    return changed if fetches else _plain(changed)


def _plain(schedule: Schedule) -> Schedule:
    """Where there is nothing to copy but what the kernel fetches itself, it is a plain call. What
    that is has to stay where it is: nothing may be moved to L1 any more."""
    tiling = schedule.tiling
    if tiling and tiling.count == 1 and not any(w and w.buffer for w in tiling.views):
        return replace(schedule, tiling=None)
    return schedule


def _whole(call: Call, schedule: Schedule) -> Schedule:
    """Tiles are for copies: where there are none left, the call runs on whole operands."""
    tiling = schedule.tiling
    if tiling is None or call.scratch or any(w and (w.buffer or w.fetched) for w in tiling.views):
        return schedule
    if len(tiling.views) > len(call.operands):  # a partial sum has a view of its own
        return schedule
    if schedule.kernel.variant != call.kernel.variant:
        return schedule
    return Schedule(call.kernel, None, 0)


def _settled(
    plan: Plan,
    schedules: Sequence[Schedule],
    in_l1: set[str],
    spans: Mapping[str, Request],
    persistent: Sequence[Storage],
    room: int,
) -> Levels:
    """Calls with their views named, and what all of it asks of the nearest memory."""
    if not any(views_of(schedule.tiling) for schedule in schedules if schedule.tiling):
        schedules = [
            replace(schedule, tiling=None) for schedule in schedules
        ]  # all in L1: plain calls
    calls, requests = [], []
    for index, (call, schedule) in enumerate(zip(plan.calls, schedules, strict=True)):
        tiling = schedule.tiling
        if tiling is None and schedule.kernel != call.kernel:
            scratch = f"{OWN_SPACE}scratch.{call.name}"
            requests.append(Request(scratch, schedule.scratch, 2 * index, 2 * index + 1))
            in_l1.add(scratch)
            calls.append(replace(call.by(schedule.kernel), scratch=scratch))
            continue
        if tiling is None:
            calls.append(call)
            if schedule.scratch:  # whose room it has kept when all that it copied came to L1
                in_l1.add(call.scratch)
            if call.scratch and call.scratch in in_l1:
                requests.append(spans[call.scratch])
            continue
        tiling = _named(call, index, tiling)
        requests += stages_in_use(tiling, index)
        scratch = f"{OWN_SPACE}scratch.{call.name}" if schedule.scratch else ""
        if scratch:
            requests.append(Request(scratch, schedule.scratch, 2 * index, 2 * index + 1))
            in_l1.add(scratch)
        calls.append(replace(call, tiling=tiling, scratch=scratch))
    kept = {s.name for s in persistent}
    own = {r.name for r in requests}
    requests += [spans[n] for n in sorted(in_l1) if n in spans and n not in kept and n not in own]
    return Levels(calls, in_l1, requests, room)


def _named(call: Call, index: int, tiling: Tiling) -> Tiling:
    """Each view's buffer gets a name of its own: the numbers tell, the rest is for readers."""
    start = f"{OWN_SPACE}tile{index}.{call.name}"
    views = tuple(
        replace(w, buffer=f"{start}.{place}.{w.tensor}") if w and w.buffer else w
        for place, w in enumerate(tiling.views)
    )
    return replace(tiling, views=views)


def persistent_bytes(levels: Levels, persistent: Sequence[Storage], align: int) -> int:
    """Bytes of the nearest memory that what survives a step takes."""
    return sum(-(-s.bytes // align) * align for s in persistent if s.name in levels.in_l1)
