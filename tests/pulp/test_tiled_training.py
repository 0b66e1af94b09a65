"""Training in tiles against PyTorch: parts of a model, modes of buffers, small zoo models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.planner.planner import Options
from tests.pulp.support import device_project, model_graph, zoo_graph

UPDATES = {
    "frozen last layer": "0.*,3.*,7.*",
    "frozen middle": "0.*,9.*",
    "biases": "*.bias",
    "last two": "last:2",
}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_parts_of_a_model(update: str, tmp_path: Path) -> None:
    graph = model_graph("lenet", update=update, momentum=0.9)
    project = device_project(graph, tmp_path / "p", cores=4, L1="10k")
    assert len(project.plan.tilings) > 5
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", [{"accumulate": 2}, {"optimizer": "adam", "clip_norm": 0.5}])
@pytest.mark.parametrize("buffers", ["double", "single"])
def test_modes_of_buffers(buffers: str, recipe: dict[str, Any], tmp_path: Path) -> None:
    graph = model_graph("lenet", **recipe)
    options = Options(buffers=buffers)
    project = device_project(graph, tmp_path / "p", cores=4, options=options, L1="10k")
    assert project.plan.tilings
    assert {tiling.double_buffered for tiling in project.plan.tilings} >= {buffers == "double"}
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())


@pytest.mark.parametrize("name", ["tutorial-cnn", "rnn-har"])
def test_zoo_in_32k(name: str, tmp_path: Path) -> None:
    project = device_project(zoo_graph(name), tmp_path / "p", L1="32k")
    assert project.plan.tilings
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_rare_convolutions(layout: str, tmp_path: Path) -> None:
    """Groups, wide kernels, several images: the long way through each kernel, deep in the stack."""
    torch.manual_seed(0)
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 5, padding=2, stride=2), nn.GroupNorm(2, 8), nn.SiLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Hardswish()),
        *(nn.Conv2d(8, 12, 3, padding=1, groups=4), nn.Conv2d(12, 6, 1, stride=2), nn.ReLU()),
        *(nn.Conv2d(6, 7, 3, padding=2, dilation=2), nn.Conv2d(7, 6, 5, padding=2), nn.ReLU()),
        *(nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(96, 5)),
    )
    captured = gradlet.capture(module, (torch.randn(2, 3, 32, 32),), name="rare")
    graph = training_graph(captured, layout=layout)
    project = device_project(graph, tmp_path / "p", L1="24k")
    assert len(project.plan.tilings) > 10
    verdict = gradlet.verify(project, steps=1)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())
