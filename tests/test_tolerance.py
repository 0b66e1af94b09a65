"""Tolerances: what a correct float32 program may be off, and a training that diverges."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.codegen.project import Project
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.ops.base import Op
from gradlet.ops.emitter import Emitter
from gradlet.ops.importer import TORCH
from gradlet.ops.map import FUNCTIONS, Function
from gradlet.oracle.interpreter import Disturbance, Watch, run_reference
from gradlet.oracle.scatter import CAREFUL, QUICK, Scatter, normal_bound, student_bound
from gradlet.oracle.tolerance import expect, expect_in_turn
from gradlet.verifier import findings
from gradlet.verifier.judge import TensorVerdict, judge
from tests.test_project import cc, run


class Cell(nn.Module):
    """Unrolled in time: thousands of elements in small tensors, each with errors of its own."""

    def __init__(self, units: int = 6) -> None:
        super().__init__()
        self.weight, self.middle = (nn.Parameter(torch.rand(units, units)) for _ in range(2))
        self.slope = nn.Parameter(3 + 5 * torch.rand(units, units))
        self.leak = nn.Parameter(torch.rand(units) + 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(1, self.leak.shape[0])
        for time in range(x.shape[1]):
            gate = self.weight * torch.sigmoid(self.slope * (state.unsqueeze(2) - self.middle))
            state = (state + x[:, time] + gate.sum(1)) / (1 + self.leak + gate.sum(2))
        return state


def cell_graph() -> Graph:
    torch.manual_seed(0)
    captured = gradlet.capture(Cell(), (torch.randn(1, 6, 6),))
    return training_graph(captured, Recipe(loss="mse", lr=0.05))


@pytest.mark.parametrize(
    ("freedom", "probability", "quantile"),  # of Student's distribution, two-sided, from tables
    [(8, 1e-2, 3.355), (16, 1e-3, 4.015), (30, 1e-3, 3.646), (32, 1e-12, 11.322)],
)
def test_the_bound_is_just_above_the_quantile(
    freedom: int, probability: float, quantile: float
) -> None:
    assert quantile <= student_bound(freedom, probability) <= 1.05 * quantile


def test_the_bound_of_a_known_deviation() -> None:
    assert 4.892 <= normal_bound(1e-6) <= 4.91
    assert student_bound(10**6, 1e-6) == pytest.approx(normal_bound(1e-6), rel=1e-3)


def test_a_program_that_rounds_as_it_may_is_never_wrong_by_many_draws() -> None:
    """Errors as large as the model of rounding has them, 20 times. The largest of three draws is
    too small for an element of some of them; many draws never are."""
    graph = cell_graph()
    quick, careful = (expect(graph, 1, rule=rule) for rule in (QUICK, CAREFUL))
    spreads: list[dict[str, np.ndarray]] = []
    list(run_reference(graph, 1, measured=spreads))
    over = {"quick": 0, "careful": 0}
    for seed in range(1000, 1020):
        steps = list(run_reference(graph, 1, disturbance=Disturbance(seed, spreads)))
        for name, expected in (("quick", quick), ("careful", careful)):
            over[name] += any(
                (np.abs(steps[0].values[t] - v) > expected[0].tolerances[t]).any()
                for t, v in expected[0].values.items()
            )
    assert over["careful"] == 0
    assert over["quick"] > 0


def test_in_doubt_verify_draws_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is in doubt alone, as far as there are doubts."""
    project = trained(tmp_path / "p", 0.01)
    graph = project.plan.graph
    drawn: list[Any] = []

    def noted(graph: Graph, steps: int, **options: Any) -> object:
        drawn.append((steps, options["rule"].draws, options["wanted"]))
        return expect(graph, steps, **options)

    monkeypatch.setattr(findings, "expect", noted)
    assert gradlet.verify(project, steps=3).passed
    assert not drawn
    doubtful = graph.grads[0][1]

    def narrow(graph: Graph, name: str, *args: Any, **options: Any) -> TensorVerdict:
        row = judge(graph, name, *args, **options)
        first = name == doubtful and not drawn
        return replace(row, passed=False) if first else row

    monkeypatch.setattr(findings, "judge", narrow)
    assert gradlet.verify(project, steps=3).passed
    assert drawn == [(1, CAREFUL.draws, [{doubtful}])]


def test_a_model_that_takes_more_memory_than_there_is_is_told_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = trained(tmp_path / "p", 0.01)
    graph = project.plan.graph
    verify = sys.modules["gradlet.verifier.verify"]  # the function hides the module
    needed, least = (verify.memory_needed(graph, steps) for steps in (5, 1))
    assert least < needed
    monkeypatch.setattr(verify, "machine_bytes", lambda: needed - 1)
    with pytest.raises(GradletError, match=rf"about {needed:,} bytes.*--steps 1. takes {least:,}"):
        gradlet.verify(project, steps=5)
    assert gradlet.verify(project, steps=1).passed


