"""Recurrent layers from every front end: the same scans, the same results, plain refusals."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.frontends.capture import Captured
from gradlet.frontends.onnx.model import capture_onnx
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
from gradlet.planner.planner import plan
from gradlet.targets.target import load as load_target
from gradlet.training.autodiff import train
from gradlet.training.selection import select

KINDS = {"GRU": "gru", "LSTM": "lstm", "RNN": "rnn"}
DEEP = {"num_layers": 2, "bidirectional": True, "batch_first": True}


class Layer(nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(3, 4, **options)
        self.head = nn.Linear(8 if options.get("bidirectional") else 4, 2)

    def forward(self, x: Any) -> Any:
        y, state = self.layer(x)
        state = state[-1] if isinstance(state, tuple) else state
        y = y[:, -1] if self.layer.batch_first else y[-1]
        return self.head(y) + state.sum(0)[:, :2]


def _exported(module: nn.Module, x: Any, path: Path, exporter: str) -> Path:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (x,), path, dynamo=exporter == "dynamo")
    return path


# The new exporter unrolls a plain RNN and folds the weights of its first step: nothing to train as
# the module does.
@pytest.mark.parametrize(
    ("kind", "exporter"),
    [(kind, e) for kind in KINDS for e in ("legacy", "dynamo") if (kind, e) != ("RNN", "dynamo")],
)
@pytest.mark.parametrize("options", [{}, DEEP], ids=["plain", "deep"])
def test_onnx_file_trains_like_the_module(
    kind: str, options: dict[str, Any], exporter: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module, x = Layer(kind, **options), torch.randn(2, 5, 3)
    graph = capture_onnx(_exported(module, x, tmp_path / "m.onnx", exporter))
    assert Counter(node.op for node in graph.nodes)[KINDS[kind]] == (4 if options else 1)
    size = 2 if options else 5
    targets = torch.randint(2, (size,))
    graph = replace(graph, samples={graph.inputs[0]: x.numpy()[None]})
    graph = train(graph, Recipe(lr=0.125), targets.numpy()[None])
    optimizer = torch.optim.SGD(module.double().parameters(), lr=0.125)
    for step in run_reference(graph, 4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x.double()), targets)
        loss.backward()
        optimizer.step()
        assert abs(step.loss - loss.item()) < 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_file_verifies_in_c(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = _exported(Layer(kind, **DEEP), torch.randn(1, 6, 3), tmp_path / "m.onnx", "legacy")
    graph = training_graph(Captured(capture_onnx(path)), Recipe(lr=0.1))
    project = gradlet.emit(plan(graph, load_target("host", cores=2)), tmp_path / "p")
    assert gradlet.verify(project, steps=5).passed


def test_many_times_are_one_call(tmp_path: Path) -> None:
    """The code does not grow with the length of a sequence."""
    sizes = []
    for times in (10, 100):
        captured = gradlet.capture(Layer("GRU"), (torch.randn(times, 1, 3),), name="gru")
        project = gradlet.emit(
            plan(training_graph(captured, Recipe()), load_target("host")), tmp_path / str(times)
        )
        text = (project.folder / "net.c").read_text()
        assert f"STEPS({times}, net_f32_gru_gru__ref(" in text
        sizes.append((len(project.plan.calls), text.count("PART("), text.count("STEPS(")))
    assert sizes[0] == sizes[1]


def test_toml_layers(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        'name = "m"\ninput = [6, 3]\n'
        '[[layer]]\nop = "gru"\nhidden = 4\nbidirectional = true\n'
        '[[layer]]\nop = "lstm"\nhidden = 3\nbias = false\n'
        '[[layer]]\nop = "rnn"\nhidden = 2\nactivation = "relu"\n'
        '[[layer]]\nop = "flatten"\n[[layer]]\nop = "linear"\nout = 2\n'
    )
    project = gradlet.build(str(tmp_path / "m.toml"), tmp_path / "p", target="host")
    assert gradlet.verify(project, steps=3).passed


class First(nn.Module):
    """The first of what a layer returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)[0]
        return y


def test_projections_are_refused_by_name() -> None:
    module = First(nn.LSTM(3, 4, proj_size=2))
    with pytest.raises(GradletError, match=r"module 'layer': .*proj_size"):
        gradlet.capture(module, (torch.randn(5, 2, 3),), name="m")


def test_layers_of_one_module_are_one_layer() -> None:
    """`last:1` means the head, `last:2` the whole recurrent layer as well."""
    captured = gradlet.capture(Layer("LSTM"), (torch.randn(5, 2, 3),), name="m")
    assert select(captured.graph, "last:1") == ["head.weight", "head.bias"]
    assert len(select(captured.graph, "last:2")) == 6
