"""What each kernel call of a plan may touch, given to the simulator's watch map call by call.

A call may read its inputs, write its outputs and scratch, and read back what it has written. So
the run stops at an access outside of these, at a read of bytes that nobody wrote, and where two
cores store to one place with no barrier between; the message names node, tensor, core and pc.
DMA transfers have a map of their own, in which nothing is allowed unless it is granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gradlet.kernels.catalogue import MAY
from gradlet.kernels.traits import kept
from gradlet.planner.model import REGIONS, Call, Plan, fetched_places
from gradlet.planner.parts import followers
from gradlet.planner.tiling import Tiling
from gradlet.planner.walk import Entry, Placement
from gradlet.sim import Fault, FaultKind, Machine, SimError, Symbols
from gradlet.stack_use import GUARD

PLACES = (
    "gl_program",
    "gl_program_end",
    "gl_data",
    "gl_data_end",
    "gl_l1_start",
    "gl_sizes_end",
    "gl_control",
    "gl_control_end",
    "gl_stacks_end",
)
LOADS = (
    FaultKind.WATCH_UNINITIALISED,
    FaultKind.WATCH_DMA_UNINITIALISED,
    FaultKind.WATCH_DMA_LOAD,
)
FAR = 1024
"""So far behind a tensor an address is told by it."""


@dataclass(frozen=True)
class Span:
    """Bytes of a tensor or of scratch."""

    name: str
    address: int
    size: int

    @property
    def end(self) -> int:
        return self.address + self.size

    def meets(self, other: Span) -> bool:
        return self.address < other.end and other.address < self.end


class Sanitizer:
    def __init__(self, plan: Plan, machine: Machine, symbols: Symbols) -> None:
        self.plan, self.machine = plan, machine
        self.place = {name: symbols.address(name) or 0 for name in PLACES}
        self.regions = {
            region: symbols.address(f"{plan.prefix}_{region}") or 0 for region in REGIONS
        }
        self.call: Call | None = None
        self.granted: list[Span] = []
        self.copies: dict[int, tuple[Span, bool, bool]] = {}
        self.loss: list[Span] = []
        self.barriers = -2  # at the last entry into a kernel, or into the walk over tiles
        self.followers = followers(plan.graph, plan.calls)

    def begin(self) -> None:
        """Shut everything but code, its constants and few variables, sizes, and the stacks."""
        for memory in self.plan.target.memories:
            self.machine.shut(memory.base, memory.size)
        code, data = self.place["gl_program"], self.place["gl_data"]
        self._open(code, self.place["gl_program_end"] - code, write=False)
        self._open(data, self.place["gl_data_end"] - data, write=True)
        sizes = self.place["gl_l1_start"]
        self._open(sizes, self.place["gl_sizes_end"] - sizes, write=False)
        control, end = self.place["gl_control"], self.place["gl_control_end"]
        self._open(control, end - control, write=True)
        if end > control:  # the tables of tiled calls are copied there
            self.machine.watch_dma(
                code, self.place["gl_program_end"] - code, read=True, write=False
            )
            self.machine.watch_dma(control, end - control, read=False, write=True)
        self._give_stacks()
        for name in self.plan.graph.data:
            if name in self.plan.buffer_of():
                self.was_fed(name)

    def _give_stacks(self) -> None:
        self.machine.own_stacks(self.place["gl_stacks_end"], self.plan.target.stack, GUARD)

    def _open(self, address: int, size: int, *, write: bool) -> None:
        if size > 0:
            self.machine.watch(address, size, read=True, write=write, initialised=True)

    def was_fed(self, name: str) -> None:
        span = self.span(name)
        self.machine.watch(span.address, span.size, read=False, write=False, initialised=True)

    def span(self, name: str) -> Span:
        buffer = self.plan.buffer_of()[name]
        tensor = self.plan.graph.tensors.get(name)
        size = tensor.bytes if tensor else buffer.bytes
        return Span(name, self.regions[buffer.region] + buffer.offset, size)

    def enter(self, index: int, *, answers: bool) -> None:
        """From now on this call runs, on all cores; the last of a step is followed by its answer,
        the loss. Of a tiled call this is the beginning, before any copy."""
        tiles = self.call.tiling if self.call else None
        least = 1 if tiles is None else 2 if tiles.double_buffered else 3
        self.leave()
        call = self.call = self.plan.calls[index]
        self.kernel = call.kernel
        self.new_phase(least)  # before the last regions go out, and behind that
        self.begun = False
        self.loss = [self.span(self.plan.graph.loss)] if answers else []
        self._open_fetches(call)
        if call.tiling:
            self._open_copies(call.tiling)
            following = self.followers.get(index)
            behind = self.plan.calls[following].tiling if following is not None else None
            if behind:
                self._open_copies(behind, prefetched=True)
            return
        own = {call.operands[place] for place in fetched_places(call)}
        inputs = [self.span(name) for name in call.inputs if name and name not in own]
        outputs = [self.span(name) for name in call.outputs if name and name not in own]
        stays = {
            span: self.plan.buffer_of()[span.name].kind != "arena" or any(map(span.meets, inputs))
            for span in outputs
        }
        self._grant_operands(inputs, stays, scratch_stays=False)

    def _open_fetches(self, call: Call) -> None:
        """The kernel itself may copy some of what it reads into its scratch, and from there what it
        updates."""
        for place in (*fetched_places(call), *fetched_places(call, MAY)):
            back = place < len(call.outputs)
            self._grant_copy(self.span(call.operands[place]), read=True, write=back)
            self._grant_copy(self.span(call.scratch), read=back, write=True)

    def _open_copies(self, tiling: Tiling, *, prefetched: bool = False) -> None:
        """Transfers may fill and empty the stages of this call's views, those of the next one that
        are filled early, and nothing else."""
        for view in filter(None, tiling.views):
            if not view.buffer or (prefetched and not view.prefetched):
                continue
            if view.load or view.store:
                self._grant_copy(self.span(view.tensor), read=view.load, write=view.store)
            for name in view.stage_buffers[:1] if prefetched else view.stage_buffers:
                self._grant_copy(self.span(name), read=view.store, write=view.load)

    def _grant_copy(self, span: Span, *, read: bool, write: bool) -> None:
        before = self.copies.get(span.address, (span, False, False))
        self.copies[span.address] = (span, read or before[1], write or before[2])
        wide = max(span.size, before[0].size)
        _, reads, writes = self.copies[span.address]
        self.machine.watch_dma(span.address, wide, read=reads, write=writes)

    def next_kernel(self, entry: Entry) -> None:
        """A kernel is entered once more, or for another tile: only its regions are open now."""
        self.kernel = entry.kernel
        if not entry.launch.barrier:
            return  # other cores may still be in the kernel before, whose operands are open
        if not entry.placements:
            self.new_phase()
            return
        assert self.call is not None
        assert self.call.tiling is not None
        self._close()
        starts = entry.launch == self.call.launches[0]
        begun, self.begun = self.begun, True
        away = begun and entry.first and not self.call.tiling.double_buffered
        self.new_phase(2 if away else 1)  # before regions go out and in, and behind that
        fresh = entry.first and starts
        inputs: list[Span] = []
        outputs: list[tuple[Span, bool]] = []  # and whether it is of a tensor that is updated
        for position, placement in enumerate(entry.placements):
            if placement is None or placement.view.fetched:
                continue
            if placement.view.once and not starts:
                continue
            span = self._region(placement)
            if len(self.call.outputs) <= position < len(self.call.operands):
                inputs.append(span)
            else:  # partial sums lie behind the operands
                tensor = placement.view.tensor
                outputs.append((span, tensor in self.call.replaced))
        stays = {
            span: updated or not fresh or any(span.meets(other) for other in inputs)
            for span, updated in outputs
        }
        self._grant_operands(inputs, stays, scratch_stays=_scratch_stays(entry, begun))

    def _grant_operands(
        self, inputs: Sequence[Span], outputs: Mapping[Span, bool], *, scratch_stays: bool
    ) -> None:
        """Opens what a kernel may touch. What of its outputs and its scratch does not stay has to
        be written before it is read."""
        assert self.call is not None
        scratch = {self.span(self.call.scratch): scratch_stays} if self.call.scratch else {}
        self.granted = [*outputs, *scratch, *inputs, *self.loss]
        for span in (*inputs, *self.loss):
            self._grant(span, write=False, initialised=None)
        for span, stays in (*outputs.items(), *scratch.items()):
            self._grant(span, write=True, initialised=None if stays else False)

    def _region(self, placement: Placement) -> Span:
        """Where the cores find a region: in its stage, or at its place in the tensor."""
        view = placement.view
        size = view.item * prod(high - low for low, high in placement.region)
        if view.buffer:
            start = self.span(view.stage_buffers[placement.stage]).address
            return Span(view.tensor, start, size)
        first = 0
        for extent, (low, _) in zip(view.shape, placement.region, strict=True):
            first = first * extent + low
        return Span(view.tensor, self.span(view.tensor).address + view.item * first, size)

    def new_phase(self, least: int = 1) -> None:
        """Behind a barrier: a core may store where another has stored. One that is missing is found
        even if no core was so late that it mattered."""
        before, self.barriers = self.barriers, self.machine.barriers
        alone = self.plan.target.cores == 1  # waits for nobody
        if not alone and self.barriers < before + least:
            assert self.call is not None
            raise SimError(
                f"node '{self.call.name}' (kernel {self.kernel.name}): a core begins, and "
                f"{self.barriers - before} barriers were passed since all went on before, "
                f"where {least} have to be"
            )
        self.machine.watch_new_phase()
        self._give_stacks()

    def leave(self) -> None:
        self._close()
        for span, _, _ in self.copies.values():
            self.machine.watch_dma(span.address, span.size, read=False, write=False)
        self.copies, self.call = {}, None

    def _close(self) -> None:
        for span in self.granted:
            self._grant(span, read=False, write=False, initialised=None)
        self.granted = []

    def _grant(
        self, span: Span, *, read: bool = True, write: bool, initialised: bool | None
    ) -> None:
        self.machine.watch(span.address, span.size, read=read, write=write, initialised=initialised)

    def explain(self, reason: str) -> str:
        """Which node did it, and to what."""
        fault = self.machine.fault()
        if not fault.kind.name.startswith("WATCH"):
            return reason
        if self.call is None:
            return f"between two steps: {reason}; {self._what(fault)}"
        modules = {node.name: node.module for node in self.plan.graph.nodes}
        first = self.kernel.family == self.call.kernel.family
        module = modules[self.call.nodes[0] if first else self.call.name]
        where = f" of module '{module}'" if module else ""
        return (
            f"node '{self.call.name}'{where} (kernel {self.kernel.name}): {reason}; "
            f"{self._what(fault)}"
        )

    def _what(self, fault: Fault) -> str:
        """The tensor that was touched while this call runs, or the nearest before it.

        Where an output takes the place of an input, a store means the one, a load the other.
        """
        address, loaded = fault.address, fault.kind in LOADS
        for span in reversed(self.granted) if loaded else self.granted:
            if span.address <= address < span.end:
                return f"that is byte {address - span.address} of '{span.name}'"
        for span in self._alive():
            if span.address <= address < span.end:
                return f"that is byte {address - span.address} of '{span.name}', not its business"
        below_end = self.place["gl_stacks_end"] - 1 - address
        stack = self.plan.target.stack
        if 0 <= below_end < stack * (self.plan.target.cores + 1):
            owner = below_end // stack
            if owner in (fault.core, fault.core + 1):  # what is below its own is the next core's
                return f"the stack of core {fault.core} overflows, it has {stack} bytes"
            return f"that is the stack of core {owner}; each has {stack} bytes"
        before = [span for span in self.granted if 0 <= address - span.end < FAR]
        if before:
            span = max(before, key=lambda s: s.end)
            return f"that is {address - span.end} bytes past the end of '{span.name}'"
        return "no tensor is there"

    def _alive(self) -> Iterator[Span]:
        now = self.plan.calls.index(self.call) if self.call else -1
        for buffer in self.plan.buffers:
            if buffer.kind != "arena" or buffer.first <= now <= buffer.last:
                address = self.regions[buffer.region] + buffer.offset
                yield Span(buffer.tensors[-1], address, buffer.bytes)


def _scratch_stays(entry: Entry, begun: bool) -> bool:
    """Whether a kernel may read what it finds in its scratch: of the step before, or of the tile
    before, if it keeps something there."""
    return not entry.first or (begun and bool(kept(entry.kernel)))
