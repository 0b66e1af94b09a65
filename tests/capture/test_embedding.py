"""Indices as inputs: lookups, their gradients, and what a wrong index leads to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto
from torch import Tensor, nn

import gradlet
from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.frontends.capture import Captured
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
from tests.capture.onnx_models import build_model, capture, make, random


class Words(nn.Module):
    """An embedding with a row that pads, one by position, and rows picked by constants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 4, padding_idx=2)
        self.places = nn.Embedding(8, 4)
        self.register_buffer("order", torch.tensor([3, 0, 0, 1, 5]))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids.long()) + self.places(torch.arange(ids.shape[1]))
        x = x + self.places(self.order) + self.places.weight[self.order]
        picked: Tensor = x.index_select(1, torch.tensor([4, 4, 1])) + x[:, torch.tensor([0, 3, 2])]
        return picked + x[:, 1::2].sum() + F.embedding(ids.view(-1), self.words.weight).sum()


def test_gradients_are_those_of_torch() -> None:
    module, ids = Words(), torch.randint(0, 9, (3, 5))
    ids[1, 2] = 2
    graph = capture_module(module, ids, name="m")
    training = training_graph(Captured(graph), Recipe(loss="mse"))
    step = next(iter(run_reference(training, 1)))
    wide = module.double()
    F.mse_loss(wide(ids), torch.from_numpy(training.samples["target"][0]).double()).backward()
    for name, parameter in wide.named_parameters():
        actual, expected = step.values[dict(training.grads)[name]], parameter.grad.numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


def test_positions_in_a_row_are_a_slice() -> None:
    graph = capture_module(Words(), torch.randint(0, 9, (3, 5)), name="m")
    slices = [node for node in graph.nodes if node.op == "slice" and "places" in node.inputs[0]]
    assert [node.attrs["size"] for node in slices] == [(5, 4)]
    assert graph.tensors["ids"].dtype == "i32"
    assert graph.samples["ids"].dtype == np.int32


def table() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))


def test_an_index_outside_the_table_is_named() -> None:
    good, bad = torch.tensor([[0, 4]]), torch.tensor([[0, 5]])
    with pytest.raises(GradletError, match="fails in PyTorch itself"):
        capture_module(table(), bad, name="m")
    message = r"input 'input' holds indices from 0 to 5, but the table of '0' has 5 rows"
    with pytest.raises(GradletError, match=message):  # in a later batch, which nobody runs
        capture_module(table(), torch.cat([good, bad]), name="m", batch=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([[0, 7]]), "holds indices from 0 to 7"),
        (np.array([[-1, 0]]), "holds indices from -1 to 0"),
        (np.array([[0.5, 0]]), "must hold indices, which are whole numbers"),
    ],
)
def test_data_of_the_users_own(values: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, inputs=np.array([[1, 2], [3.0, 4.0]]))
    captured = gradlet.capture(table(), torch.tensor([[0, 4]]), batch=2, data=path)
    np.testing.assert_array_equal(captured.graph.samples["input"], [[[1, 2], [3, 4]]])
    np.savez(path, inputs=values)
    with pytest.raises(GradletError, match=message):
        gradlet.capture(table(), torch.tensor([[0, 4]]), batch=1, data=path)


def _onnx(nodes: Any, rows: Any, folder: Path) -> Graph:
    model = build_model(nodes, {"ids": [2, 3]}, {"table": random(*rows)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return capture(model, folder)


def test_onnx_gather(tmp_path: Path) -> None:
    graph = _onnx([make("Gather", ["table", "ids"], ["y"])], (7, 4), tmp_path)
    assert [node.op for node in graph.nodes] == ["gather"]
    assert graph.tensors["table"].role == "param"
    assert graph.samples["ids"].dtype == np.int32
    assert 0 <= graph.samples["ids"].min() <= graph.samples["ids"].max() < 7


@pytest.mark.parametrize("axis", [1, -1, 2])
def test_onnx_gather_along_another_axis(axis: int, tmp_path: Path) -> None:
    graph = _onnx([make("Gather", ["table", "ids"], ["y"], axis=axis)], (2, 4, 3), tmp_path)
    assert [node.op for node in graph.nodes] == ["reshape", "take", "reshape"]


TOML = """
input = [6]
indices = true
[[layer]]
op = "embedding"
rows = 9
width = 4
[[layer]]
op = "dropout"
p = 0.25
[[layer]]
op = "flatten"
[[layer]]
op = "linear"
out = 3
"""


@pytest.mark.thorough
def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text(TOML)
    project = gradlet.build(path, tmp_path / "p", batch=2)
    assert "int32_t *net_input(void);" in (tmp_path / "p" / "net.h").read_text()
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, verdict.first_wrong
