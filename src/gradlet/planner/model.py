"""Plan: the order, kernel and address of everything. Nothing later decides anything more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from gradlet.ir.elements import ELEMENTS
from gradlet.ir.graph import ArrayReader, ArrayWriter, Graph
from gradlet.kernels.catalogue import Kernel, streamed
from gradlet.kernels.family import MUST
from gradlet.kernels.traits import growth, is_exact, steps
from gradlet.ops.base import Size
from gradlet.ops.cast import name_of
from gradlet.planner.launch import Launch, launch_from_json
from gradlet.planner.tile.table import control_bytes, size_words, table_bytes, views_of
from gradlet.planner.tiling import Tiling, tiling_from_json
from gradlet.targets.target import Memory, Target

KINDS = ("arena", "weights", "constants")
"""arena: activations, gradients, scratch. weights: what survives a step and changes. constants:
what never changes, and may stay in flash."""
L1, FARTHEST = "l1_", "farthest_"
REGIONS = tuple(place + kind for place in ("", L1, FARTHEST) for kind in KINDS)
"""Those with a prefix hold what lies in L1 or in the farthest memory, the others what lies in the
default memory; each region is an array in C."""
EPILOGUE, UPDATE, BIAS_GRADIENT = "epilogue", "update", "bias_gradient"
LINEAR_BACKWARD, LOSS_GRADIENT = "linear_backward", "loss_gradient"
"""Fusions that others than their rules must know; each has a file of that name in planner/fuse/."""


@dataclass(frozen=True)
class Buffer:
    """Bytes at one address, live from call `first` to call `last`, shared by `tensors` in turn.

    It is taken from the begin of its first call to the end of its last one; or only from the last
    tile of the first on (from_last_tile), and no longer in the last tile of the last
    (before_last_tile).
    """

    name: str
    level: str
    region: str
    offset: int
    bytes: int
    first: int
    last: int
    tensors: tuple[str, ...]
    from_last_tile: bool = False
    before_last_tile: bool = False

    @property
    def interval(self) -> tuple[int, int]:
        """Its lifetime where every call counts twice: up to its last tile, and that."""
        return 2 * self.first + self.from_last_tile, 2 * self.last + (not self.before_last_tile)

    @property
    def kind(self) -> str:
        """arena, weights or constants, wherever it lies."""
        return self.region.removeprefix(L1).removeprefix(FARTHEST)


@dataclass(frozen=True)
class Call:
    """A fusion group as a list of launches. fusion: the rule that has made it (planner/fuse/), or
    "" for a single node. nodes: those of the graph that it computes; name: of the one whose result
    it is called by.

    whole: the launches over whole operands; tiling: the loops, the views and the launches of one
    that runs tile by tile. It ends with a barrier. Operands that are left out are named "".
    """

    name: str
    nodes: tuple[str, ...]
    fusion: str
    phase: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    whole: tuple[Launch, ...]
    scratch: str
    macs: int
    tiling: Tiling | None = None

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Those that run."""
        return self.tiling.launches if self.tiling else self.whole

    @property
    def kernel(self) -> Kernel:
        """What the first tile runs first."""
        return self.launches[0].kernel

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(launch.kernel for launch in self.launches)

    def by(self, kernel: Kernel) -> Call:
        """The same, not tiled, with another kernel in the place of the first."""
        first, *others = self.whole
        repeat = first.repeat // steps(first.kernel) * steps(kernel)
        first = replace(first, kernel=kernel, repeat=repeat)
        return replace(self, whole=(first, *others), tiling=None)

    @property
    def operands(self) -> tuple[str, ...]:
        """By the numbers that launches know them by."""
        return (*self.outputs, *self.inputs)

    @property
    def repeat(self) -> int:
        return self.whole[0].repeat

    @property
    def sizes(self) -> Mapping[str, Size]:
        """Of the first kernel, for the whole node."""
        return self.whole[0].sizes[0]

    @property
    def beside(self) -> Launch | None:
        """What is fused horizontally: it runs beside the first launch, with no barrier between. Its
        operands are results, what it sums up, and the settings of its update."""
        return next((launch for launch in self.whole if not launch.barrier), None)

    @property
    def own_outputs(self) -> int:
        """How many of the outputs are not made beside."""
        beside = self.beside
        return beside.operands[0] or 0 if beside else len(self.outputs)

    @property
    def updates(self) -> bool:
        """Whether its outputs are weights, which the update by their gradient replaces."""
        return self.fusion in (UPDATE, BIAS_GRADIENT)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Those of its outputs that take the place of weights, biases or states which it reads."""
        if self.fusion == LINEAR_BACKWARD:
            return self.outputs[1:]
        return self.outputs if self.updates else ()


def fetched_places(call: Call, how: str = MUST) -> tuple[int, ...]:
    """By number, the operands that kernels of the call fetch themselves: those that they must, or
    may."""
    return tuple(
        place
        for launch in call.launches
        for number in streamed(launch.kernel, how)
        if (place := launch.operands[number]) is not None
    )


@dataclass(frozen=True)
class Plan:
    prefix: str
    target: Target
    graph: Graph
    calls: tuple[Call, ...]
    buffers: tuple[Buffer, ...]

    def buffer_of(self) -> Mapping[str, Buffer]:
        """Where each tensor and scratch lives."""
        return self._places

    @cached_property
    def _places(self) -> Mapping[str, Buffer]:
        return {name: buffer for buffer in self.buffers for name in buffer.tensors}

    def region_bytes(self, region: str) -> int:
        ends = [b.offset + b.bytes for b in self.buffers if b.region == region]
        return max(ends, default=0)

    @property
    def used(self) -> int:
        return sum(self.region_bytes(region) for region in REGIONS)

    @cached_property
    def distinct_sizes(self) -> dict[str, Launch]:
        """Launches of calls without tiles, one for all that get the same sizes: a loop that was
        unrolled has the same ones in every round."""
        whole = (launch for call in self.calls if not call.tiling for launch in call.whole)
        found: dict[str, Launch] = {}
        for launch in whole:
            found.setdefault(launch.sizes_key, launch)
        return found

    @cached_property
    def sizes_bytes(self) -> int:
        """What the sizes of calls take; kernels look at them all the time, so they lie in L1.
        Those of tiled calls are in their tables."""
        return 4 * sum(size_words(launch.sizes[0]) for launch in self.distinct_sizes.values())

    @property
    def tilings(self) -> tuple[Tiling, ...]:
        return tuple(call.tiling for call in self.calls if call.tiling)

    @cached_property
    def tables_bytes(self) -> int:
        """What the tables of tiled calls take, beside the program."""
        return sum(map(table_bytes, self.tilings))

    @cached_property
    def control_bytes(self) -> int:
        """What the running of tiles takes of the nearest memory: tables and states of two calls."""
        return control_bytes(self.tilings)

    @property
    def most_views(self) -> int:
        return max(map(views_of, self.tilings), default=0)

    @property
    def sizes_level(self) -> Memory:
        """The nearest memory, unless the sizes would not fit there."""
        l1 = self.target.memories[0]
        taken = self.level_bytes(l1.name) + self.control_bytes
        return l1 if taken + self.sizes_bytes <= self.target.room(l1) else self.level

    @property
    def level(self) -> Memory:
        """The memory that holds the data, but for what was put nearer or farther away."""
        names = {buffer.level for buffer in self.buffers if buffer.region in KINDS}
        found = [memory for memory in self.target.memories if memory.name in names]
        return found[-1] if found else self.target.home

    def level_bytes(self, level: str) -> int:
        """Bytes of a memory that buffers take."""
        regions = {buffer.region for buffer in self.buffers if buffer.level == level}
        return sum(self.region_bytes(region) for region in regions)

    @property
    def image_bytes(self) -> int:
        """What is copied nearer when the program starts, and lies in the farthest memory before."""
        return sum(self.region_bytes(L1 + kind) for kind in ("weights", "constants"))

    def overhead(self, memory: Memory) -> int:
        """Bytes that are no data: sizes and tables of calls, initial values of other memories."""
        if len(self.target.memories) == 1:
            return 0
        used = self.control_bytes if memory == self.target.memories[0] else 0
        if memory == self.target.home:
            used += self.image_bytes + self.tables_bytes
        return used + (self.sizes_bytes if memory == self.sizes_level else 0)

    def taken(self, memory: Memory) -> int:
        return self.level_bytes(memory.name) + self.overhead(memory)

    def fits(self, memory: Memory) -> bool:
        return self.taken(memory) <= self.target.room(memory)

    def bound(self, memory: Memory) -> int:
        """The least of a memory that these lifetimes need, wherever the buffers are put."""
        changes: dict[int, int] = {}
        persistent = 0
        for buffer in self.buffers:
            if buffer.level != memory.name:
                continue
            if buffer.kind != "arena":
                persistent += buffer.bytes
                continue
            first, last = buffer.interval
            changes[first] = changes.get(first, 0) + buffer.bytes
            changes[last + 1] = changes.get(last + 1, 0) - buffer.bytes
        alive = accumulate(changes[time] for time in sorted(changes))
        return persistent + max(alive, default=0) + self.overhead(memory)

    @property
    def lower_bound(self) -> int:
        """The least that the data need, over all memories."""
        return sum(self.bound(m) - self.overhead(m) for m in self.target.memories)

    @property
    def judged(self) -> Graph:
        """The graph, with how large the errors of these kernels may be."""
        outputs = {node.name: node.outputs[0] for node in self.graph.nodes}
        grown = {
            outputs[call.nodes[0]]: max((g.factor, g.reach) for g in map(growth, call.kernels))
            for call in self.calls
            if not all(map(is_exact, call.kernels))
        }
        return replace(self.graph, grown=grown)

    def memory(self) -> dict[str, Any]:
        """Bytes used and there per level, and the least that this order of calls needs."""
        levels = {
            m.name: {"used": self.taken(m), "size": m.size, "lower_bound": self.bound(m)}
            for m in self.target.memories
        }
        return {**levels, "lower_bound": self.lower_bound}

    def macs(self) -> dict[str, int]:
        """Multiply-accumulates of one micro-batch, by the mission's three steps."""
        totals = {"forward": 0, "weight_grad": 0, "input_grad": 0}
        parameters = {grad for name, grad in self.graph.grads if name in set(self.graph.trained)}
        producers = {name: node for node in self.graph.nodes for name in node.outputs}
        casts = set(map(name_of, ELEMENTS))
        while cast := {g for g in parameters if g in producers and producers[g].op in casts}:
            parameters = (parameters - cast) | {producers[grad].inputs[0] for grad in cast}
        weight_nodes = {producers[grad].name for grad in parameters if grad in producers}
        for call in self.calls:
            if call.phase == "forward":
                totals["forward"] += call.macs
            elif call.fusion == LINEAR_BACKWARD:
                totals["weight_grad"] += call.macs // 2
                totals["input_grad"] += call.macs // 2
            elif call.nodes[0] in weight_nodes:
                totals["weight_grad"] += call.macs
            elif call.phase == "backward":
                totals["input_grad"] += call.macs
        return totals

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"

    def to_json(self, array: ArrayWriter | None = None) -> dict[str, Any]:
        return {
            "prefix": self.prefix,
            "target": self.target.to_json(),
            "calls": [asdict(call) for call in self.calls],
            "buffers": [asdict(buffer) for buffer in self.buffers],
            "graph": self.graph.to_json(array),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], array: ArrayReader | None = None) -> Plan:
        return Plan(
            value["prefix"],
            Target.from_json(value["target"]),
            Graph.from_json(value["graph"], array),
            tuple(_call_from_json(item) for item in value["calls"]),
            tuple(Buffer(**{**b, "tensors": tuple(b["tensors"])}) for b in value["buffers"]),
        )

    def dumps(self) -> str:
        return json.dumps(self.to_json(), indent=1)

    @staticmethod
    def loads(text: str) -> Plan:
        return Plan.from_json(json.loads(text))


def _call_from_json(value: Mapping[str, Any]) -> Call:
    return Call(
        value["name"],
        tuple(value["nodes"]),
        value["fusion"],
        value["phase"],
        tuple(value["outputs"]),
        tuple(value["inputs"]),
        tuple(map(launch_from_json, value["whole"])),
        value["scratch"],
        value["macs"],
        tiling_from_json(value["tiling"]) if value["tiling"] else None,
    )


def _lines(plan: Plan) -> Iterator[str]:
    yield f"plan {plan.graph.name} for {plan.target.name}, {plan.target.cores} cores"
    places = plan.buffer_of()
    for index, call in enumerate(plan.calls):
        arguments = ", ".join(
            f"{name}@{places[name].region}+{places[name].offset}" if name else "-"
            for name in (*call.outputs, *call.inputs)
        )
        tiles = f"   {call.tiling}" if call.tiling else ""
        yield f"  {index:3} {call.phase:8} {call.kernel.name}({arguments})   # {call.name}{tiles}"
    for region in REGIONS:
        if plan.region_bytes(region):
            yield f"  {region}: {plan.region_bytes(region)} bytes"
    yield f"  used {plan.used}, lower bound {plan.lower_bound}"
