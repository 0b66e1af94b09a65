"""The training graph: what is derived, what is refused."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.ir.check import check_graph
from gradlet.ir.graph import Graph, Node
from gradlet.ir.recipe import Recipe, parse_losses
from gradlet.training.autodiff import train
from gradlet.training.selection import select
from tests.models import MODELS


def forward(name: str = "lenet") -> Graph:
    module, inputs = MODELS[name]()
    return gradlet.capture(module, inputs, name=name).graph


LABELS = np.zeros((1, 3), np.int64)


@pytest.mark.parametrize(
    ("recipe", "targets", "message"),
    [
        (Recipe(loss="hinge"), LABELS, "unknown loss 'hinge'"),
        (Recipe(optimizer="adamax"), LABELS, "unknown optimizer"),
        (Recipe(lr=float("nan")), LABELS, "learning rate of nan"),
        (Recipe(lr=-1.0), LABELS, "learning rate of -1"),
        (Recipe(weight_decay=-0.1), LABELS, "weight decay"),
        (Recipe(accumulate=0), LABELS, "1 to 4096 micro-batches, not 0"),
        (Recipe(reduction="max"), LABELS, "a loss is a mean or a sum, not 'max'"),
        (Recipe(label_smoothing=1.5), LABELS, "from 0 to 1, not 1.5"),
        (Recipe(loss="mse", label_smoothing=0.1), LABELS, "mse has no option 'label_smoothing'"),
        (Recipe(loss="huber", delta=0.0), LABELS, "delta of 0"),
        (Recipe(class_weights=(1.0, 2.0)), LABELS, "one weight for each of the 5 classes"),
        (Recipe(ignore_index=5), LABELS + 6, "labels run from 6 to 6"),
        (Recipe(), LABELS + 5, "labels run from 5 to 5, but the model has 5 classes: 0 to 4"),
        (Recipe(), LABELS - 1, "labels run from -1"),
        (Recipe(), LABELS + 0.5, "whole numbers"),
        (Recipe(), np.zeros((1, 4)), "targets have shape"),
        (Recipe(loss="mse"), np.full((1, 3, 5), np.nan), "NaN"),
        (Recipe(update="last:9"), LABELS, "between 1 and 4 layers"),
        (Recipe(update="last:x"), LABELS, "between 1 and 4 layers"),
        (Recipe(update="nosuch"), LABELS, "no parameter matches 'nosuch'; there are 0.weight"),
        (Recipe(update=","), LABELS, "names no parameter"),
    ],
)
def test_refusals(recipe: Recipe, targets: np.ndarray, message: str) -> None:
    with pytest.raises(GradletError, match=message):
        train(forward(), recipe, targets)


def test_loss_options_by_text() -> None:
    fields = parse_losses(
        ["cross_entropy:label_smoothing=0.1,ignore_index=255,class_weights=1/2/0.5"]
    )
    assert Recipe(**fields) == Recipe(
        label_smoothing=0.1, ignore_index=255, class_weights=(1.0, 2.0, 0.5)
    )
    assert parse_losses(["mse"]) == {"loss": "mse"}
    assert parse_losses([]) == {}
    for text, message in (
        ("huber:detla=1", "'detla' is none of"),
        ("huber:delta=x", "'x' is no value for delta"),
    ):
        with pytest.raises(GradletError, match=message):
            parse_losses([text])


def test_selection() -> None:
    graph = forward()
    names = [t.name for t in graph.of_role("param")]
    assert select(graph, "all") == names
    assert select(graph, "last:1") == ["9.weight", "9.bias"]
    assert select(graph, "0,9.bias") == ["0.weight", "0.bias", "9.bias"]
    assert select(graph, "*.weight") == [n for n in names if n.endswith("weight")]
    assert select(graph, "biases") == [n for n in names if n.endswith("bias")]
    assert select(graph, " biases, last:1 ,") == [*names[1:-2:2], "9.weight", "9.bias"]
    with pytest.raises(GradletError, match="model 'lenet' has no norms"):
        select(graph, "norms")


NORMED = nn.Sequential(
    nn.Conv2d(2, 4, 3),
    nn.BatchNorm2d(4),
    nn.GroupNorm(2, 4),
    nn.Flatten(),
    nn.LayerNorm(64),
    nn.Linear(64, 3),
)


@pytest.mark.parametrize("training", [True, False])
def test_norms_and_biases_by_what_they_do(training: bool) -> None:
    captured = gradlet.capture(NORMED.train(training), (torch.randn(2, 2, 6, 6),))
    norms = [f"{layer}.{kind}" for layer in (1, 2, 4) for kind in ("weight", "bias")]
    assert select(captured.graph, "norms") == norms
    assert select(captured.graph, "biases") == [f"{layer}.bias" for layer in (0, 1, 2, 4, 5)]


def test_biases_of_recurrent_layers() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    graph = gradlet.capture(Recurrent(), (torch.randn(2, 5, 3),)).graph
    assert select(graph, "biases") == ["lstm.bias_ih_l0", "lstm.bias_hh_l0", "head.bias"]


def test_a_module_that_is_called_biases() -> None:
    module = nn.Sequential(OrderedDict(first=nn.Linear(3, 4), biases=nn.Linear(4, 2)))
    graph = gradlet.capture(module, (torch.randn(2, 3),)).graph
    assert select(graph, "biases") == ["biases.weight", "biases.bias"]


def test_one_add_per_further_reader() -> None:
    """Three readers of one tensor and two of another: two additions and one."""
    graph = training_graph(gradlet.capture(*MODELS["residual"](), name="r"))
    adds = [node for node in graph.nodes if node.op == "add" and node.phase == "backward"]
    assert len(adds) == 3


def test_gradients_carry_the_module_of_their_layer() -> None:
    graph = training_graph(gradlet.capture(*MODELS["residual"](), name="r"))
    modules = {node.name: node.module for node in graph.nodes}
    assert modules["d_head.weight"] == "head"
    assert modules["d_stem.weight"] == "stem"


def test_a_model_with_two_outputs_is_refused() -> None:
    graph = forward()
    with pytest.raises(GradletError, match="returns 2 tensors"):
        train(replace(graph, outputs=(graph.outputs[0], "relu_0")), Recipe(), LABELS)


def broken(graph: Graph, **changes: object) -> Graph:
    first = graph.nodes[0]
    node = replace(first, **changes)  # type: ignore[arg-type]
    return replace(graph, nodes=(node, *graph.nodes[1:]))


def test_the_checker_finds_faults() -> None:
    graph = training_graph(gradlet.capture(*MODELS["lenet"](), name="lenet"))
    check_graph(graph)
    x = graph.tensors["x" if "x" in graph.tensors else graph.inputs[0]]
    faults = {
        "unknown op": broken(graph, op="magic"),
        "before it is written": broken(graph, inputs=("relu_1", *graph.nodes[0].inputs[1:])),
        "do not exist": broken(graph, inputs=("nothing", "0.weight")),
        "a second time": replace(graph, nodes=(*graph.nodes[:1], *graph.nodes)),
        "two nodes": replace(graph, nodes=(*graph.nodes, graph.nodes[-1])),
        "later phase": replace(graph, nodes=(*graph.nodes[-1:], *graph.nodes[:-1])),
        "is never written": replace(
            graph, tensors={**graph.tensors, "y": replace(x, name="y", role="loss")}, outputs=("y",)
        ),
        "empty dimension": replace(
            graph, tensors={**graph.tensors, x.name: replace(x, shape=(0, 1, 2, 3))}
        ),
        "unknown role": replace(graph, tensors={**graph.tensors, x.name: replace(x, role="hero")}),
        "unknown dtype": replace(graph, tensors={**graph.tensors, x.name: replace(x, dtype="f8")}),
        "no value": replace(graph, data={}),
        "NaN": replace(graph, data={**graph.data, "0.bias": np.full(4, np.nan)}),
        "operands; conv2d takes": broken(graph, inputs=graph.nodes[0].inputs[:1]),
        "its outputs are": broken(graph, attrs={**graph.nodes[0].attrs, "stride": (2, 2)}),
        "another shape": replace(graph, grads=(("0.bias", "d_0.weight"),)),
        "no such tensor": replace(graph, updates=(("0.bias", "nothing"),)),
        "not a single number": replace(graph, loss="relu_0"),
        "samples of": replace(graph, samples={"target": np.zeros((1, 9), np.int32)}),
        "micro-batches": replace(graph, accumulate=0),
    }
    for message, faulty in faults.items():
        with pytest.raises(GradletError, match=message):
            check_graph(faulty)


def test_nodes_compare_without_their_module() -> None:
    assert Node("a", "relu", ("x",), ("a",), module="m") == Node("a", "relu", ("x",), ("a",))
