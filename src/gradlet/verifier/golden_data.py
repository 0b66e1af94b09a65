"""Whether the golden data of a project would tell a wrong program.

That the golden program passes says little by itself: with tolerances that are too wide, or without
a comparison, any program does. So `golden.h` is read back. It has to hold what the plan asks for,
with the values and about the tolerances that a verification arrives at; and with values that are
wrong on purpose the program has to find each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradlet.codegen.golden import AT_END, NOT_COMPARED, PER_TENSOR, STEPS, looked_at, sample_count
from gradlet.codegen.names import literal
from gradlet.errors import GradletError
from gradlet.ir.graph import Array
from gradlet.oracle.scatter import GOLDEN
from gradlet.oracle.tolerance import Expectation, expect
from gradlet.oracle.undetermined import first_undetermined
from gradlet.planner.model import Plan

WIDER = 30.0
"""Golden tolerances come from other draws than those of a verification. They may be so many times
as wide; where they are wider, a decision may have been taken otherwise: the same draws tell."""
ALIKE = 1.1
"""The same draws, and the same elements of them."""
ARRAY = r"static const \w+ {}\[\w+\][^=]*= \{{(.*?)\}};"
CHECK = re.compile(r"^ *\{(-?\d+), (\d+), (\d+), \"", flags=re.MULTILINE)


@dataclass(frozen=True)
class GoldenData:
    """What `golden.h` holds. checks: call, first value and number of values of each."""

    checks: tuple[tuple[int, int, int], ...]
    index: Array
    expected: Array
    allowed: Array
    losses: Array
    losses_allowed: Array

    @property
    def counts(self) -> tuple[int, int]:
        """Values and tensors."""
        return len(self.expected), len(self.checks)

    @staticmethod
    def read(text: str) -> GoldenData:
        table = text.partition("golden_checks[GOLDEN_CHECKS]")[2]
        checks = tuple((int(a), int(b), int(c)) for a, b, c in CHECK.findall(table))
        index, *values = (_numbers(text, f"golden_{n}") for n in ("index", "expected", "allowed"))
        losses = [_numbers(text, f"golden_loss{name}") for name in ("", "_allowed")]
        ends = {len(index), *map(len, values), sum(count for _, _, count in checks)}
        if len(ends) > 1 or len(losses[0]) != len(losses[1]):
            raise GradletError("golden.h is damaged; build the project again")
        return GoldenData(checks, index.astype(np.int64), *values, *losses)


def _numbers(text: str, name: str) -> Array:
    found = re.search(ARRAY.format(name), text, flags=re.DOTALL)
    items = found[1].split(",") if found else []
    try:
        return np.asarray([float(item.strip().rstrip("f")) for item in items])
    except ValueError as error:
        raise GradletError(f"golden.h is damaged ({error}); build the project again") from None


def spoiled(text: str) -> tuple[str, int]:
    """The same with a wrong value for each tensor, the last one, and for each loss; how many. Every
    other one is no number, which is near nothing."""
    data = GoldenData.read(text)
    lasts = [first + count - 1 for _, first, count in data.checks]
    judged = [place for place, allowed in enumerate(data.losses_allowed) if allowed >= 0]
    arrays = (
        ("golden_expected", data.expected, data.allowed, lasts),
        ("golden_loss", data.losses, data.losses_allowed, judged),
    )
    for name, values, allowed, places in arrays:
        items = [literal(value) for value in values.tolist()]
        for number, place in enumerate(places):
            far = values[place] + max(3 * allowed[place], 1e-6 * abs(values[place]), 1e-30)
            items[place] = literal(float("nan") if number % 2 else far)
        found = re.search(ARRAY.format(name), text, flags=re.DOTALL)
        if found:
            text = text[: found.start(1)] + ", ".join(items) + text[found.end(1) :]
    return text, len(lasts) + len(judged)


def sampled(plan: Plan, data: GoldenData, step: Expectation) -> Expectation:
    """What is expected of the elements that golden data hold, by tensor."""
    values, tolerances = {}, {}
    for (_, name), (_, first, count) in zip(_wanted(plan), data.checks, strict=False):
        places = data.index[first : first + count]
        if name in step.values and _inside(places, plan.graph.tensors[name].elements):
            values[name] = np.ravel(step.values[name])[places]
            tolerances[name] = np.ravel(step.tolerances[name])[places]
    return replace(step, values=values, tolerances=tolerances)


def unlike(plan: Plan, data: GoldenData, steps: Sequence[Expectation]) -> str:
    """What is wrong with golden data, '' if nothing is. steps: what is expected of their elements,
    by a few draws or by many, in steps that float32 follows."""
    steps = steps[: shared_steps(plan)]
    if not steps or steps[0].overflows:  # where anything overflows, values are left out
        return ""
    problem = _problem(plan, data, steps, WIDER)
    if not problem:
        return ""
    count = sample_count(plan)
    carried = {name: value[:count] for name, value in plan.graph.samples.items()}
    graph = replace(plan.judged, samples=carried)
    again = expect(graph, len(data.losses), rule=GOLDEN, look=looked_at)
    if data.losses_allowed[0] == NOT_COMPARED and first_undetermined(graph, again) == 0:
        return ""
    return _problem(plan, data, again, ALIKE)


def _inside(places: Array, size: int) -> bool:
    return bool(((places >= 0) & (places < size)).all())


def shared_steps(plan: Plan) -> int:
    """Steps that the program, which carries few samples, makes with those that all else has."""
    count, samples = sample_count(plan), plan.graph.samples
    if all(len(samples[name]) == count for name in plan.graph.fed):
        return STEPS
    return count // plan.graph.accumulate


def _problem(plan: Plan, data: GoldenData, steps: Sequence[Expectation], wider: float) -> str:
    """Steps that are not expected are not compared; of a tensor what is compared comes first."""
    for number, (loss, allowed) in enumerate(zip(data.losses, data.losses_allowed, strict=True)):
        for step in steps[number : number + 1]:
            pair = np.asarray([step.loss]), np.asarray([step.loss_tolerance])
            if text := _unequal(np.asarray([loss]), np.asarray([allowed]), *pair, wider):
                return f"the loss of step {number} {text}"
    wanted = list(_wanted(plan))
    if [call for call, _ in wanted] != [call for call, _, _ in data.checks]:
        return "it does not have what each call makes and each weight that is trained"
    for (call, name), (_, first, count) in zip(wanted, data.checks, strict=True):
        index, size = data.index[first : first + count], plan.graph.tensors[name].elements
        if count != min(size, PER_TENSOR) or not _inside(index, size):
            return f"it has {count} elements of '{name}', which has {size}"
        last = len(data.losses) - 1 if call == AT_END else 0
        for step in steps[last : last + 1]:
            pair = step.values[name][:count], step.tolerances[name][:count]
            kept = data.expected[first : first + count], data.allowed[first : first + count]
            if text := _unequal(*kept, *pair, wider):
                return f"'{name}' {text}"
    return ""


def _wanted(plan: Plan) -> Iterator[tuple[int, str]]:
    """What is to be compared: what each call writes, in order, and weights after the last step."""
    tensors, places, made = plan.graph.tensors, plan.buffer_of(), plan.graph.producer()
    for number, call in enumerate(plan.calls):
        for name in call.outputs:
            if name in made and tensors[name].element.is_float:
                yield number, name
    for old, new in plan.graph.updates:
        if tensors[old].role == "param" and old in places:
            yield AT_END, new


def _unequal(expected: Array, allowed: Array, value: Array, own: Array, wider: float) -> str:
    """What is expected, and how far off it may be, beside what a verification says of both."""
    single = 2.0**-23 * float(np.abs(value).max(initial=0.0))
    error = np.abs(expected - value)
    if not (error <= own + single).all():
        return f"is expected to be {expected[error.argmax()]:.9g}"
    most = wider * (float(own.max(initial=0.0)) + single)
    if not (allowed >= 0).all() or not (allowed <= most).all():
        return f"may be off by {allowed.max():.3g}, which is more than rounding does"
    return ""