@pytest.mark.parametrize("steps", [1, 3])
def test_what_is_wanted_gets_the_bound_that_it_has_among_all(steps: int) -> None:
    graph = cell_graph()
    wanted = [{graph.grads[1][1]}, {graph.updates[0][1]}, {graph.updates[1][1]}][:steps]
    whole, part = (
        expect(graph, steps, rule=CAREFUL, **options)  # type: ignore[arg-type]
        for options in ({}, {"wanted": wanted})
    )
    for all_of_it, some, names in zip(whole, part, wanted, strict=True):
        assert set(some.values) == {*names, *graph.outputs}
        assert (some.loss, some.loss_tolerance) == (all_of_it.loss, all_of_it.loss_tolerance)
        for name, allowed in some.tolerances.items():
            assert (allowed == all_of_it.tolerances[name]).all()
            assert (some.values[name] == all_of_it.values[name]).all()


def test_step_by_step_the_bounds_are_the_same() -> None:
    graph = cell_graph()
    steps = list(expect_in_turn(graph, 3))
    for one, other in zip(steps, expect(graph, 3), strict=True):
        assert one.loss_tolerance == other.loss_tolerance
        assert set(one.values) == set(other.values)
        assert all((one.tolerances[n] == value).all() for n, value in other.tolerances.items())


