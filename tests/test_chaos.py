"""Training that float32 does not determine: known by the reference, judged where it can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.codegen.project import Project
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.ops.base import Op
from gradlet.ops.emitter import Emitter
from gradlet.ops.importer import TORCH
from gradlet.oracle.interpreter import before_last_micro_batch, run_reference
from gradlet.oracle.scatter import CAREFUL, QUICK
from gradlet.oracle.tolerance import expect
from gradlet.oracle.undetermined import determined, expect_nodes, first_undetermined


class Sines(nn.Module):
    """x -> sin(r x) again and again: every time an error is more than doubled."""

    def __init__(self, times: int, width: int = 6) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(4, width), nn.Linear(width, 3)
        self.rate = nn.Parameter(4 + torch.rand(width))
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.into(x))
        for _ in range(self.times):
            x = torch.sin(self.rate * x)
        y: torch.Tensor = self.head(x)
        return y


CALM, LATER, AT_ONCE = 3, 6, 13
"""How many times: never chaotic; in the second step, with a rate of 0.1; in the first."""


def built(folder: Path, times: int, **recipe: Any) -> Project:
    torch.manual_seed(0)
    options: dict[str, Any] = {"target": "host", "batch": 2}
    model, inputs = Sines(times), torch.randn(4, 4)
    return gradlet.build(
        model, folder, inputs=inputs, recipe=Recipe(**{"lr": 0.1, **recipe}), **options
    )


@pytest.mark.parametrize(
    "recipe", [{}, {"optimizer": "adam", "lr": 0.01, "accumulate": 2}, {"momentum": 0.9}]
)
def test_a_chaotic_first_step_is_judged_node_by_node(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    verdict = gradlet.verify(built(tmp_path / "p", AT_ONCE, **recipe), steps=3)
    assert verdict.chaotic is not None
    assert (verdict.chaotic[0], verdict.steps, verdict.losses) == (1, 0, ())
    assert verdict.passed, verdict.first_wrong
    told = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert told["chaotic"] == 1
    assert told["chaotic_loss"] == pytest.approx(verdict.chaotic[1])
    rows = {row.name: row.oracle for row in verdict.tensors}
    assert rows["sigmoid_0"] == "torch"  # before anything is chaotic
    assert rows["rate.next"] == "node"
    assert rows["module: gradient of rate, in float64"] == "module"


def test_the_steps_before_are_judged(tmp_path: Path) -> None:
    verdict = gradlet.verify(built(tmp_path / "p", LATER), steps=3)
    assert verdict.chaotic is not None
    assert (verdict.chaotic[0], verdict.steps, len(verdict.losses)) == (2, 1, 1)
    assert verdict.passed, verdict.first_wrong
    assert not any(row.oracle == "node" for row in verdict.tensors)
    names = {row.name for row in verdict.tensors if row.oracle == "module"}
    assert "module: rate after step 1" in names
    assert "module: rate after step 2" not in names


def test_an_ordinary_network_is_not_chaotic(tmp_path: Path) -> None:
    verdict = gradlet.verify(built(tmp_path / "p", CALM, lr=0.01), steps=3)
    assert (verdict.chaotic, verdict.steps, verdict.passed) == (None, 3, True)


@pytest.mark.parametrize("layers", [2, 10])
def test_results_that_are_0_up_to_rounding_are_not_chaotic(layers: int) -> None:
    """The mean of what a norm made: nothing of it is determined, but neither does anything depend
    on it. A bias before a norm has such a gradient."""
    torch.manual_seed(0)
    parts = [(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(layers)]
    flat = [part for layer in parts for part in layer]
    module = nn.Sequential(*flat, nn.InstanceNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    captured = gradlet.capture(module, (torch.randn(4, 3, 5, 5),), batch=2)
    graph = training_graph(captured, Recipe(loss="mse"))
    for rule in (QUICK, CAREFUL):
        assert first_undetermined(graph, expect(graph, 3, rule=rule)) is None


def test_a_perfect_fit_is_not_chaotic() -> None:
    torch.manual_seed(0)
    graph = training_graph(
        gradlet.capture(nn.Linear(4, 3), (torch.randn(2, 4),)), Recipe(loss="mse", lr=0.5)
    )
    (first,) = run_reference(graph, 1)
    samples = {**graph.samples, graph.targets[0]: first.values[graph.outputs[0]][None]}
    object.__setattr__(graph, "samples", {n: v.astype(np.float32) for n, v in samples.items()})
    assert first_undetermined(graph, expect(graph, 2)) is None


def edited(project: Project, old: str, new: str) -> None:
    path = project.folder / "gl.h"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("factor", ["1.01f", "1.0001f"])
def test_a_wrong_update_of_a_chaotic_step_is_caught(factor: str, tmp_path: Path) -> None:
    project = built(tmp_path / "p", AT_ONCE)
    edited(project, "gl_fma(hyper[1], w, g)", f"gl_fma(hyper[1], w, {factor} * g)")
    verdict = gradlet.verify(project, steps=2, edited=True)
    assert verdict.chaotic is not None
    assert not verdict.passed
    assert verdict.first_wrong is not None
    assert verdict.first_wrong.oracle == "node"


def test_a_wrong_kernel_of_a_chaotic_step_is_caught(tmp_path: Path) -> None:
    """A product that is off by one in ten thousand, in the midst of chaos."""
    project = built(tmp_path / "p", AT_ONCE)
    (path,) = (project.folder / "kernels").glob("*_binary_mul__*.c")
    text = path.read_text()
    assert "left * right" in text
    path.write_text(text.replace("left * right", "1.0001f * left * right"))
    verdict = gradlet.verify(project, steps=2, edited=True)
    assert verdict.chaotic is not None
    assert not verdict.passed


def wrong_slope(monkeypatch: pytest.MonkeyPatch, name: str, factor: float) -> None:
    kind = type(OPS[name])
    right = kind.vjp

    def wrong(self: Op, emit: Emitter, *rest: Any) -> dict[str, str]:
        found = right(self, emit, *rest)
        scale = {"slope": factor, "offset": 0.0}
        return {slot: emit.add("affine", [grad], scale) for slot, grad in found.items()}

    monkeypatch.setattr(kind, "vjp", wrong)


@pytest.mark.parametrize("op", ["sigmoid", "mul"])
def test_a_wrong_gradient_of_a_chaotic_step_is_caught(
    op: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reference and program share it; PyTorch and the module, in float64, do not."""
    wrong_slope(monkeypatch, op, 1.01)
    verdict = gradlet.verify(built(tmp_path / "p", AT_ONCE), steps=1)
    assert verdict.chaotic is not None
    wrong = [row.name for row in verdict.tensors if not row.passed]
    assert "module: gradient of into.weight, in float64" in wrong
    assert any(name.startswith("reference: ") for name in wrong)


