"""Compares a run with PyTorch in float64: every activation, gradient and updated weight of the
first step, then losses and weights over many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gradlet.codegen.project import Project
from gradlet.engines import host, sim
from gradlet.engines.golden import DATA
from gradlet.engines.model import Run
from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Graph
from gradlet.kernels.catalogue import updates
from gradlet.ops.learning.optimizer import hyper_of
from gradlet.oracle.recording import compared
from gradlet.oracle.tolerance import CAREFUL, QUICK, Expectation, Rule, expect, first_divergence
from gradlet.oracle.undetermined import determined, expect_nodes, first_undetermined
from gradlet.planner.model import Plan
from gradlet.verifier import failure
from gradlet.verifier.blame import edits_blamed
from gradlet.verifier.golden_data import GoldenData, unlike
from gradlet.verifier.in_float64 import module_by_reference, wrong_references
from gradlet.verifier.judge import TensorVerdict, finite, judge
from gradlet.verifier.shipped import Shipped, check_shipped
from gradlet.verifier.torch_oracle import Oracle, run_oracle

LARGE_RATE = 2.0**20
"""A power of two: w - rate*g keeps every bit of g that matters, and dividing by it is exact."""
HEADROOM = 4.0
"""So many times as far must a number be from the largest that a weight can hold."""


@dataclass(frozen=True)
class Verdict:
    passed: bool
    steps: int
    tensors: tuple[TensorVerdict, ...]
    losses: tuple[tuple[float, float, float], ...]  # (computed, expected, tolerance)
    shipped: Shipped
    saved: str = ""
    diverged: int | None = None
    """The step, counted from 1, that float32 cannot follow, in PyTorch either; `steps` are those
    before it."""
    chaotic: tuple[int, float] | None = None
    """The step, counted from 1, from which on rounding alone decides what comes out, by the
    reference and not by the run, and how far it moves the loss; `steps` are those before it."""
    no_module: str = ""
    """Why the run was not compared with the user's own module; '' if it was."""
    changes: tuple[str, ...] = ()
    """Files that are not as they were built."""

    @property
    def bit_identical(self) -> Mapping[str, bool]:
        return self.shipped.bit_identical

    @property
    def first_wrong(self) -> TensorVerdict | None:
        return next((tensor for tensor in self.tensors if not tensor.passed), None)

    @property
    def worst(self) -> TensorVerdict | None:
        return max(self.tensors, key=lambda tensor: tensor.share, default=None)

    def to_json(self) -> dict[str, Any]:
        wrong, worst = self.first_wrong, self.worst
        return {
            "pass": self.passed,
            "steps": self.steps,
            "tensors": [tensor.to_json() for tensor in self.tensors],
            "worst": worst.to_json() if worst else None,
            "first_wrong": wrong.to_json() if wrong else None,
            "saved": self.saved or None,
            "losses": [
                {
                    "computed": finite(c),
                    "expected": finite(e),
                    "tol": finite(t),
                    "pass": abs(c - e) <= t,
                }
                for c, e, t in self.losses
            ],
            "bit_identical": dict(self.bit_identical),
            **self.shipped.to_json(),
            "diverged": self.diverged,
            "chaotic": self.chaotic[0] if self.chaotic else None,
            "chaotic_loss": finite(self.chaotic[1]) if self.chaotic else None,
            "module_oracle": {
                "tensors": sum(tensor.oracle == "module" for tensor in self.tensors),
                "absent": self.no_module or None,
            },
            "changes": list(self.changes),
        }


def verify(
    project: Project, *, steps: int = 5, engine: str | None = None, edited: bool = False
) -> Verdict:
    """Run the project on its target's engine and compare. Saves the inputs of the first wrong node.
    A project that is not as it was built fails, unless it may be `edited`.

    The simulator also checks every access against the plan. Every other build that the project
    ships, its golden programs above all, has to make the same bits.
    """
    changes = project.changes
    with host.libraries_kept(), edits_blamed(project):
        verdict = _compared(project, steps, engine)
    if project.changes != changes:
        raise GradletError(f"'{project.folder}' was changed while it was verified; verify it again")
    return replace(verdict, passed=verdict.passed and (edited or not changes), changes=changes)


