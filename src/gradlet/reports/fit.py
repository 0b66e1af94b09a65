"""What to do about a model that does not fit: the ways out, each of them really planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradlet.errors import GradletError
from gradlet.ir.graph import Attrs, Graph
from gradlet.ops.learning.labels import LOSSES
from gradlet.planner.model import Plan
from gradlet.reports.memory import Peak, memory_report
from gradlet.targets.target import Memory
from gradlet.training.selection import layers_of

SECONDS = 20.0
"""For the whole search: most plans take a fraction of a second, a model that is captured anew
takes some."""

LARGEST = 3
HALVINGS = 3
THIRD, THIRD_SIZE = "L3", "8M"
MIXING = ("dropout", "blend", "variance")


class Planner(Protocol):
    """Plans the same model with something changed: update, batch, input_shape or memories."""

    def __call__(self, **changes: Any) -> Plan: ...


@dataclass(frozen=True)
class WayOut:
    option: str
    plan: Plan
    note: str = ""


def explain(
    plan: Plan,
    again: Planner,
    *,
    update: str = "all",
    input_shape: Sequence[int] | None = None,
    accumulate: int = 0,
    seconds: float = SECONDS,
) -> str:
    """Why a plan does not fit, and which options would make it. `input_shape` is of one sample, if
    it is the command line's to choose. `accumulate`: micro-batches per update now, or 0 if the loss
    of a batch is not the mean of those of its parts."""
    attempt = _Attempt(again, time.monotonic() + seconds)
    larger = list(_larger(plan, attempt))  # few plans, so they come first
    ways = [*_ways(plan, attempt, update, input_shape, accumulate), *larger]
    return "\n".join([*_fault(plan), *_listing(ways)])


def too_small(plan: Plan) -> Memory:
    """The memory that a plan asks too much of; the farthest such, which decides."""
    return next(memory for memory in reversed(plan.target.memories) if not plan.fits(memory))


def _fault(plan: Plan) -> Iterator[str]:
    target, level = plan.target, too_small(plan)
    rooms = " and ".join(f"{target.room(m):,} of {m.name}" for m in target.memories)
    missing = plan.taken(level) - target.room(level)
    yield (
        f"model '{plan.graph.name}' does not fit: it needs {plan.taken(level):,} bytes of "
        f"{level.name}, the target '{target.name}' has {rooms} for data ({missing:,} missing in "
        f"{level.name})."
    )
    peaks = memory_report(plan).peaks
    peak: Peak = next(peak for peak in peaks if peak.level == level.name)
    largest = ", ".join(
        f"{h.tensor} ({h.bytes:,} bytes, {h.kind} of {h.module})" for h in peak.buffers[:LARGEST]
    )
    yield f"The largest consumers at the peak, in {peak.call}: {largest}."


def _listing(ways: Sequence[WayOut]) -> Iterator[str]:
    if not ways:
        yield "No smaller batch and no --update last:N makes it fit; `gradlet memory` shows more."
        return
    yield "It would fit with"
    width = max(len(way.option) for way in ways)
    for way in ways:
        note = f", {way.note}" if way.note else ""
        level = way.plan.level
        used = f"{way.plan.taken(level):,} bytes of {level.name}{note}"
        yield f"  {way.option.ljust(width)}  {used}"
    yield "`gradlet memory` shows what takes the memory."


class _Attempt:
    """Plans with changes, as long as there is time."""

    def __init__(self, again: Planner, end: float) -> None:
        self._again = again
        self._end = end

    def __call__(self, **changes: Any) -> Plan | None:
        if time.monotonic() > self._end:
            return None
        try:
            return self._again(**changes)
        except GradletError:  # too large again, or a change that this model cannot take
            return None


def _ways(
    plan: Plan,
    attempt: _Attempt,
    update: str,
    input_shape: Sequence[int] | None,
    accumulate: int,
) -> Iterator[WayOut]:
    graph = plan.graph
    layers = len(layers_of(graph))
    most = _last_count(update, layers) - 1
    batch = graph.batch
    found = False
    for way in (
        _micro_batches(graph, attempt, batch, accumulate),
        _fewer_layers(attempt, most, layers),
        _smaller_batch(attempt, batch),
        _smaller_input(attempt, input_shape),
    ):
        if way is not None:
            found = True
            yield way
    if not found and batch > 1:
        both = _fewer_layers(attempt, most, layers, batch=1)
        if both is not None:
            yield both


def _larger(plan: Plan, attempt: _Attempt) -> Iterator[WayOut]:
    ways = (_tiles(plan, attempt), _farther_memory(plan, attempt), _larger_memory(plan, attempt))
    return (way for way in ways if way is not None)


def _last_count(update: str, layers: int) -> int:
    """How many layers are trained now, as far as `last:N` can tell."""
    count = update.removeprefix("last:")
    return int(count) if update.startswith("last:") and count.isdigit() else layers


def _fewer_layers(attempt: _Attempt, most: int, layers: int, **changes: Any) -> WayOut | None:
    best = _largest(most, lambda count: attempt(update=f"last:{count}", **changes))
    if best is None:
        return None
    count, plan = best
    more = "".join(f" --{name} {value}" for name, value in changes.items())
    return WayOut(f"--update last:{count}{more}", plan, f"trains {count} of {layers} layers")


def _smaller_batch(attempt: _Attempt, batch: int) -> WayOut | None:
    best = _largest(batch - 1, lambda count: attempt(batch=count))
    if best is None:
        return None
    return WayOut(f"--batch {best[0]}", best[1], f"instead of {batch}")


def _micro_batches(graph: Graph, attempt: _Attempt, batch: int, accumulate: int) -> WayOut | None:
    """The same update from parts of the batch, one after the other."""
    if not accumulate or batch == 1 or not _apart(graph):
        return None
    for parts in (n for n in range(2, batch + 1) if batch % n == 0):
        plan = attempt(batch=batch // parts, accumulate=accumulate * parts)
        if plan is not None:
            option = f"--batch {batch // parts} --accumulate {accumulate * parts}"
            return WayOut(option, plan, f"the same update as with --batch {batch}")
    return None


def _apart(graph: Graph) -> bool:
    """Whether no sample of a batch has to do with another, and none is left to chance."""
    forward = [node for node in graph.nodes if node.phase == "forward" and node.op not in LOSSES]
    return not any(
        node.op in MIXING or node.attrs.get("axis") == 0 or 0 in _axes(node.attrs)
        for node in forward
    )


def _axes(attrs: Attrs) -> Sequence[object]:
    axes = attrs.get("axes", ())
    return axes if isinstance(axes, tuple) else ()


def _smaller_input(attempt: _Attempt, shape: Sequence[int] | None) -> WayOut | None:
    """Only where the command line names the shape; a model that takes no other is left alone."""
    if shape is None or len(shape) < 2:
        return None
    for halving in range(1, HALVINGS + 1):
        smaller = [shape[0], *(extent // 2**halving for extent in shape[1:])]
        plan = attempt(input_shape=smaller) if min(smaller) > 0 else None
        if plan is not None:
            return WayOut(f"--input {'x'.join(map(str, smaller))}", plan)
    return None


def _tiles(plan: Plan, attempt: _Attempt) -> WayOut | None:
    """Where all was to be in the nearest of several memories."""
    if len(plan.target.memories) == 1 or too_small(plan) != plan.target.memories[0]:
        return None
    tiled = attempt(buffers="auto")
    return WayOut("--buffers auto", tiled, "the rest in tiles") if tiled else None


def _farther_memory(plan: Plan, attempt: _Attempt) -> WayOut | None:
    """Where a device has room for a third memory, that gets a round size."""
    if len(plan.target.memories) != 2:
        return None
    larger = attempt(memories={THIRD: THIRD_SIZE})
    return WayOut(f"--{THIRD.lower()} {THIRD_SIZE}", larger, f"an {THIRD}") if larger else None


def _larger_memory(plan: Plan, attempt: _Attempt) -> WayOut | None:
    memory = too_small(plan)
    size = plan.taken(memory) + memory.size - plan.target.room(memory)
    text = f"{-(-size // 1024)}k"
    larger = attempt(memories={memory.name: text})
    if larger is None:
        return None
    named = memory.name in ("L1", "L2", "L3")
    option = f"--{memory.name.lower()} {text}" if named else f"--set {memory.name}={text}"
    return WayOut(option, larger, f"a larger {memory.name}")


def _largest(most: int, attempt: Callable[[int], Plan | None]) -> tuple[int, Plan] | None:
    """The largest of 1..most that can be planned, by halving: more needs more memory."""
    best: tuple[int, Plan] | None = None
    low, high = 1, most
    while low <= high:
        middle = (low + high + 1) // 2
        plan = attempt(middle)
        if plan is None:
            high = middle - 1
        else:
            best, low = (middle, plan), middle + 1
    return best
