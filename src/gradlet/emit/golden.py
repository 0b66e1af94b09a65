"""Golden data: which elements of which tensors are compared on the device, and with what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np

from gradlet.graph import Array
from gradlet.plan.model import Plan
from gradlet.tolerance import Expectation, expect

STEPS = 2
PER_TENSOR = 32
VALUE_BYTES = 12  # index, value, tolerance
CHECK_BYTES = 64  # a line of the table, and a name
AT_END = -1
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
    """Expected values of every tensor that the plan keeps, from the float64 reference."""
    samples = sample_count(plan)
    carried = {name: value[:samples] for name, value in plan.graph.samples.items()}
    steps = expect(replace(plan.graph, samples=carried), STEPS)
    places = plan.buffer_of()
    checks = []
    for number, call in enumerate(plan.calls):
        for name in filter(None, call.outputs):
            if plan.graph.tensors[name].dtype == "f32" and name in steps[0].values:
                checks.append(_check(name, number, steps[0]))
    for old, new in plan.graph.updates:
        if plan.graph.tensors[old].role == "param" and old in places:
            checks.append(_check(new, AT_END, steps[-1]))
    return Golden(
        tuple(checks),
        tuple(step.loss for step in steps),
        tuple(step.loss_tolerance for step in steps),
    )


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
        if name in tensors and tensors[name].dtype == "f32"
    ]
    checks += [
        check(new, AT_END)
        for old, new in plan.graph.updates
        if tensors[old].role == "param" and old in places
    ]
    return Golden(tuple(checks), some(STEPS), some(STEPS))


def sample_count(plan: Plan) -> int:
    """How many samples the project carries along; they are used round and round."""
    fed = [plan.graph.samples[name] for name in (*plan.graph.inputs, "target")]
    fitting = SAMPLE_BYTES // max(1, sum(value[0].nbytes for value in fed))
    return int(min(*map(len, fed), max(1, fitting)))


def golden_bytes(plan: Plan) -> int:
    """At most so much do samples and expected values take."""
    fed = (plan.graph.samples[name] for name in (*plan.graph.inputs, "target"))
    tensors = sum(len(call.outputs) for call in plan.calls) + len(plan.graph.updates)
    values = tensors * (PER_TENSOR * VALUE_BYTES + CHECK_BYTES)
    return sample_count(plan) * int(sum(value[0].nbytes for value in fed)) + values


def golden_level(plan: Plan) -> str:
    """A memory behind that of the program, if the golden data find room there; else ''."""
    last = plan.target.memories[-1]
    behind = len(plan.target.memories) > 2
    return last.name if behind and plan.taken(last) + golden_bytes(plan) <= last.size else ""


def _check(name: str, call: int, step: Expectation) -> Check:
    values, allowed = step.values[name].reshape(-1), step.tolerances[name].reshape(-1)
    index = sample_indices(values.size)
    return Check(
        name,
        call,
        tuple(int(i) for i in index),
        tuple(float(values[i]) for i in index),
        tuple(float(np.float32(allowed[i])) for i in index),
    )


def sample_indices(size: int) -> Array:
    """All elements of a small tensor; of a large one first, last and evenly between."""
    most = min(size, PER_TENSOR)
    return np.unique(np.linspace(0, size - 1, most).round().astype(np.int64))
