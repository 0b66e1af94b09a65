"""The verbs, as functions: capture, train, plan, emit, run, verify, and build for all but the last
two. Each takes the value that the one before returns. memory tells what a plan costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradlet import target as targets
from gradlet.capture import Captured, capture
from gradlet.capture.layout import check_layout, lay_out
from gradlet.emit.project import Project, emit, load, refuse_foreign
from gradlet.engines import gvsoc, host, sim
from gradlet.engines.model import Run
from gradlet.errors import GradletError
from gradlet.graph import Array, Graph
from gradlet.ops.losses import LABELLED, target_of
from gradlet.plan import Plan, plan
from gradlet.recipe import Recipe
from gradlet.report import MemoryReport, memory_report
from gradlet.train import train
from gradlet.verify import verify

__all__ = [
    "Captured",
    "Recipe",
    "build",
    "capture",
    "emit",
    "load",
    "memory",
    "plan",
    "run",
    "train",
    "training_graph",
    "verify",
]

ENGINES: dict[str, Callable[..., Run]] = {"sim": sim.run, "gvsoc": gvsoc.run, "host": host.run}


def build(
    model: Any,
    folder: str | Path,
    *,
    target: str = targets.DEFAULT,
    cores: int | None = None,
    memories: Mapping[str, str | int] | None = None,
    batch: int | None = None,
    prefix: str = "net",
    recipe: Recipe | None = None,
    layout: str = "chw",
    **capture_options: Any,
) -> Project:
    """Capture, train, plan and emit in one call."""
    check_layout(layout)
    folder = Path(folder)
    refuse_foreign(folder)
    device = targets.load(target, cores=cores, sizes=memories)
    captured = capture(model, batch=batch, **capture_options)
    graph = training_graph(captured, recipe, layout=layout)
    return emit(plan(graph, device, prefix=prefix), folder)


def memory(
    model: Any,
    *,
    target: str = targets.DEFAULT,
    cores: int | None = None,
    memories: Mapping[str, str | int] | None = None,
    batch: int | None = None,
    recipe: Recipe | None = None,
    layout: str = "chw",
    **capture_options: Any,
) -> MemoryReport:
    """What takes the memory of a training step, also if it is more than the target has.

    A Plan or a project is looked at as it is.
    """
    if isinstance(model, Plan | Project):
        return memory_report(model if isinstance(model, Plan) else model.plan)
    check_layout(layout)
    device = targets.load(target, cores=cores, sizes=memories)
    captured = capture(model, batch=batch, **capture_options)
    graph = training_graph(captured, recipe, layout=layout)
    return memory_report(plan(graph, device, fit=False))


def training_graph(
    captured: Captured, recipe: Recipe | None = None, *, layout: str = "chw"
) -> Graph:
    """The training graph of a captured model; targets are drawn if none were given.

    With the layout hwc inputs, weights and targets are turned; give them as the model has them.
    """
    if recipe is None:
        known = {k: v for k, v in captured.defaults.items() if k in Recipe.__dataclass_fields__}
        recipe = replace(Recipe(), **known)
    targets_given = captured.targets
    if targets_given is None:
        targets_given = _drawn_targets(captured.graph, recipe.loss)
    return train(lay_out(captured.graph, layout), recipe, targets_given)


def _drawn_targets(graph: Graph, loss: str) -> Array | None:
    """Seeded targets of the right shape: a model without data can be checked all the same."""
    if len(graph.outputs) != 1:
        return None  # train says what is wrong
    output = graph.tensors[graph.outputs[0]].shape
    count = max((len(value) for value in graph.samples.values()), default=1)
    generator = np.random.default_rng(1)
    if loss in LABELLED and len(output) < 2:
        return None
    shape, dtype = target_of(loss, output)
    if dtype == "i32":
        return generator.integers(0, output[1], (count, *shape))
    if loss == "bce_with_logits":
        return generator.integers(0, 2, (count, *shape)).astype(np.float32)
    return generator.standard_normal((count, *shape)).astype(np.float32)


def run(
    project: Project | str | Path, *, engine: str | None = None, steps: int = 1, **options: Any
) -> Run:
    """Train for some steps, from the initial weights, on the target's own engine or another."""
    project = project if isinstance(project, Project) else load(Path(project))
    name = engine or project.plan.target.engine
    if name not in ENGINES:
        raise GradletError(f"there is no engine '{name}'; there is {', '.join(ENGINES)}")
    if steps < 1:
        raise GradletError("at least one step is needed")
    return ENGINES[name](project, steps=steps, **options)
