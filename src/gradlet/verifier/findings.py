"""What is found of a run: each tensor beside PyTorch's and the module's own, in two stages.

Three disturbed runs give a bound that most tensors keep to. What does not is judged again by many,
and of those nothing is kept but what that takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gradlet.codegen.project import Project
from gradlet.engines.golden import DATA
from gradlet.engines.model import Run
from gradlet.ir.graph import Array, Graph
from gradlet.ops.learning.loss_scale import scale_of
from gradlet.oracle.recording import compared
from gradlet.oracle.scatter import CAREFUL, QUICK, Rule
from gradlet.oracle.tolerance import Expectation, expect, expect_in_turn
from gradlet.oracle.undetermined import determined, expect_nodes, is_undetermined
from gradlet.verifier.golden_data import GoldenData, sampled, shared_steps, unlike
from gradlet.verifier.in_float64 import module_by_reference, wrong_loss, wrong_references
from gradlet.verifier.judge import TensorVerdict, judge
from gradlet.verifier.torch_oracle import Oracle, run_oracle

Loss = tuple[float, float, float]
"""Computed, expected, allowed."""


@dataclass(frozen=True)
class Shown:
    """A run, and the gradients that were recovered from its updates, with the learning rate that
    each was recovered by."""

    run: Run
    recovered: Mapping[str, Array]
    rates: Mapping[str, float]

    @property
    def tensors(self) -> dict[str, Array]:
        return {**self.run.tensors, **self.recovered}


@dataclass(frozen=True)
class Findings:
    """What was judged: so many steps, or of the first what can be."""

    steps: int
    rows: tuple[TensorVerdict, ...]
    losses: tuple[Loss, ...] = ()
    chaotic: tuple[int, float] | None = None
    golden: str = ""  # what is wrong with the golden data

    @property
    def passed(self) -> bool:
        """Of something: a verdict on nothing is none."""
        right = all(row.passed for row in self.rows)
        return bool(self.rows) and right and all(map(_within, self.losses))

    @property
    def doubtful(self) -> list[set[str]]:
        """By step, the tensors that are off by more than is allowed; steps behind the last such
        one are left out."""
        steps = [row.step for row in self.rows if not row.passed]
        steps += [number for number, loss in enumerate(self.losses, 1) if not _within(loss)]
        found: list[set[str]] = [set() for _ in range(max(steps, default=0))]
        for row in self.rows:
            if not row.passed and row.tensor:
                found[row.step - 1].add(row.tensor)
        return found


def _within(loss: Loss) -> bool:
    computed, expected, allowed = loss
    return abs(computed - expected) <= allowed


def findings_of(project: Project, shown: Shown, oracle: Oracle, steps: int) -> Findings:
    """All tensors and losses of so many steps, or of those before training is chaotic; of none,
    what the first has before it overflows."""
    graph, ran = project.plan.judged, len(oracle.losses)
    judging = _Judging(project, shown, oracle, steps)
    quick = judging.by(expect_in_turn(graph, ran), QUICK)
    if quick.passed:  # a few draws do not tell; many do
        return quick
    if quick.chaotic is None and quick.rows:
        wanted = quick.doubtful
        expected = expect(graph, len(wanted), rule=CAREFUL, wanted=wanted)
        careful = judging.by(expected, CAREFUL, partly=True)
        if careful.chaotic is None:
            return _again(quick, careful)
    return judging.by(expect(graph, ran, rule=CAREFUL), CAREFUL)


def _again(quick: Findings, careful: Findings) -> Findings:
    """What was in doubt as it was judged again; of references only those in doubt are told."""
    again = {row.name: row for row in careful.rows}
    rows = (row if row.passed or not row.tensor else again.get(row.name) for row in quick.rows)
    losses = (*careful.losses, *quick.losses[len(careful.losses) :])
    return replace(quick, rows=tuple(filter(None, rows)), losses=losses)


@dataclass
class _Told:
    """Verdicts in the order in which they are told."""

    first: list[TensorVerdict] = field(default_factory=list)
    doubts: list[TensorVerdict] = field(default_factory=list)
    last: list[TensorVerdict] = field(default_factory=list)
    module: dict[str, list[TensorVerdict]] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[TensorVerdict, ...]:
        module = (
            row for role in ("loss", "gradient", "updated") for row in self.module.get(role, ())
        )
        return (*self.first, *self.doubts, *self.last, *module)


@dataclass(frozen=True)
class _Judging:
    project: Project
    shown: Shown
    oracle: Oracle
    steps: int

    @property
    def graph(self) -> Graph:
        return self.project.plan.graph

    def by(self, expected: Iterable[Expectation], rule: Rule, *, partly: bool = False) -> Findings:
        """Step by step: an expectation is forgotten once its step is judged. partly: it has only
        what is in doubt."""
        plan, told, losses = self.project.plan, _Told(), []
        data = GoldenData.read((self.project.folder / DATA).read_text())
        golden: list[Expectation] = []
        chaotic: tuple[int, float] | None = None
        before: dict[str, Array | None] = {}
        for index, step in enumerate(expected):
            if index < self.steps and is_undetermined(self.graph, step):
                chaotic = index + 1, step.loss_tolerance
            if chaotic and partly:
                break  # which takes all tensors to judge
            if index == 0:
                step = _without_overflow(self.graph, step)
                step = _with_recovered(self.graph, step, self.shown.rates)
                told.first += self._first_step(step, rule, whole=chaotic is None)
                told.doubts += wrong_references(self.graph, self.oracle, step)
            if chaotic:
                told.doubts.append(wrong_loss(self.graph, self.oracle, step, index))
                break
            if index < self.steps:
                self._add_module(told, index, step)
                pair = self.shown.run.loss[index], self.oracle.losses[index]
                losses.append((*pair, step.loss_tolerance))
                if index < shared_steps(plan) and not partly:
                    golden.append(sampled(plan, data, step))
                before = {new: step.tolerances.get(new) for _, new in self.graph.updates}
            del step
        if chaotic or len(losses) == self.steps:
            told.last += self._last_step(before, len(losses))
        problem = unlike(plan, data, golden)
        return Findings(len(losses), told.rows, tuple(losses), chaotic, problem)

    def _first_step(self, step: Expectation, rule: Rule, *, whole: bool) -> Iterable[TensorVerdict]:
        """All that the run shows; of a step that is chaotic as a whole, what can be judged; of one
        that overflows, what is before that."""
        rows = list(self._shown(step))
        if not whole:
            rows = list(self._node_by_node(rows, step, rule))
            rows += module_by_reference(self.project.recording, self.graph, step)
        if whole and self.steps:
            return rows
        names = [row.name for row in rows]
        over = [names.index(name) for name in self.oracle.overflows[0] if name in names]
        return rows[: min(over, default=None)]

    def _shown(self, expected: Expectation) -> Iterator[TensorVerdict]:
        """Every tensor of the first step that the run shows, in program order."""
        graph, computed, wanted = self.graph, self.shown.tensors, self.oracle.values
        for node in _program_order(self.project):
            for name in graph.producer()[node].outputs if node in graph.producer() else ():
                if name in computed and name in expected.tolerances:
                    source = "torch" if name in wanted else "numpy"
                    values = computed[name], wanted.get(name, expected.values[name])
                    yield judge(graph, name, *values, expected.tolerances[name], source)

    def _node_by_node(
        self, rows: Iterable[TensorVerdict], expected: Expectation, rule: Rule
    ) -> Iterator[TensorVerdict]:
        """A first step that is chaotic: what float32 determines as ever, all else by what its node
        makes of what the program itself computed before."""
        graph, shown = self.graph, self.shown
        known = determined(graph, expected)
        nodes = expect_nodes(graph, shown.run.tensors, rule=rule)
        weights = {name: weight for weight, name in graph.grads}
        for row in rows:
            if row.name in known:
                yield row
            elif row.name in nodes:
                value, allowed = nodes[row.name]
                if row.name in shown.recovered:
                    rate = shown.rates[row.name]
                    allowed = allowed + _recovery(graph, weights[row.name], rate, value)
                yield judge(graph, row.name, shown.tensors[row.name], value, allowed, "node")

    def _add_module(self, told: _Told, index: int, step: Expectation) -> None:
        """The step as the user's own module does it."""
        run, recording = self.shown.run, self.project.recording
        values = run.loss[index], self.shown.tensors, run.states[index]
        for item in compared(recording, self.graph, index, *values, step):
            label, pair = f"module: {item.name}", (item.computed, item.wanted)
            row = judge(
                self.graph,
                item.tensor,
                *pair,
                item.tolerance,
                "module",
                label=label,
                step=index + 1,
            )
            told.module.setdefault(item.role, []).append(row)

    def _last_step(
        self, tolerances: Mapping[str, Array | None], steps: int
    ) -> Iterator[TensorVerdict]:
        """Weights, and states of the forward pass, after more than one step."""
        if steps < 2:
            return
        oracle = self.oracle if steps == len(self.oracle.losses) else run_oracle(self.graph, steps)
        for old, new in self.graph.updates:
            allowed = tolerances[new]
            if old in oracle.weights and allowed is not None:
                yield judge(
                    self.graph,
                    new,
                    self.shown.run.states[steps - 1][old],
                    oracle.weights[old],
                    allowed,
                    "torch",
                    label=f"{new} after step {steps}",
                    step=steps,
                )