def _compared(project: Project, steps: int, engine: str | None) -> Verdict:
    graph = project.plan.graph
    if steps < 1:
        raise GradletError("at least one step is needed to verify anything")
    oracle = run_oracle(graph, steps)
    divergence = first_divergence(graph, oracle.losses, oracle.overflows)
    judged = steps if divergence is None else divergence
    ran = max(1, judged)
    oracle = oracle.first(ran)
    train = _trainer(engine or project.plan.target.engine)
    run = train(project, steps=ran, watch=True, states=True)
    rates = _rates(project, oracle)
    shown = _Shown(run, _fused_gradients(project, train, rates), rates)
    findings = _judged(project, shown, oracle, judged, QUICK)
    if not findings.passed:  # a few draws do not tell; many do
        findings = _judged(project, shown, oracle, judged, CAREFUL)
    saved = _save_failure(project, findings.rows, shown.tensors)
    shipped = check_shipped(project, run)
    if findings.golden:
        problem = f"{DATA}: {findings.golden}"
        shipped = replace(shipped, differences=(*shipped.differences, problem))
    return Verdict(
        findings.passed and shipped.passed,
        findings.steps,
        findings.rows,
        findings.losses,
        shipped,
        saved,
        None if divergence is None else divergence + 1,
        findings.chaotic,
        project.recording.absent,
    )


@dataclass(frozen=True)
class _Shown:
    """A run, and the gradients that were recovered from its updates, with the learning rate that
    each was recovered by."""

    run: Run
    recovered: Mapping[str, Array]
    rates: Mapping[str, float]

    @property
    def tensors(self) -> dict[str, Array]:
        return {**self.run.tensors, **self.recovered}


@dataclass(frozen=True)
class _Findings:
    """What was judged: so many steps, or of the first what can be."""

    steps: int
    rows: tuple[TensorVerdict, ...]
    losses: tuple[tuple[float, float, float], ...] = ()
    chaotic: tuple[int, float] | None = None
    golden: str = ""  # what is wrong with the golden data

    @property
    def passed(self) -> bool:
        """Of something: a verdict on nothing is none."""
        right = all(row.passed for row in self.rows)
        return bool(self.rows) and right and all(abs(c - e) <= t for c, e, t in self.losses)


def _judged(project: Project, shown: _Shown, oracle: Oracle, steps: int, rule: Rule) -> _Findings:
    """All tensors and losses of so many steps, or of those before training is chaotic; of none,
    what the first has before it overflows."""
    graph, run = project.plan.graph, shown.run
    expected = expect(graph, len(oracle.losses), rule=rule)
    chaos = first_undetermined(graph, expected[:steps])
    chaotic = None if chaos is None else (chaos + 1, expected[chaos].loss_tolerance)
    doubts = wrong_references(graph, oracle, expected, chaos)
    first = _with_recovered(graph, expected[0], shown.rates)
    if chaos == 0:
        rows = list(_node_by_node(project, shown, oracle, first, rule))
        rows += module_by_reference(project.recording, graph, first)
        return _Findings(0, (*_before_overflow(rows, oracle), *doubts), (), chaotic)
    rows = list(_first_step(project, shown.tensors, oracle, first))
    if steps == 0:
        return _Findings(0, (*_before_overflow(rows, oracle), *doubts))
    steps = steps if chaos is None else chaos
    expected = [first, *expected[1:steps]]
    rows += doubts
    rows += _last_step(graph, run, oracle, expected[-1], steps)
    for item in compared(project.recording, graph, run.loss, shown.tensors, run.states, expected):
        label, values = f"module: {item.name}", (item.computed, item.wanted, item.tolerance)
        rows.append(judge(graph, item.tensor, *values, "module", label=label))
    triples = zip(run.loss, oracle.losses, expected, strict=False)
    losses = tuple((loss, wanted, step.loss_tolerance) for loss, wanted, step in triples)
    data = GoldenData.read((project.folder / DATA).read_text())
    return _Findings(steps, tuple(rows), losses, chaotic, unlike(project.plan, data, expected))


def _before_overflow(rows: Sequence[TensorVerdict], oracle: Oracle) -> Sequence[TensorVerdict]:
    names = [row.name for row in rows]
    over = [names.index(name) for name in oracle.overflows[0] if name in names]
    return rows[: min(over, default=None)]


def _trainer(engine: str) -> Callable[..., Run]:
    if engine not in ("host", "sim"):
        raise GradletError(f"verify runs on the engines host and sim, not on '{engine}'")
    return host.run if engine == "host" else partial(sim.run, sanitize=True)


def _rates(project: Project, oracle: Oracle) -> dict[str, float]:
    """Of the gradients that exist only inside an update, the learning rate that shows them: huge,
    so that the weight's own size does not matter, but not so that the weight overflows."""
    graph = project.plan.graph
    found = {}
    for weight, gradient in _swallowed(project.plan).items():
        size = float(np.abs(oracle.values.get(gradient, np.zeros(1))).max(initial=0.0))
        most = graph.tensors[weight].element.largest / HEADROOM
        fits = np.isfinite(size) and size * LARGE_RATE > most
        found[gradient] = 2.0 ** np.floor(np.log2(most / size)) if fits else LARGE_RATE
    return found


