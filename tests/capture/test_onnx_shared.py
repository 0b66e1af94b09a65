"""Fresh layers, whose equal tensors an exporter stores only once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.ir.recipe import Recipe
from gradlet.planner.planner import plan
from gradlet.targets.target import load as load_target
from tests.capture.test_onnx_export import EXPORTERS, exported_model


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_statistics_that_equal_a_bias_stay_as_they_are(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 1), nn.ReLU(), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3)]
    module = nn.Sequential(*layers, nn.Conv2d(3, 2, 1)).eval()
    path = exported_model(module, torch.randn(2, 2, 4, 3), tmp_path / "m.onnx", exporter)
    graph = training_graph(gradlet.capture(str(path)), Recipe(loss="mse", lr=0.05))
    frozen = [node for node in graph.nodes if node.op == "frozen_norm"]
    assert all(graph.tensors[name].role == "const" for n in frozen for name in n.inputs[1:3])
    project = gradlet.emit(plan(graph, load_target("host")), tmp_path / "p")
    assert gradlet.verify(project, steps=3).passed