def _without_overflow(graph: Graph, expected: Expectation) -> Expectation:
    """Where the loss is scaled, gradients may overflow and the step is then skipped: PyTorch has
    numbers for what is infinite in the reference."""
    if not scale_of(graph):
        return expected
    held = {name for name, value in expected.values.items() if np.isfinite(value).all()}
    values = {name: value for name, value in expected.values.items() if name in held}
    allowed = {name: value for name, value in expected.tolerances.items() if name in held}
    return replace(expected, values=values, tolerances=allowed)


def _with_recovered(graph: Graph, expected: Expectation, rates: Mapping[str, float]) -> Expectation:
    """Gradients that were taken from an update are rounded once more by it."""
    tolerances = dict(expected.tolerances)
    for weight, name in graph.grads:
        # what is the gradient of a weight may also be that of an activation made of it
        if weight in graph.data and name in rates and name in tolerances:
            more = _recovery(graph, weight, rates[name], expected.values[name])
            tolerances[name] = tolerances[name] + more
    return replace(expected, tolerances=tolerances)


def _recovery(graph: Graph, weight: str, rate: float, value: Array) -> Array:
    """Of the update's result, by how it is stored."""
    sizes = np.abs(graph.data[weight]).astype(np.float64) / rate
    element = graph.tensors[weight].element
    return 2 * element.unit_roundoff * (np.abs(value) + sizes) + element.smallest / rate


def _program_order(project: Project) -> list[str]:
    """One output of each node, views after what they show."""
    graph = project.plan.graph
    made = [name for call in project.plan.calls for name in call.nodes]
    position = {name: index for index, name in enumerate(made)}
    producer = graph.producer()
    for node in graph.nodes:
        if node.name not in position:
            source = producer.get(node.inputs[0])
            position[node.name] = position[source.name] if source else 0
    ordered = sorted(graph.nodes, key=lambda node: position[node.name])
    return [node.outputs[0] for node in ordered]