def _swallowed(plan: Plan) -> dict[str, str]:
    """From a weight to its gradient, where that exists only inside an update."""
    nodes = {node.name: node for node in plan.graph.nodes}
    swallowed = (
        nodes[name]
        for call in plan.calls
        for name in call.nodes
        if len(call.nodes) > 1 and nodes[name].op in updates()
    )
    return {update.inputs[0]: update.inputs[1] for update in swallowed}


def _fused_gradients(
    project: Project, train: Callable[..., Run], rates: Mapping[str, float]
) -> dict[str, Array]:
    """Gradients that exist only inside an update: taken from what the update does to a weight.

    The same code runs with these learning rates, and with no decay and no momentum, so that the
    gradient alone matters.
    """
    plan, found = project.plan, {}
    for rate in sorted(set(rates.values())):
        settings = hyper_of(plan.graph)
        hyper = np.zeros_like(plan.graph.data[settings])
        hyper[0] = rate
        run = train(project, steps=1, states=True, overrides={settings: hyper})
        for weight, gradient in _swallowed(plan).items():
            if rates[gradient] == rate:
                moved = plan.graph.data[weight].astype(np.float64) - run.states[0][weight]
                found[gradient] = moved / rate
    return found


def _with_recovered(graph: Graph, expected: Expectation, rates: Mapping[str, float]) -> Expectation:
    """Gradients that were taken from an update are rounded once more by it."""
    tolerances = dict(expected.tolerances)
    for weight, name in graph.grads:
        if name in rates:
            more = _recovery(graph, weight, rates[name], expected.values[name])
            tolerances[name] = tolerances[name] + more
    return replace(expected, tolerances=tolerances)


def _recovery(graph: Graph, weight: str, rate: float, value: Array) -> Array:
    """Of the update's result, by how it is stored."""
    sizes = np.abs(graph.data[weight]).astype(np.float64) / rate
    element = graph.tensors[weight].element
    return 2 * element.unit_roundoff * (np.abs(value) + sizes) + element.smallest / rate


def _first_step(
    project: Project, computed: Mapping[str, Array], oracle: Oracle, expected: Expectation
) -> Iterator[TensorVerdict]:
    """Every tensor that the run shows, in program order."""
    graph = project.plan.graph
    for node in _program_order(project):
        for name in graph.producer()[node].outputs if node in graph.producer() else ():
            if name in computed:
                source = "torch" if name in oracle.values else "numpy"
                wanted = oracle.values.get(name, expected.values[name])
                yield judge(graph, name, computed[name], wanted, expected.tolerances[name], source)


def _node_by_node(
    project: Project, shown: _Shown, oracle: Oracle, expected: Expectation, rule: Rule
) -> Iterator[TensorVerdict]:
    """A first step that is chaotic: what float32 determines as ever, all else by what its node
    makes of what the program itself computed before."""
    graph = project.plan.graph
    known = determined(graph, expected)
    nodes = expect_nodes(graph, shown.run.tensors, rule=rule)
    weights = {name: weight for weight, name in graph.grads}
    for row in _first_step(project, shown.tensors, oracle, expected):
        if row.name in known:
            yield row
        elif row.name in nodes:
            value, allowed = nodes[row.name]
            if row.name in shown.recovered:
                rate = shown.rates[row.name]
                allowed = allowed + _recovery(graph, weights[row.name], rate, value)
            yield judge(graph, row.name, shown.tensors[row.name], value, allowed, "node")


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


def _last_step(
    graph: Graph, run: Run, oracle: Oracle, expected: Expectation, steps: int
) -> list[TensorVerdict]:
    if steps == 1:
        return []
    rows = []
    for old, new in graph.updates:
        if old in oracle.weights[-1]:  # weights, and states of the forward pass
            row = judge(
                graph,
                new,
                run.states[-1][old],
                oracle.weights[-1][old],
                expected.tolerances[new],
                "torch",
                label=f"{new} after step {steps}",
            )
            rows.append(row)
    return rows


def _save_failure(
    project: Project, rows: Sequence[TensorVerdict], computed: Mapping[str, Array]
) -> str:
    """Keep what the first wrong node was given and what it made, for a closer look."""
    wrong = next((row for row in rows if not row.passed), None)
    if wrong is None:
        failure.forget(project.folder)
        return ""
    graph = project.plan.graph
    calls = project.plan.calls
    together = next((c.nodes for c in calls if wrong.node in c.nodes), (wrong.node,))
    nodes = [node for node in graph.nodes if node.name in together]
    first = {name: value[0] for name, value in graph.samples.items()}
    known = {**graph.data, **first, **computed}
    inputs = {n: known[n] for node in nodes for n in node.inputs if n in known}
    outputs = {n: known[n] for node in nodes for n in node.outputs if n in known}
    return failure.save(project.folder, inputs, outputs)
