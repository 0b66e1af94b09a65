"""Inputs whose first dimension counts no samples: they come as they are with every batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from typer.testing import CliRunner

import gradlet
from gradlet.cli.commands import app
from gradlet.errors import GradletError
from gradlet.ir.recipe import Recipe
from tests.test_module_oracle import assert_same, recorded_from


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.GRU(4, 5, num_layers=2, batch_first=True), nn.Linear(5, 3)

    def forward(self, state: Tensor, x: Tensor, scale: Tensor) -> Any:
        y, _ = self.layers(x, state)
        return self.head(y[:, -1]) * scale


def model() -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 5), torch.randn(6, 4, 4), torch.tensor(0.5))
    return Recurrent(), inputs, torch.randint(0, 3, (6,))


def test_a_state_and_a_number() -> None:
    module, inputs, labels = model()
    captured = gradlet.capture(module, inputs, labels, batch=3, whole=["state", "scale"])
    graph = captured.graph
    assert graph.whole == ("state", "scale")
    assert graph.batch == 3
    assert [graph.samples[name].shape for name in graph.inputs] == [
        (2, 2, 3, 5),
        (2, 3, 4, 4),
        (2,),
    ]
    assert_same(*recorded_from(captured, Recipe()))


def test_a_project_verifies(tmp_path: Path) -> None:
    module, inputs, labels = model()
    options: dict[str, Any] = {"batch": 3, "whole": ["state", "scale"], "target": "host"}
    project = gradlet.build(module, tmp_path / "p", inputs=inputs, targets=labels, **options)
    assert "#define NET_BATCH 3" in (tmp_path / "p" / "net.h").read_text()
    assert gradlet.verify(project, steps=2).passed


SOURCE = """
import torch
from tests.capture.test_whole_inputs import model
def net():
    module, (state, x, _), labels = model()
    return module, (state, x, torch.ones(6, 1)), labels
"""


def test_the_way_out_works_when_followed(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    command = ["memory", f"{tmp_path}/m.py:net", "--batch", "3", "--target", "host"]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    message = " ".join(refused.output.split())
    assert "2 in 'state', 6 in 'x', 6 in 'scale'" in message
    assert "--whole" in message
    assert CliRunner().invoke(app, [*command, "--whole", "state"]).exit_code == 0


def test_data_for_them(tmp_path: Path) -> None:
    module, inputs, labels = model()
    options: dict[str, Any] = {"batch": 2, "whole": ["state", "scale"], "data": tmp_path / "d.npz"}
    examples = (inputs[0][:, :2], *inputs[1:])
    np.savez(tmp_path / "d.npz", x=np.ones((8, 4, 4)), targets=np.zeros(8, int))
    graph = gradlet.capture(module, examples, labels, **options).graph
    assert [len(graph.samples[name]) for name in graph.inputs] == [4, 4, 4]
    state = np.ones((2, 2, 5))
    np.savez(tmp_path / "d.npz", x=np.ones((8, 4, 4)), state=state, targets=np.zeros(8, int))
    graph = gradlet.capture(module, examples, labels, **options).graph
    assert (graph.samples["state"] == 1).all()
    np.savez(tmp_path / "d.npz", x=np.ones((8, 4, 4)), state=state[:1], targets=np.zeros(8, int))
    with pytest.raises(GradletError, match=r"'state' has shape \(1, 2, 5\); it is taken whole, as"):
        gradlet.capture(module, examples, labels, **options)


def test_refusals() -> None:
    module, inputs, _ = model()
    with pytest.raises(GradletError, match="--whole h: the inputs of 'recurrent' are state, x, sc"):
        gradlet.capture(module, inputs, whole="h")
    with pytest.raises(GradletError, match=r"'scale' has no samples: shape .*--whole scale"):
        gradlet.capture(module, inputs, whole="state")
    with pytest.raises(GradletError, match="is left for samples"):
        gradlet.capture(nn.Linear(2, 2), torch.ones(1, 2), whole="input")


def test_an_onnx_file_that_says_so_itself(tmp_path: Path) -> None:
    """A state with the batch in the middle, a number that nobody reads, and an If whose branches
    have constants."""
    weight = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    axes = helper.make_node(
        "Constant", [], ["axes"], value=numpy_helper.from_array(np.array([0]), "v")
    )
    then = helper.make_graph(
        [axes, helper.make_node("Squeeze", ["part", "axes"], ["o"])], "t", [], [out]
    )
    other = helper.make_graph([helper.make_node("Identity", ["part"], ["o"])], "e", [], [out])
    nodes = [
        helper.make_node("Slice", ["state", "zero", "one"], ["part"]),
        helper.make_node("Shape", ["part"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero0"], ["first"]),
        helper.make_node("Equal", ["first", "one0"], ["single"]),
        helper.make_node("If", ["single"], ["taken"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["x", "taken"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["y"]),
    ]
    numbers = {"zero": [0], "one": [1], "zero0": 0, "one0": 1}
    stored = [numpy_helper.from_array(np.asarray(v, np.int64), n) for n, v in numbers.items()]
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", 4]),
        helper.make_tensor_value_info("rate", TensorProto.INT64, []),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    stored.append(numpy_helper.from_array(weight, "w"))
    graph = helper.make_graph(nodes, "net", infos, [result], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    project = gradlet.build(path, tmp_path / "p", batch=3, target="host", recipe=Recipe(loss="mse"))
    graph = project.plan.graph
    assert graph.whole == ("state", "rate")
    assert graph.tensors["state"].shape == (2, 3, 4)
    assert project.recording.absent == ""
    assert gradlet.verify(project, steps=2).passed
