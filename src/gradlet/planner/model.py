"""Plan: the order, kernel and address of everything. Nothing later decides anything more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from gradlet.ir.graph import ArrayReader, ArrayWriter, Graph
from gradlet.kernels.catalogue import Kernel, maps
from gradlet.ops.base import Size
from gradlet.planner.tile.table import control_bytes, size_words, table_bytes, windows_of
from gradlet.planner.tiling import Tiling, tiling_from_json
from gradlet.targets.target import Memory, Target

KINDS = ("arena", "weights", "constants")
"""arena: activations, gradients, scratch. weights: what survives a step and changes. constants:
what never changes, and may stay in flash."""
NEAR, FAR = "near_", "far_"
REGIONS = tuple(place + kind for place in ("", NEAR, FAR) for kind in KINDS)
"""The near ones hold what lies in a nearer memory than the rest, the far ones what lies farther
away; each region is an array in C."""


@dataclass(frozen=True)
class Buffer:
    """Bytes at one address, live from call `first` to call `last`, shared by `tensors` in turn.

    late: only from the last tile of the first call on. gone: no longer in that of the last call.
    """

    name: str
    level: str
    region: str
    offset: int
    bytes: int
    first: int
    last: int
    tensors: tuple[str, ...]
    late: bool = False
    gone: bool = False

    @property
    def halves(self) -> tuple[int, int]:
        """Its life where every call counts twice: up to its last tile, and that."""
        return 2 * self.first + self.late, 2 * self.last + (not self.gone)

    @property
    def kind(self) -> str:
        """arena, weights or constants, wherever it lies."""
        return self.region.removeprefix(NEAR).removeprefix(FAR)


@dataclass(frozen=True)
class Follow:
    """A kernel that works on the result where it is made, behind a barrier: its operands by their
    positions among the outputs and inputs of the call."""

    kernel: Kernel
    sizes: Mapping[str, Size]
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Rider:
    """A kernel that runs beside another one, with no barrier between: it sums up the operand at
    position `summed` of the call, and replaces what the last of the call's outputs hold, from
    position `made` on, as many as its update has."""

    nodes: tuple[str, ...]
    kernel: Kernel
    sizes: Mapping[str, Size]
    made: int
    summed: int

    def operands(self, call: Call) -> tuple[int, ...]:
        """By position: results, what is summed, the settings of the update."""
        settings = len(call.outputs) + len(call.inputs) - 1
        return (*range(self.made, len(call.outputs)), self.summed, settings)


@dataclass(frozen=True)
class Call:
    """One kernel call. `nodes` are the graph's nodes that it computes; the last gives the name.

    A call that is repeated gets the number of the repetition, and ends with a barrier each time.
    Operands that are left out are named "". Without a tiling the kernel runs once, on the operands
    where they lie; sizes are those of the whole node.
    """

    nodes: tuple[str, ...]
    phase: str
    kernel: Kernel
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    sizes: Mapping[str, Size]
    scratch: str
    macs: int
    repeat: int = 1
    tiling: Tiling | None = None
    follow: Follow | None = None
    rider: Rider | None = None

    @property
    def name(self) -> str:
        return self.nodes[-1]

    @property
    def all_nodes(self) -> tuple[str, ...]:
        return (*self.nodes, *(self.rider.nodes if self.rider else ()))

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All that it runs, the first tile's first."""
        tiling, behind = self.tiling, self.behind
        others: tuple[Kernel | None, ...]
        if tiling:
            riding = tiling.riding.kernels if tiling.riding else ()
            others = (tiling.more, tiling.finish, *riding)
        else:
            rider = self.rider.kernel if self.rider else None
            others = (None, behind.kernel if behind else None, rider)
        return (self.kernel, *(kernel for kernel in others if kernel))

    @property
    def behind(self) -> Follow | None:
        """What runs behind the kernel, unless the kernel's own store does it."""
        return None if self.kernel.epilogue in maps() else self.follow

    @property
    def updates(self) -> bool:
        """Whether it replaces weights by its gradient's update."""
        return len(self.nodes) > 1 and self.follow is None and not self.loss

    @property
    def back(self) -> bool:
        """Whether it makes the gradient of the layer's input as well, from the old weights."""
        return len(self.nodes) > 2 and self.follow is None

    @property
    def loss(self) -> bool:
        """Whether it makes a loss and its gradient."""
        return self.kernel.family == "loss"


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

    @property
    def sizes_bytes(self) -> int:
        """What the sizes of calls take; kernels look at them all the time, so they lie near.
        Those of tiled calls are in their tables."""
        sizes = [call.sizes for call in self.calls if not call.tiling]
        sizes += [c.behind.sizes for c in self.calls if c.behind and not c.tiling]
        sizes += [c.rider.sizes for c in self.calls if c.rider and not c.tiling]
        return 4 * sum(map(size_words, sizes))

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
    def most_windows(self) -> int:
        return max(map(windows_of, self.tilings), default=0)

    @property
    def sizes_level(self) -> Memory:
        """The nearest memory, unless the sizes would not fit there."""
        near = self.target.memories[0]
        taken = self.level_bytes(near.name) + self.control_bytes
        return near if taken + self.sizes_bytes <= self.target.room(near) else self.level

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
        return sum(self.region_bytes(NEAR + kind) for kind in ("weights", "constants"))

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
        forever = 0
        for buffer in self.buffers:
            if buffer.level != memory.name:
                continue
            if buffer.kind != "arena":
                forever += buffer.bytes
                continue
            first, last = buffer.halves
            changes[first] = changes.get(first, 0) + buffer.bytes
            changes[last + 1] = changes.get(last + 1, 0) - buffer.bytes
        alive = accumulate(changes[time] for time in sorted(changes))
        return forever + max(alive, default=0) + self.overhead(memory)

    @property
    def lower_bound(self) -> int:
        """The least that the data need, over all memories."""
        return sum(self.bound(m) - self.overhead(m) for m in self.target.memories)

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
        weight_nodes = {producers[grad].name for grad in parameters if grad in producers}
        for call in self.calls:
            if call.phase == "forward":
                totals["forward"] += call.macs
            elif call.back:
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
    sizes = _sizes_from_json(value["sizes"])
    return Call(
        tuple(value["nodes"]),
        value["phase"],
        Kernel(**value["kernel"]),
        tuple(value["outputs"]),
        tuple(value["inputs"]),
        sizes,
        value["scratch"],
        value["macs"],
        value["repeat"],
        tiling_from_json(value["tiling"]) if value["tiling"] else None,
        _follow_from_json(value["follow"]) if value["follow"] else None,
        _rider_from_json(value["rider"]) if value["rider"] else None,
    )


def _follow_from_json(value: Mapping[str, Any]) -> Follow:
    return Follow(
        Kernel(**value["kernel"]), _sizes_from_json(value["sizes"]), tuple(value["operands"])
    )


def _rider_from_json(value: Mapping[str, Any]) -> Rider:
    kernel, sizes = Kernel(**value["kernel"]), _sizes_from_json(value["sizes"])
    return Rider(tuple(value["nodes"]), kernel, sizes, value["made"], value["summed"])


def _sizes_from_json(value: Mapping[str, Any]) -> dict[str, Size]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}


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
