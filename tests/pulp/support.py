"""Projects for the simulated device, captured once per process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gradlet
from gradlet import zoo
from gradlet.api import training_graph
from gradlet.codegen.project import Project
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.planner.planner import Options
from gradlet.targets.target import load as load_target
from tests.models import MODELS

SQUARES = ("tied", "single_neuron")


@cache
def zoo_graph(name: str) -> Graph:
    return training_graph(gradlet.capture(f"zoo:{name}"), Recipe(loss=zoo.get(name).loss))


@cache
def model_graph(name: str, **recipe: Any) -> Graph:
    module, inputs = MODELS[name]()
    captured = gradlet.capture(module, inputs, name=name)
    loss = "mse" if name in SQUARES else "cross_entropy"
    return training_graph(captured, Recipe(**{"loss": loss, "lr": 0.05, **recipe}))


def device_project(
    graph: Graph,
    folder: Path,
    *,
    cores: int = 8,
    options: Options | None = None,
    prefix: str = "net",
    **sizes: str,
) -> Project:
    target = load_target("pulp-open", cores=cores, sizes=sizes)
    return gradlet.emit(gradlet.plan(graph, target, options=options, prefix=prefix), folder)


def break_kernel(project: Project, pattern: str, old: str, new: str) -> None:
    (path,) = project.folder.glob(f"kernels/{pattern}")
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))