def test_a_tensor_lives_until_its_last_reader_has_run() -> None:
    graph = cell_graph()
    seen: list[str] = []
    (step,) = run_reference(graph, 1, watch=Watch(lambda name, _: seen.append(name)))
    assert set(graph.producer()) <= set(seen)
    lasting = {graph.loss, *(new for _, new in graph.updates)}
    assert {name for name in step.values if name in graph.producer()} == lasting


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d, nn.BatchNorm2d])
def test_a_result_that_is_0_up_to_rounding_is_captured(norm: type[nn.Module]) -> None:
    """The mean of what a norm made is 0; float64 leaves 1e-17, in every order another one."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    inputs = (torch.randn(2, 3, 12, 12),)
    assert gradlet.capture(module, inputs).graph.outputs


def test_a_wrong_result_near_0_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool takes the largest instead of the mean."""
    largest, mean = (f"aten.adaptive_{op}_pool2d.default" for op in ("max", "avg"))
    wrong = TORCH[largest]
    monkeypatch.setitem(TORCH, mean, lambda imp, call: wrong(imp, replace(call, target=largest))[0])
    module = nn.Sequential(nn.InstanceNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(GradletError, match="does not compute what the module computes"):
        gradlet.capture(module, (torch.randn(2, 3, 12, 12),))


def trained(folder: Path, lr: float, scale: float = 1.0) -> Project:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    inputs = (scale * torch.randn(4, 4),)
    recipe = Recipe(loss="mse", lr=lr)
    return gradlet.build(module, folder, inputs=inputs, target="host", batch=2, recipe=recipe)


@pytest.mark.parametrize(
    ("lr", "scale", "step"),
    [
        (1e5, 1.0, 3),  # the loss of the third step is infinite in float32, though not in float64
        (1e10, 1e10, 2),
        (1e30, 1e10, 1),  # the weights after the first step are more than float32 holds
        (0.01, 1e25, 1),  # the loss of the first step is
    ],
)
def test_the_steps_before_a_divergence_are_judged(
    lr: float, scale: float, step: int, tmp_path: Path
) -> None:
    project = trained(tmp_path / "p", lr, scale)
    verdict = gradlet.verify(project, steps=6)
    assert verdict.diverged == step
    assert verdict.steps == len(verdict.losses) == step - 1
    assert verdict.passed, verdict.first_wrong
    assert json.loads(json.dumps(verdict.to_json(), allow_nan=False))["diverged"] == step
    make = ["make", "--no-print-directory", "golden", f"CC={cc()}", "CFLAGS=-O1"]
    assert "PASS" in run(make, project.folder)


def test_a_fault_before_a_divergence_is_one(tmp_path: Path) -> None:
    project = trained(tmp_path / "p", 1e5)
    path = project.folder / "gl.h"
    text = path.read_text()
    assert "gl_fma(hyper[1], w, g)" in text
    path.write_text(text.replace("gl_fma(hyper[1], w, g)", "gl_fma(hyper[1], w, 1.01f * g)"))
    verdict = gradlet.verify(project, steps=6, edited=True)
    assert (verdict.diverged, verdict.passed) == (3, False)
    assert verdict.first_wrong is not None


@pytest.mark.parametrize("doublings", [1, 100, 130])  # of a gradient; 130 overflow float32
def test_a_wrong_gradient_is_no_divergence(
    doublings: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tolerances come from our own graph; where that is wrong, PyTorch says so."""
    relu = type(OPS["relu"])
    right = relu.vjp

    def wrong(self: Op, emit: Emitter, *rest: Any) -> dict[str, str]:
        found = right(self, emit, *rest)
        for _ in range(doublings):
            found = {slot: emit.add("add", [grad, grad]) for slot, grad in found.items()}
        return found

    monkeypatch.setattr(relu, "vjp", wrong)
    verdict = gradlet.verify(trained(tmp_path / "p", 0.01), steps=2)
    assert (verdict.diverged, verdict.passed) == (None, False)
    assert any(row.name.startswith("reference: ") for row in verdict.tensors)


class Filled(nn.Module):
    """0.3 is no float32, and the inputs are exact: filling in rounds all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        filled = torch.where(x > 0.5, 0.7, x.masked_fill(x < -0.5, 0.3))
        return self.layer(filled)


def test_a_number_that_is_filled_in_is_rounded(tmp_path: Path) -> None:
    project = gradlet.build(Filled(), tmp_path, inputs=torch.randn(4, 6), target="host", batch=4)
    assert any(node.op == "masked_fill" for node in project.plan.graph.nodes)
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong


def test_what_is_not_filled_in_is_exact() -> None:
    x, mask = np.array([0.1, 0.2]), np.array([0.0, 1.0])
    op = OPS["masked_fill"]
    for value, inexact in ((0.3, 0.3), (0.5, 0.0)):
        results = op.reference({"value": value}, x, mask)
        (rounded,) = op.magnitude({"value": value}, [x, mask], results)
        assert rounded.tolist() == [0.0, inexact]


@pytest.mark.parametrize("row", FUNCTIONS, ids=lambda row: row.name)
def test_whatever_is_a_number_has_a_rounding(row: Function) -> None:
    """A disturbed run that is no number tells nothing, and all that depends on it seems exact."""
    x = np.array([0.0, -0.0, 1e-30, -1e-30, 0.5, -0.5, 1.0, -1.0, 30.0, -30.0, 1e4, -1e4])
    with np.errstate(all="ignore"):
        for numbers in ((0.3, 0.9), (1.5, 20.0), (3.0, 0.0), (-0.7, 0.9), (-1.0, 0.0)):
            y = row.value(x, *numbers)
            for formula, size, at in (
                (row.value, row.value_size, x),
                (row.slope, row.slope_size, y if row.of == "y" else x),
            ):
                known = np.isfinite(formula(at, *numbers))
                assert size is None or np.isfinite(size(at, *numbers)[known]).all(), numbers


@pytest.mark.parametrize("offset", [1e5, 1e6, 1e7, 1e9])
def test_what_float32_does_not_tell_apart(offset: float, tmp_path: Path) -> None:
    """Logits that differ by less than their own rounding: nothing is left of the difference."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.fill_(offset / 4)
    project = gradlet.build(layer, tmp_path, inputs=torch.ones(2, 4), target="host", batch=2)
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong


class Shares(torch.nn.Module):
    """The largest of sums that are all 1, but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = torch.nn.Linear(6, 24), torch.nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.inner(x).view(-1, 4, 6).softmax(-1)
        result: torch.Tensor = self.head((shares / shares.sum(-1).max()).flatten(1))
        return result


def test_what_float64_leaves_to_chance_is_no_fault(tmp_path: Path) -> None:
    inputs = (torch.randn(2, 6, generator=torch.Generator().manual_seed(1)),)
    verdict = gradlet.verify(gradlet.build(Shares(), tmp_path / "p", inputs=inputs, batch=2))
    assert verdict.passed


@pytest.mark.parametrize(("numbers", "bounded"), [(32, True), (20, True), (7, False), (0, False)])
def test_runs_without_a_number_do_not_count_as_runs_without_deviation(
    numbers: int, bounded: bool
) -> None:
    """Two elements that move alike, the second by a number in some of the runs only."""
    chance = np.random.default_rng(0)
    scatter = Scatter(CAREFUL, {"x": np.zeros(2)})
    for draw in range(CAREFUL.draws):
        moved = np.full(2, 4 * chance.standard_normal())
        moved[1] = moved[1] if draw < numbers else np.nan
        scatter.add("x", moved)
    all_of_them, some = scatter.tolerance("x", {}, 1)
    assert 5 < all_of_them < 15
    assert np.isfinite(some) == bounded
    assert some >= 0.8 * all_of_them
