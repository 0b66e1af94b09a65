"""Compares a run with PyTorch in float64: every activation, gradient and updated weight of the
first step, then losses and weights over many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gradlet import failure
from gradlet.dtypes import DTYPES
from gradlet.emit.project import Project
from gradlet.engines import host, sim
from gradlet.engines.model import Run
from gradlet.errors import GradletError
from gradlet.graph import Array, Graph
from gradlet.ops.optimizer import hyper_of
from gradlet.recorded import compared
from gradlet.shipped import Shipped, check_shipped
from gradlet.tolerance import CAREFUL, Expectation, decided_otherwise, expect, first_divergence
from gradlet.torch_oracle import Oracle, run_oracle

LARGE_RATE = 2.0**20
"""A power of two: w - rate*g keeps every bit of g that matters, and dividing by it is exact."""
AGREEMENT = 1e-3
"""How far two float64 computations may be apart, of what float32 may. Their rounding is 2**-29 of
float32's; the rest is for what they decide otherwise at an edge that is one only up to rounding."""
CONSTANTS = 2.0**-22
"""The same, of the largest value: numbers such as 1/3 are in the graph as float32 has them."""


def finite(value: Any) -> Any:
    """JSON has no infinity, and nothing that is no number."""
    return None if isinstance(value, float) and not np.isfinite(value) else value


@dataclass(frozen=True)
class TensorVerdict:
    """One tensor against its oracle. `tol` is what the worst element was allowed."""

    name: str
    role: str
    node: str
    module: str
    oracle: str
    max_abs: float
    max_rel: float
    tol: float
    share: float  # of the tolerance that the worst element used
    passed: bool

    def to_json(self) -> dict[str, Any]:
        value = {key: finite(item) for key, item in asdict(self).items()}
        value["pass"] = value.pop("passed")
        return value


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
    with host.libraries_kept():
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
    oracle, expected = oracle.first(ran), expect(graph, ran)
    train = _trainer(engine or project.plan.target.engine)
    run = train(project, steps=ran, watch=True, states=True)
    computed = dict(run.tensors)
    recovered = _fused_gradients(project, train)
    computed.update(recovered)
    rows, losses = _judged(project, run, recovered, oracle, expected, judged)
    if not _all_pass(rows, losses):  # a few draws do not tell; many do
        again = expect(graph, ran, rule=CAREFUL)
        rows, losses = _judged(project, run, recovered, oracle, again, judged)
    saved = _save_failure(project, rows, computed)
    shipped = check_shipped(project, run)
    return Verdict(
        _all_pass(rows, losses) and shipped.passed,
        judged,
        tuple(rows),
        losses,
        shipped,
        saved,
        None if divergence is None else divergence + 1,
        project.recording.absent,
    )


Losses = tuple[tuple[float, float, float], ...]


def _judged(
    project: Project,
    run: Run,
    recovered: Mapping[str, Array],
    oracle: Oracle,
    expected: Sequence[Expectation],
    steps: int,
) -> tuple[list[TensorVerdict], Losses]:
    """All tensors and losses of so many steps; of none, what the first has before it overflows."""
    graph = project.plan.graph
    expected = [_with_recovered(graph, expected[0], recovered), *expected[1:]]
    shown = {**run.tensors, **recovered}
    rows = list(_first_step(project, shown, oracle, expected[0]))
    doubts = _wrong_references(graph, oracle, expected[0])
    if steps == 0:
        names = [row.name for row in rows]
        over = [names.index(name) for name in oracle.overflows[0] if name in names]
        return [*rows[: min(over, default=None)], *doubts], ()
    rows += doubts
    rows += _last_step(graph, run, oracle, expected[-1], steps)
    for item in compared(project.recording, graph, run.loss, shown, run.states, expected):
        label, values = f"module: {item.name}", (item.computed, item.wanted, item.tolerance)
        rows.append(_judge(graph, item.tensor, *values, "module", label=label))
    triples = zip(run.loss, oracle.losses, expected, strict=True)
    return rows, tuple((loss, wanted, step.loss_tolerance) for loss, wanted, step in triples)


def _all_pass(rows: Sequence[TensorVerdict], losses: Losses) -> bool:
    """Of something: a verdict on nothing is none."""
    right = all(row.passed for row in rows) and all(abs(c - e) <= t for c, e, t in losses)
    return bool(rows) and right


def _trainer(engine: str) -> Callable[..., Run]:
    if engine not in ("host", "sim"):
        raise GradletError(f"verify runs on the engines host and sim, not on '{engine}'")
    return host.run if engine == "host" else partial(sim.run, sanitize=True)


def _fused_gradients(project: Project, train: Callable[..., Run]) -> dict[str, Array]:
    """Gradients that exist only inside an update: taken from what the update does to a weight.

    The same code runs with a huge learning rate, so that the weight's own size does not matter, and
    with no decay and no momentum, so that the gradient alone does.
    """
    plan = project.plan
    nodes = {node.name: node for node in plan.graph.nodes}
    fused = {
        nodes[update].inputs[0]: nodes[gradient].outputs[0]
        for call in plan.calls
        if call.updates
        for gradient, update in (call.nodes[-2:], *([call.rider.nodes] if call.rider else []))
    }
    if not fused:
        return {}
    settings = hyper_of(plan.graph)
    hyper = np.zeros_like(plan.graph.data[settings])
    hyper[0] = LARGE_RATE
    run = train(project, steps=1, states=True, overrides={settings: hyper})
    return {
        grad: (plan.graph.data[weight].astype(np.float64) - run.states[0][weight]) / LARGE_RATE
        for weight, grad in fused.items()
    }


