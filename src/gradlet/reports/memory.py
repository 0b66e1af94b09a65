"""The memory of a training step: by layer and step, over time, and at its peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from gradlet.ir.graph import EXTERNAL_ROLES, PHASES, Node
from gradlet.planner.model import REGIONS, Buffer, Plan
from gradlet.reports.owners import INPUT, KINDS, LOSS, SHARED, Owners


@dataclass(frozen=True)
class Row:
    """What a layer needs for one step, in bytes by kind.

    Weights and optimizer state are what its calls read or replace. Activations are what it makes
    in the forward step, and what of them it reads again in the backward step; gradients what it
    makes in the backward step and reads in the update. Memory that a result takes over from its
    operand is counted where it was first made. Of tiles and scratch, which calls have in turn, it
    is what the largest call needs.
    """

    module: str
    step: str
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class Level:
    """`used` is up to the highest address, `peak` the most that is alive at once. `room` is what
    stacks and code leave of `size`, `lower_bound` the least that these lifetimes need."""

    name: str
    size: int
    room: int
    lower_bound: int
    used: int
    peak: int
    regions: Mapping[str, int]


@dataclass(frozen=True)
class Holding:
    """A buffer that is alive at the peak: what is in it just then, and which calls it spans."""

    tensor: str
    module: str
    kind: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Peak:
    level: str
    index: int
    call: str
    module: str
    step: str
    bytes: int
    kinds: Mapping[str, int]
    buffers: tuple[Holding, ...]  # largest first


@dataclass(frozen=True)
class Moment:
    """One kernel call, and the bytes that are alive in each level while it runs."""

    index: int
    call: str
    module: str
    step: str
    live: Mapping[str, int]


@dataclass(frozen=True)
class MemoryReport:
    plan: Plan
    fits: bool
    lower_bound: int
    levels: tuple[Level, ...]
    layers: tuple[Row, ...]
    peaks: tuple[Peak, ...]
    timeline: tuple[Moment, ...]

    @property
    def used(self) -> int:
        """Bytes of data, without the kernels' sizes."""
        return sum(level.regions[region] for level in self.levels for region in REGIONS)

    def to_json(self) -> dict[str, Any]:
        value = {
            "model": self.plan.graph.name,
            "target": self.plan.target.name,
            "cores": self.plan.target.cores,
            "fits": self.fits,
            "used": self.used,
            "lower_bound": self.lower_bound,
        }
        for name in ("levels", "layers", "peaks", "timeline"):
            value[name] = [asdict(item) for item in getattr(self, name)]
        return value

    def __str__(self) -> str:
        from gradlet.reports.table import as_text

        return as_text(self)

    def csv(self) -> str:
        from gradlet.reports.table import as_csv

        return as_csv(self)

    def svg(self) -> str:
        from gradlet.reports.svg import as_svg

        return as_svg(self)


def memory_report(plan: Plan) -> MemoryReport:
    """What a plan, also one that does not fit its target, puts where and when."""
    owners = Owners(plan)
    timeline = _timeline(plan, owners)
    levels = tuple(_levels(plan, timeline))
    return MemoryReport(
        plan,
        all(level.used <= level.room for level in levels),
        plan.lower_bound,
        levels,
        tuple(_layers(plan, owners)),
        tuple(_peak(plan, owners, timeline, level.name) for level in levels if level.peak),
        timeline,
    )


def alive(buffer: Buffer, index: int) -> bool:
    return buffer.kind != "arena" or buffer.first <= index <= buffer.last


def content(buffer: Buffer, index: int, written: Mapping[str, int]) -> str:
    """The tensor that a buffer holds at a call: the last that was written, or its first."""
    present = [name for name in buffer.tensors if written.get(name, -1) <= index]
    return max(present, key=lambda name: written.get(name, -1), default=buffer.tensors[0])


def written_at(plan: Plan) -> dict[str, int]:
    return {name: i for i, call in enumerate(plan.calls) for name in call.outputs if name}


def _timeline(plan: Plan, owners: Owners) -> tuple[Moment, ...]:
    """Of a call the half in which more is alive."""
    end = 2 * len(plan.calls) + 1
    changes = {memory.name: [0] * (end + 2) for memory in plan.target.memories}
    for buffer in plan.buffers:
        first, last = buffer.interval if buffer.kind == "arena" else (0, end)
        changes[buffer.level][first] += buffer.bytes
        changes[buffer.level][min(last, end) + 1] -= buffer.bytes
    halves = {level: list(accumulate(steps)) for level, steps in changes.items()}
    moments = []
    for index, call in enumerate(plan.calls):
        live = {level: max(sums[2 * index : 2 * index + 2]) for level, sums in halves.items()}
        module = owners.of_node(call.nodes[0])
        moments.append(Moment(index, call.name, module, call.phase, live))
    return tuple(moments)


