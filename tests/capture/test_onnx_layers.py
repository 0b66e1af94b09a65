"""Exported layers: an exporter may take them apart, but losses and gradients must be the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradlet.frontends.onnx.model import capture_onnx
from gradlet.frontends.passes.canonical import canonical
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
from gradlet.training.autodiff import train
from tests.capture.onnx_models import build_model, capture, make
from tests.capture.test_onnx_export import EXPORTERS, exported_model
from tests.models import MODELS

CASES = [(name, how) for name in ("arithmetic", "frozen_norms") for how in EXPORTERS]
CASES.append(("functions", "legacy"))  # the other one writes a softplus with a comparison
CASES.append(("norms", "dynamo"))  # the legacy one has no RMS norm


def gradients(graph: Graph, x: Array) -> tuple[float, dict[str, Array]]:
    """Loss and gradients of the parameters in float64, by name."""
    fed = replace(graph, samples={graph.inputs[0]: x[None]})
    labels = np.arange(len(x))[None] % 3
    trained = train(fed, Recipe(lr=0.1), labels)
    step = next(iter(run_reference(trained, 1)))
    params = {t.name for t in graph.of_role("param")}
    return step.loss, {n: step.values[grad] for n, grad in trained.grads if n in params}


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_exported_layers_train_alike(name: str, exporter: str, tmp_path: Path) -> None:
    module, (x,) = MODELS[name]()
    module = module.eval()
    from_file = capture_onnx(exported_model(module, x, tmp_path / "m.onnx", exporter))
    from_module = canonical(capture_module(module, (x,), name=name))
    ours, theirs = (gradients(graph, x.numpy()) for graph in (from_file, from_module))
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    renamed = set(theirs[1]) - set(ours[1])  # the exporter reshapes the weights of some norms
    assert all(parameter.startswith("norms.") for parameter in renamed), renamed
    for parameter, value in ours[1].items():
        if parameter not in theirs[1]:
            continue
        wanted = theirs[1][parameter]
        assert value.size == wanted.size, parameter
        scale = np.abs(wanted).max()  # constants that an exporter folds are rounded to float32
        assert np.abs(value.reshape(-1) - wanted.reshape(-1)).max() <= 1e-5 * scale, parameter


def test_layer_norm_gives_its_statistics_if_asked(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    weight = {"w": np.ones(5, np.float32)}
    node = make("LayerNormalization", ["x", "w"], ["y", "mean", "inverse"], epsilon=1e-2)
    more = [make("Add", ["y", "mean"], ["a"]), make("Mul", ["a", "inverse"], ["z"])]
    model = build_model([node, *more], {"x": [2, 3, 5]}, weight, outputs={"z": None})
    graph = capture(model, tmp_path)
    assert graph.tensors[graph.outputs[0]].shape == x.shape


def test_split_without_sizes(tmp_path: Path) -> None:
    node = make("Split", ["x"], ["a", "b", "c"], num_outputs=3, axis=1)
    join = make("Concat", ["c", "a"], ["y"], axis=1)
    graph = capture(build_model([node, join], {"x": [2, 8]}), tmp_path)
    assert graph.tensors[graph.outputs[0]].shape == (2, 5)


def test_a_batch_norm_used_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.norm(self.norm(x) + 1)
            return y

    with pytest.raises(Exception, match="is updated twice in one pass"):
        capture_module(Twice(), (torch.randn(4, 3),), name="twice")