def test_a_bias_that_capture_forgets_is_seen_in_a_chaotic_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def without_bias(imp: Any, call: Any) -> Any:
        call.args[2] = None
        return right(imp, call)

    right = TORCH["aten.linear.default"]
    monkeypatch.setitem(TORCH, "aten.linear.default", without_bias)
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: _no_bias(self))
    verdict = gradlet.verify(built(tmp_path / "p", AT_ONCE), steps=1)
    assert verdict.chaotic is not None
    wrong = [row.name for row in verdict.tensors if not row.passed]
    assert "module: into.bias after step 1, in float64" in wrong


def _no_bias(layer: nn.Linear) -> None:
    nn.init.normal_(layer.weight, std=0.5)
    nn.init.zeros_(layer.bias)


def test_nodes_are_judged_by_what_they_were_given() -> None:
    """An error upstream is no fault of what comes behind it; an error of a node is its own."""
    torch.manual_seed(0)
    captured = gradlet.capture(Sines(AT_ONCE), (torch.randn(2, 4),), batch=2)
    graph = training_graph(captured, Recipe())
    values = before_last_micro_batch(graph)
    for site in graph.sites():
        made = OPS[site.node.op].reference(site.attrs, *(values[n] for n in site.node.inputs))
        for name, result in zip(site.node.outputs, made, strict=True):
            single = result.dtype.kind == "f"  # as a program rounds, one node after the other
            values[name] = result.astype(np.float32).astype(np.float64) if single else result
    names = list(graph.producer())
    shown = {name: values[name] for name in names}
    shown["sigmoid_0"] = shown["sigmoid_0"] * 1.01
    found = expect_nodes(graph, shown, rule=QUICK)
    off = [n for n in names if (np.abs(shown[n] - found[n][0]) > found[n][1]).any()]
    readers = {o for node in graph.nodes if "sigmoid_0" in node.inputs for o in node.outputs}
    assert "sigmoid_0" in off
    assert set(off) - {"sigmoid_0"} <= readers


def test_what_is_determined_comes_before_what_is_not() -> None:
    torch.manual_seed(0)
    captured = gradlet.capture(Sines(AT_ONCE), (torch.randn(2, 4),), batch=2)
    graph = training_graph(captured, Recipe())
    known = determined(graph, expect(graph, 1)[0])
    assert "sigmoid_0" in known
    assert graph.loss not in known
    assert not known & {new for _, new in graph.updates}  # all are made of chaotic gradients
