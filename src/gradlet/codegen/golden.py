"""Golden data: which elements of which tensors are compared on the device, and with what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, islice

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.elements import F32
from gradlet.ir.graph import Array
from gradlet.oracle.scatter import GOLDEN
from gradlet.oracle.tolerance import Expectation, expect, first_divergence
from gradlet.oracle.undetermined import determined, first_undetermined
from gradlet.planner.model import Plan

STEPS = 2
PER_TENSOR = 32
TYPICAL = 4096
"""So many elements of a tensor tell how far the others are usually off."""
VALUE_BYTES = 12  # index, value, tolerance
CHECK_BYTES = 64  # a line of the table, and a name
AT_END = -1
NOT_COMPARED = -1.0
"""In place of a tolerance: the loss of a first step that is infinite, no number, or chaotic."""
LARGEST = F32.largest
SAMPLE_BYTES = 1 << 16
"""So much may the samples take, if that is more than one of them."""


@dataclass(frozen=True)
class Check:
    """Elements of a tensor to compare after a call of the first step, or AT_END of the last."""

    tensor: str
    call: int
    index: tuple[int, ...]
    expected: tuple[float, ...]
    allowed: tuple[float, ...]


@dataclass(frozen=True)
class Golden:
    checks: tuple[Check, ...]
    losses: tuple[float, ...]
    losses_allowed: tuple[float, ...]


def golden(plan: Plan) -> Golden:
    """Expected values of every tensor that the plan keeps, from the float64 reference, of as many
    steps as float32 can follow and determines."""
    samples = sample_count(plan)
    carried = {name: value[:samples] for name, value in plan.graph.samples.items()}
    steps = expect(replace(plan.judged, samples=carried), STEPS, rule=GOLDEN, look=looked_at)
    losses, overflows = [step.loss for step in steps], [step.overflows for step in steps]
    divergence = first_divergence(plan.graph, losses, overflows)
    steps = steps[: divergence or len(steps)]
    checks = list(_of_first_step(plan, steps[0]))
    if divergence == 0:
        checks = list(_before_overflow(checks, steps[0]))
        if not checks:
            raise GradletError(
                f"the first results of model '{plan.graph.name}' are infinite or more than float32 "
                f"holds, on the first sample already; scale the samples or the weights"
            )
        return Golden(tuple(checks), (0.0,), (NOT_COMPARED,))
    chaos = first_undetermined(plan.graph, steps)
    if chaos == 0:
        known = determined(plan.graph, steps[0])
        checks = [check for check in checks if check.tensor in known] or checks
        return Golden(tuple(checks), (0.0,), (NOT_COMPARED,))
    steps = steps[:chaos]
    places = plan.buffer_of()
    for old, new in plan.graph.updates:
        if plan.graph.tensors[old].role == "param" and old in places:
            checks.append(_check(plan, new, AT_END, steps[-1]))
    return Golden(
        tuple(check for check in checks if check.index),
        tuple(step.loss for step in steps),
        tuple(min(step.loss_tolerance, LARGEST) for step in steps),
    )


def _of_first_step(plan: Plan, step: Expectation) -> Iterator[Check]:
    for number, call in enumerate(plan.calls):
        for name in filter(None, call.outputs):
            if plan.graph.tensors[name].element.is_float and name in step.values:
                yield _check(plan, name, number, step)


def _before_overflow(checks: Sequence[Check], step: Expectation) -> Iterator[Check]:
    """What the first step computes before anything exceeds float32."""
    for check in checks:
        if check.tensor in step.overflows:
            return
        yield check


def made_up(plan: Plan) -> Golden:
    """Golden data of the right shape, with no values that mean anything: for a program that is
    linked to be looked at, but does not run. They differ, so that no compiler puts one for all."""
    numbers = count(1)

    def some(amount: int) -> tuple[float, ...]:
        return tuple(float(number) for number in islice(numbers, amount))

    def check(name: str, call: int) -> Check:
        index = sample_indices(plan.graph.tensors[name].elements)
        return Check(name, call, tuple(map(int, index)), some(len(index)), some(len(index)))

    tensors, places = plan.graph.tensors, plan.buffer_of()
    checks = [
        check(name, number)
        for number, call in enumerate(plan.calls)
        for name in filter(None, call.outputs)
        if name in tensors and tensors[name].element.is_float
    ]
    checks += [
        check(new, AT_END)
        for old, new in plan.graph.updates
        if tensors[old].role == "param" and old in places
    ]
    return Golden(tuple(checks), some(STEPS), some(STEPS))


def sample_count(plan: Plan) -> int:
    """How many samples the project carries along; they are used round and round."""
    fed = [plan.graph.samples[name] for name in plan.graph.fed]
    fitting = SAMPLE_BYTES // max(1, sum(value[0].nbytes for value in fed))
    return int(min(*map(len, fed), max(1, fitting)))


def golden_bytes(plan: Plan) -> int:
    """At most so much do samples and expected values take."""
    fed = (plan.graph.samples[name] for name in plan.graph.fed)
    tensors = sum(len(call.outputs) for call in plan.calls) + len(plan.graph.updates)
    values = tensors * (PER_TENSOR * VALUE_BYTES + CHECK_BYTES)
    return sample_count(plan) * int(sum(value[0].nbytes for value in fed)) + values


def golden_level(plan: Plan) -> str:
    """A memory behind that of the program, if the golden data find room there; else ''."""
    last = plan.target.memories[-1]
    behind = len(plan.target.memories) > 2
    return last.name if behind and plan.taken(last) + golden_bytes(plan) <= last.size else ""


def looked_at(value: Array) -> Array:
    """The elements that are compared, then some from all over, which tell what is typical."""
    flat: Array = np.reshape(value, -1)
    return flat[_places(flat.size)]


@lru_cache
def _places(size: int) -> Array:
    typical = np.linspace(0, size - 1, min(size, TYPICAL)).round().astype(np.int64)
    return np.concatenate([sample_indices(size), typical])


def _check(plan: Plan, name: str, call: int, step: Expectation) -> Check:
    """Some elements, of those that the tensor can hold."""
    tensor = plan.graph.tensors[name]
    index = sample_indices(tensor.elements)
    values, allowed = step.values[name], step.tolerances[name]
    kept = [place for place in range(len(index)) if tensor.element.fits(values[place])]
    return Check(
        name,
        call,
        tuple(int(index[place]) for place in kept),
        tuple(float(values[place]) for place in kept),
        tuple(float(np.float32(min(allowed[place], LARGEST))) for place in kept),
    )


@lru_cache
def sample_indices(size: int) -> Array:
    """All elements of a small tensor; of a large one first, last and evenly between."""
    most = min(size, PER_TENSOR)
    return np.unique(np.linspace(0, size - 1, most).round().astype(np.int64))
