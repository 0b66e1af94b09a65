"""Losses that are one call with their gradient: when they are, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.planner.model import LINEAR_BACKWARD, LOSS_GRADIENT
from gradlet.planner.planner import Call, Options, Plan, check_plan, plan
from gradlet.targets.target import load as load_target
from tests.launches import with_launch


def network(batch: int = 1) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 11)]
    return nn.Sequential(*layers), torch.randn(batch, 2, 5, 5)


def graph_of(batch: int = 1, **recipe: Any) -> Graph:
    module, x = network(batch)
    captured = gradlet.capture(module, (x,), name="network")
    return training_graph(captured, Recipe(**recipe))


def planned(graph: Graph, **options: Any) -> Plan:
    return plan(graph, load_target("pulp-open"), options=Options(**options))


def loss_calls(made: Plan) -> list[Call]:
    return [call for call in made.calls if call.fusion == LOSS_GRADIENT]


@pytest.mark.parametrize("batch", [1, 3])
def test_loss_and_gradient_are_one_call(batch: int) -> None:
    (call,) = loss_calls(planned(graph_of(batch)))
    assert call.kernel.name == "gl_f32_loss_cross_entropy__groups"
    assert call.outputs == ("loss", "d_matmul_0")
    assert not call.updates


@pytest.mark.parametrize(
    ("recipe", "options"),
    [({"loss": "mse"}, {}), ({}, {"fuse": False}), ({}, {"buffers": "double"})],
    ids=str,
)
def test_others_are_two(recipe: dict[str, Any], options: dict[str, Any]) -> None:
    assert not loss_calls(planned(graph_of(**recipe), **options))


def test_other_cores_have_a_kernel_for_each() -> None:
    assert not loss_calls(plan(graph_of(), load_target("host")))


def other_order(call: Call) -> Call:
    return replace(call, nodes=call.nodes[::-1])


def other_operands(call: Call) -> Call:
    return replace(call, outputs=call.outputs[::-1])


def other_sizes(call: Call) -> Call:
    return with_launch(call, 0, sizes=({**call.sizes, "classes": 10},))


def one_step(call: Call) -> Call:
    return with_launch(call, 0, repeat=1)


@pytest.mark.parametrize("change", [other_order, other_operands, other_sizes, one_step])
def test_the_checker_finds(change: Callable[[Call], Call]) -> None:
    made = planned(graph_of())
    calls = tuple(change(call) if call.fusion == LOSS_GRADIENT else call for call in made.calls)
    with pytest.raises(GradletError, match="not sound"):
        check_plan(replace(made, calls=calls))


def test_the_way_back_goes_through_a_view_to_the_relu() -> None:
    (call,) = [call for call in planned(graph_of()).calls if call.fusion == LINEAR_BACKWARD]
    weight = ("d_3.weight", "3.weight.next")
    assert call.nodes == ("d_reshape_0", "d_conv2d_0", *weight, "d_3.bias", "3.bias.next")
    assert call.kernel.mode == "relu_sgd"


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("batch", "recipe"),
    [
        (1, {}),
        (1, {"label_smoothing": 0.1}),
        (1, {"accumulate": 2}),
        (3, {"class_weights": tuple(0.5 + 0.1 * i for i in range(11)), "ignore_index": 1}),
        (3, {"reduction": "sum"}),
    ],
    ids=str,
)
def test_training_is_that_of_torch(batch: int, recipe: dict[str, Any], tmp_path: Path) -> None:
    module, x = network(batch)
    path = tmp_path / "network"
    project = gradlet.build(module, path, inputs=(x,), recipe=Recipe(**recipe))
    assert loss_calls(project.plan)
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())
    assert {"loss", "d_matmul_0", "d_conv2d_0"} <= {tensor.name for tensor in verdict.tensors}
