"""Exported transformers: the same loss and the same gradients as the module itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradlet.api import training_graph
from gradlet.frontends.capture import Captured
from gradlet.frontends.onnx.model import capture_onnx
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
from tests.capture.onnx_models import build_model, capture, make, random
from tests.capture.test_onnx_export import EXPORTERS, exported_model
from tests.models import MODELS

NAMES = (
    "vision_transformer",
    "post_norm_encoder",
    "language_model",
    "attention_heads",
    "hand_made_attention",
)


def gradients(graph: Graph, x: Array) -> tuple[float, dict[str, Array]]:
    fed = replace(graph, samples={graph.inputs[0]: x[None]})
    training = training_graph(Captured(fed), Recipe(loss="mse"))
    step = next(iter(run_reference(training, 1)))
    params = {t.name for t in graph.of_role("param")}
    return step.loss, {n: step.values[grad] for n, grad in training.grads if n in params}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", NAMES)
def test_exported_transformers_train_alike(name: str, exporter: str, tmp_path: Path) -> None:
    """Exporters rename weights and turn them over: they are told by their values."""
    module, (x,) = MODELS[name]()
    module = module.eval()
    if name == "language_model":
        x = x.clamp(min=1)  # a row that pads is nothing that ONNX knows of
    if name == "vision_transformer":
        x = x[:1]  # or the class token is stored once for each image
    theirs = capture_module(module, (x,), name=name)
    ours = capture_onnx(exported_model(module, x, tmp_path / "m.onnx", exporter))
    fed = x.numpy().astype(np.float32 if x.is_floating_point() else np.int32)
    (loss, found), (wanted_loss, wanted) = gradients(ours, fed), gradients(theirs, fed)
    assert loss == pytest.approx(wanted_loss, rel=1e-6)
    assert len(found) == len(wanted)
    for parameter, gradient in wanted.items():
        stored = theirs.data[parameter]
        if parameter == "places.weight":  # only the rows that are used are exported
            stored, gradient = stored[:6], gradient[:6]
        match = [n for n in found if _same(ours.data[n], stored)]
        assert len(match) == 1, (parameter, match)
        value = found[match[0]]
        value = value if value.shape == gradient.shape else value.T.reshape(gradient.shape)
        scale = np.abs(gradient).max()  # constants that an exporter folds are rounded to float32
        assert np.abs(value - gradient).max() <= 1e-5 * scale, parameter


def _same(a: Array, b: Array) -> bool:
    if a.size != b.size:
        return False
    return np.array_equal(a.reshape(-1), b.reshape(-1)) or (
        a.ndim == 2 and np.array_equal(a.T.reshape(-1), b.reshape(-1))
    )


def test_where_on_a_folded_condition(tmp_path: Path) -> None:
    """What compares constants is computed beforehand; what is left is a mask."""
    nodes = [
        make("Greater", ["places", "limit"], ["late"]),
        make("Not", ["late"], ["early"]),
        make("Where", ["early", "x", "low"], ["y"]),
    ]
    stored = {
        "places": np.arange(4, dtype=np.float32),
        "limit": np.asarray(1.5, np.float32),
        "low": np.asarray(-np.inf, np.float32),
    }
    model = build_model(
        [*nodes, make("Softmax", ["y"], ["z"])], {"x": [2, 4]}, stored, outputs={"z": None}
    )
    graph = capture(model, tmp_path)
    assert [node.op for node in graph.nodes] == ["masked_fill", "softmax"]
    (mask,) = graph.of_role("const")
    np.testing.assert_array_equal(graph.data[mask.name], [1, 1, 0, 0])
    assert graph.nodes[0].attrs["keep"]


def test_where_between_data_and_weights(tmp_path: Path) -> None:
    node = make("Where", ["chosen", "x", "w"], ["y"])
    stored = {"chosen": np.array([True, False, True]), "w": random(2, 3)}
    graph = capture(build_model([node], {"x": [2, 3]}, stored), tmp_path)
    assert graph.tensors["w"].role == "param"


def test_tile(tmp_path: Path) -> None:
    times = np.array([2, 1, 3])
    node = make("Tile", ["x", "times"], ["y"])
    graph = capture(build_model([node], {"x": [2, 3, 4]}, {"times": times}), tmp_path)
    assert graph.tensors[graph.outputs[0]].shape == (4, 3, 12)
