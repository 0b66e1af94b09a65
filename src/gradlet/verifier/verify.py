"""Compares a run with PyTorch in float64: every activation, gradient and updated weight of the
first step, then losses and weights over many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.codegen.project import Project, load
from gradlet.engines import host, sim
from gradlet.engines.golden import DATA
from gradlet.engines.model import Run
from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Graph
from gradlet.kernels.catalogue import updates
from gradlet.ops import OPS
from gradlet.ops.learning.loss_scale import scale_of
from gradlet.ops.learning.optimizer import hyper_of
from gradlet.oracle.scatter import QUICK
from gradlet.oracle.tolerance import first_divergence
from gradlet.planner.model import Plan
from gradlet.support.memory import machine_bytes
from gradlet.verifier import failure
from gradlet.verifier.blame import edits_blamed
from gradlet.verifier.findings import Shown, findings_of
from gradlet.verifier.judge import TensorVerdict, finite
from gradlet.verifier.shipped import Shipped, check_shipped
from gradlet.verifier.torch_oracle import Oracle, run_oracle

LARGE_RATE = 2.0**20
"""A power of two: w - rate*g keeps every bit of g that matters, and dividing by it is exact."""
HEADROOM = 4.0
"""So many times as far must a number be from the largest that a weight can hold."""
TORCH = 400_000_000
"""What a process takes that has loaded PyTorch, in bytes."""


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
    project: Project | str | Path,
    *,
    steps: int = 5,
    engine: str | None = None,
    edited: bool = False,
) -> Verdict:
    """Run the project, or that of a folder, on its target's engine and compare. Saves the inputs of
    the first wrong node. A project that is not as it was built fails, unless it may be `edited`.

    The simulator also checks every access against the plan. Every other build that the project
    ships, its golden programs above all, has to make the same bits.
    """
    project = project if isinstance(project, Project) else load(Path(project))
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
    _refuse_too_large(graph, steps)
    oracle = run_oracle(graph, steps)
    divergence = first_divergence(graph, oracle.losses, oracle.overflows)
    judged = steps if divergence is None else divergence
    ran = max(1, judged)
    oracle = oracle if ran == steps else run_oracle(graph, ran)
    train = _trainer(engine or project.plan.target.engine)
    run = train(project, steps=ran, watch=True, states=True)
    rates = _rates(project, oracle)
    shown = Shown(run, _fused_gradients(project, train, rates), rates)
    findings = findings_of(project, shown, oracle, judged)
    del oracle
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


def memory_needed(graph: Graph, steps: int) -> int:
    """About how many bytes the comparison takes at its peak: of each element that a node makes in
    the first step its value in float64, here and in PyTorch, how far it moves, how it is rounded,
    and the program's own value; of each that a step leaves to the next, what the runs side by side
    and PyTorch have of it, and the program's after each step. A view of values has few of these.
    What becomes of the largest tensor on the way to its verdict is eight more of its size."""
    made = {t: OPS[node.op].view for t, node in graph.producer().items() if t in graph.tensors}
    first = sum((12 if view else 32) * graph.tensors[t].elements for t, view in made.items())
    largest = 64 * max((graph.tensors[t].elements for t in made), default=0)
    lasting = sum(graph.tensors[old].elements for old, _ in graph.updates)
    others = (QUICK.draws + 2) * 8 if steps > 1 else 8
    return TORCH + first + largest + lasting * (4 + 8 + others + 4 * steps)


def _refuse_too_large(graph: Graph, steps: int) -> None:
    needed, there = memory_needed(graph, steps), machine_bytes()
    if there is None or needed <= there:
        return
    least = memory_needed(graph, 1)
    fewer = f"One step (--steps 1) takes {least:,}. " if least < needed else ""
    raise GradletError(
        f"verifying {steps} steps of '{graph.name}' takes about {needed:,} bytes of memory, and "
        f"this machine has {there:,}. {fewer}A project with a smaller batch (--batch), or one that "
        f"trains less (--update last:N), takes less"
    )


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
        size = float(np.abs(_value(graph, oracle, gradient)).max(initial=0.0))
        most = graph.tensors[weight].element.largest / HEADROOM
        fits = np.isfinite(size) and size * LARGE_RATE > most
        found[gradient] = 2.0 ** np.floor(np.log2(most / size)) if fits else LARGE_RATE
    return found


def _value(graph: Graph, oracle: Oracle, gradient: str) -> Array:
    """What PyTorch has for a gradient, or for the one that it is without the scale of the loss."""
    made = graph.producer().get(gradient)
    if gradient in oracle.values or made is None or not scale_of(graph):
        return oracle.values.get(gradient, np.zeros(1))
    scaled: Array = oracle.values.get(made.inputs[0], np.zeros(1))
    return scaled / float(graph.data[scale_of(graph)][0])


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