def _levels(plan: Plan, timeline: tuple[Moment, ...]) -> Iterable[Level]:
    for memory in plan.target.memories:
        regions = {
            region: max(
                (
                    b.offset + b.bytes
                    for b in plan.buffers
                    if (b.level, b.region) == (memory.name, region)
                ),
                default=0,
            )
            for region in REGIONS
        }
        if plan.overhead(memory):
            regions["sizes"] = plan.overhead(memory)  # of calls, tables of tiles, initial values
        yield Level(
            memory.name,
            memory.size,
            plan.target.room(memory),
            plan.bound(memory),
            sum(regions.values()),
            max((moment.live[memory.name] for moment in timeline), default=0),
            regions,
        )


def _peak(plan: Plan, owners: Owners, timeline: tuple[Moment, ...], level: str) -> Peak:
    top = max(timeline, key=lambda moment: moment.live[level])
    written = written_at(plan)
    holdings = []
    for buffer in plan.buffers:
        if buffer.level == level and alive(buffer, top.index):
            name = _kept(plan, buffer) or content(buffer, top.index, written)
            holdings.append(
                Holding(
                    name,
                    owners.of_tensor(name),
                    owners.kind(name),
                    buffer.bytes,
                    *_span(plan, buffer),
                )
            )
    holdings.sort(key=lambda holding: (-holding.bytes, holding.tensor))
    kinds = {kind: sum(h.bytes for h in holdings if h.kind == kind) for kind in KINDS}
    return Peak(
        level,
        top.index,
        top.call,
        top.module,
        top.step,
        top.live[level],
        kinds,
        tuple(holdings),
    )


def _kept(plan: Plan, buffer: Buffer) -> str:
    """What survives the step goes by the model's own name."""
    if buffer.kind == "arena":
        return ""
    kept = (n for n in buffer.tensors if plan.graph.tensors[n].role in EXTERNAL_ROLES)
    return next(kept, buffer.tensors[0])


def _span(plan: Plan, buffer: Buffer) -> tuple[int, int]:
    last = len(plan.calls) - 1
    return (0, last) if buffer.kind != "arena" else (buffer.first, min(buffer.last, last))


class _Ledger:
    """Rows under construction: each buffer once per row and kind."""

    def __init__(self, plan: Plan, owners: Owners) -> None:
        self.places = plan.buffer_of()
        self.owners = owners
        self.rows: dict[tuple[str, str], dict[tuple[str, str], int]] = defaultdict(dict)
        self.made: set[tuple[str, str]] = set()

    def note(self, row: tuple[str, str], name: str, *, new: bool = False) -> None:
        place = self.places.get(name)
        if place is None:  # exists only inside a fused call
            return
        key = (place.name, self.owners.kind(name))
        if new and key in self.made:
            return
        if new:
            self.made.add(key)
        self.rows[row][key] = place.bytes

    def note_passing(self, row: tuple[str, str], names: Iterable[str]) -> None:
        """What a call needs while it runs; of several calls of a row, the most."""
        totals: dict[str, int] = defaultdict(int)
        for name in filter(None, names):
            totals[self.owners.kind(name)] += self.places[name].bytes
        for kind, size in totals.items():
            self.rows[row]["", kind] = max(size, self.rows[row].get(("", kind), 0))


def _layers(plan: Plan, owners: Owners) -> list[Row]:
    ledger = _Ledger(plan, owners)
    nodes = {node.name: node for node in plan.graph.nodes}
    for name in plan.graph.fed:
        module = INPUT if name in plan.graph.inputs else LOSS
        ledger.note((module, "forward"), name, new=True)
    for call in plan.calls:
        for name in call.nodes:
            _note_node(ledger, owners, nodes[name], owners.of_node(call.nodes[0]))
        views = call.tiling.views if call.tiling else ()
        passing = [call.scratch, *(name for w in views if w for name in w.stage_buffers)]
        ledger.note_passing((owners.of_node(call.nodes[0]), call.phase), passing)
    modules = dict.fromkeys((INPUT, *map(owners.of_node, nodes), LOSS, SHARED))
    return [
        Row(module, step, _by_kind(ledger.rows[module, step]))
        for module in sorted(modules, key=(LOSS, SHARED).__contains__)
        for step in PHASES
        if (module, step) in ledger.rows
    ]


READ_AGAIN = {"backward": "activations", "update": "gradients"}


def _note_node(ledger: _Ledger, owners: Owners, node: Node, maker: str) -> None:
    """maker: the module whose call makes it, and what follows in the same place."""
    row = (owners.of_node(node.name), node.phase)
    for name in node.inputs:
        kind = owners.kind(name)
        shared = owners.of_tensor(name) == SHARED
        if kind in ("weights", "optimizer", "constants"):
            ledger.note((SHARED, node.phase) if shared else row, name)
        elif kind == READ_AGAIN.get(node.phase):
            ledger.note(row, name)
    for name in node.outputs:
        if owners.kind(name) in ("activations", "gradients"):
            ledger.note((maker, node.phase), name, new=True)


def _by_kind(entries: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {kind: sum(size for (_, own), size in entries.items() if own == kind) for kind in KINDS}