def _with_recovered(graph: Graph, expected: Expectation, recovered: Collection[str]) -> Expectation:
    """Gradients that were taken from an update are rounded once more by it."""
    tolerances = dict(expected.tolerances)
    for weight, name in graph.grads:
        if name in recovered:
            sizes = np.abs(graph.data[weight]).astype(np.float64) / LARGE_RATE
            unit = DTYPES[graph.tensors[name].dtype].unit_roundoff
            tolerances[name] = tolerances[name] + 2 * unit * (np.abs(expected.values[name]) + sizes)
    return replace(expected, tolerances=tolerances)


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
                yield _judge(graph, name, computed[name], wanted, expected.tolerances[name], source)


def _wrong_references(graph: Graph, oracle: Oracle, expected: Expectation) -> list[TensorVerdict]:
    """Tensors of which the numpy reference is not PyTorch's value, both in float64.

    Tolerances come from the reference: one that is wrong would also be wide, and hide it.
    """

    def judged(edges: Mapping[str, Array]) -> list[TensorVerdict]:
        rows = []
        for name, wanted in oracle.values.items():
            known = name in expected.values and name in graph.producer()
            if known and name not in oracle.overflows[0]:
                scale = float(np.abs(wanted).max(initial=0.0))
                allowed = AGREEMENT * expected.tolerances[name] + CONSTANTS * scale
                values = (expected.values[name], wanted, allowed + edges.get(name, 0.0))
                rows.append(_judge(graph, name, *values, "torch", label=f"reference: {name}"))
        return [row for row in rows if not row.passed]

    return judged(decided_otherwise(graph)) if judged({}) else []


def _program_order(project: Project) -> list[str]:
    """One output of each node, views after what they show."""
    graph = project.plan.graph
    made = [name for call in project.plan.calls for name in call.all_nodes]
    position = {name: index for index, name in enumerate(made)}
    producer = graph.producer()
    for node in graph.nodes:
        if node.name not in position:
            source = producer.get(node.inputs[0])
            position[node.name] = position[source.name] if source else 0
    ordered = sorted(graph.nodes, key=lambda node: position[node.name])
    return [node.outputs[0] for node in ordered]


def _judge(
    graph: Graph,
    tensor: str,
    value: Array,
    wanted: Array,
    tolerance: Array,
    oracle: str,
    *,
    label: str = "",
) -> TensorVerdict:
    """One tensor of the graph; '' is one that it should have."""
    error = _errors(value, wanted).reshape(-1)
    allowed = np.broadcast_to(tolerance, np.shape(wanted)).reshape(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error == 0, 0.0, error / allowed)
        share = np.where(np.isfinite(allowed) | (error == 0), share, np.inf)  # no bound: no verdict
    worst = int(share.argmax())
    scale = float(np.abs(wanted).max())
    node = graph.producer().get(tensor)
    return TensorVerdict(
        label or tensor,
        graph.tensors[tensor].role if tensor else "updated",
        node.name if node else "",
        node.module if node else "",
        oracle,
        float(error.max()),
        float(error.max() / scale) if scale else float(error.max()),
        float(allowed[worst]),
        float(share[worst]),
        bool(share[worst] <= 1.0),
    )


def _errors(value: Array, wanted: Array) -> Array:
    """How far apart they are; what float32 cannot hold must be infinite, or no number, alike."""
    value = np.asarray(value, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        single = wanted.astype(np.float32)
        alike = ~np.isfinite(single) & ((value == single) | (np.isnan(value) & np.isnan(single)))
        error = np.where(alike, 0.0, np.abs(value - wanted))
    return np.where(np.isfinite(error), error, np.inf)


def _last_step(
    graph: Graph, run: Run, oracle: Oracle, expected: Expectation, steps: int
) -> list[TensorVerdict]:
    if steps == 1:
        return []
    rows = []
    for old, new in graph.updates:
        if old in oracle.weights[-1]:  # weights, and states of the forward pass
            row = _judge(
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
    project: Project, rows: list[TensorVerdict], computed: Mapping[str, Array]
) -> str:
    """Keep what the first wrong node was given and what it made, for a closer look."""
    wrong = next((row for row in rows if not row.passed), None)
    if wrong is None:
        failure.forget(project.folder)
        return ""
    graph = project.plan.graph
    calls = project.plan.calls
    together = next((c.all_nodes for c in calls if wrong.node in c.all_nodes), (wrong.node,))
    nodes = [node for node in graph.nodes if node.name in together]
    first = {name: value[0] for name, value in graph.samples.items()}
    known = {**graph.data, **first, **computed}
    inputs = {n: known[n] for node in nodes for n in node.inputs if n in known}
    outputs = {n: known[n] for node in nodes for n in node.outputs if n in known}
    return failure.save(project.folder, inputs, outputs)
