"""Parameters that are read through views: no update comes before the last reader, and no call
writes over what it reads. Each network is planned, and what is unsound is seen by the checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradlet
from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.planner import schedule as order
from gradlet.planner.fuse import bias_gradient, update
from gradlet.planner.fuse.rule import FusionGroup
from gradlet.planner.planner import Options, Plan, check_plan, plan
from gradlet.targets.target import load as load_target

Forward = Callable[[nn.ParameterDict, Tensor], Tensor]


class Network(nn.Module):
    def __init__(self, shapes: dict[str, tuple[int, ...]], compute: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.p = nn.ParameterDict({k: nn.Parameter(torch.randn(s)) for k, s in shapes.items()})
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self.p, x)


def layer_scale(p: nn.ParameterDict, x: Tensor) -> Tensor:
    """The block of a ConvNeXt: a weight per channel, as a map."""
    x = F.conv2d(x, p["a"])
    return (F.conv2d(x, p["c"]) * p["g"].reshape(1, 4, 1, 1) + x).mean((2, 3))


def made_bias(p: nn.ParameterDict, x: Tensor) -> Tensor:
    return F.linear(x, p["v"], p["w"].sum(-1) @ p["b"])


def twice_through_views(p: nn.ParameterDict, x: Tensor) -> Tensor:
    """One weight under three shapes, two of which are views of views."""
    y = x @ p["w"] * p["w"].reshape(8).reshape(2, 4).sum(0)
    return y + p["w"].reshape(1, 8).reshape(8) @ p["b"]


def product_of_two(p: nn.ParameterDict, x: Tensor) -> Tensor:
    return x @ (p["w"].reshape(5, 4) * p["s"].reshape(5, 1))


def weight_norm(p: nn.ParameterDict, x: Tensor) -> Tensor:
    v = p["v"].reshape(4, -1)
    return F.conv2d(x, (p["g"].reshape(4, 1) * v / v.norm(dim=1, keepdim=True)).reshape(4, 3, 2, 2))


def bias_is_the_map(p: nn.ParameterDict, x: Tensor) -> Tensor:
    """The gradient of the weight reads the bias, whose own gradient could be fused with it."""
    return F.conv2d(p["b"].detach().reshape(1, 8, 1, 1), p["w"], p["b"], padding=3) + x


def weight_is_the_input(p: nn.ParameterDict, x: Tensor) -> Tensor:
    """The gradient of the weight reads the weight."""
    return F.linear(p["w"].detach(), p["w"]) + x


def tied_and_turned(p: nn.ParameterDict, x: Tensor) -> Tensor:
    return F.linear(F.linear(x, p["w"].reshape(4, 5)), p["w"].reshape(4, 5).t()) + p["w"].sum()


NETWORKS: dict[str, tuple[dict[str, tuple[int, ...]], Forward, tuple[int, ...]]] = {
    "layer scale": ({"a": (4, 3, 1, 1), "c": (4, 4, 1, 1), "g": (4,)}, layer_scale, (1, 3, 4, 4)),
    "made bias": ({"v": (4, 5), "w": (4, 6, 3), "b": (6,)}, made_bias, (1, 5)),
    "twice": ({"w": (2, 4), "b": (8, 4)}, twice_through_views, (3, 2)),
    "product": ({"w": (20,), "s": (5,)}, product_of_two, (2, 5)),
    "weight norm": ({"v": (4, 3, 2, 2), "g": (4,)}, weight_norm, (1, 3, 4, 4)),
    "bias is the map": ({"w": (8, 8, 3, 3), "b": (8,)}, bias_is_the_map, (1, 8, 5, 5)),
    "weight is the input": ({"w": (8, 8)}, weight_is_the_input, (8, 8)),
    "tied": ({"w": (20,)}, tied_and_turned, (2, 5)),
}


def network(name: str) -> tuple[Network, Tensor]:
    shapes, compute, size = NETWORKS[name]
    return Network(shapes, compute), torch.randn(size)


def graph_of(name: str, **recipe: object) -> Graph:
    module, x = network(name)
    captured = gradlet.capture(module, (x,), name="network")
    return training_graph(captured, replace(Recipe(loss="mse"), **recipe))  # type: ignore[arg-type]


RECIPES: dict[str, dict[str, object]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {"optimizer": "adam"},
    "accumulated": {"accumulate": 2},
    "clipped": {"clip_norm": 0.5},
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_plans_are_sound(name: str, recipe: str) -> None:
    graph = graph_of(name, **RECIPES[recipe])
    for target in ("host", "pulp-open"):
        for fuse in (True, False):
            plan(graph, load_target(target), options=Options(fuse=fuse))


@pytest.mark.parametrize("name", NETWORKS)
def test_they_train_as_torch_does(name: str, tmp_path: Path) -> None:
    module, x = network(name)
    recipe = Recipe(loss="mse", lr=0.01)
    project = gradlet.build(module, tmp_path / "p", inputs=(x,), recipe=recipe, target="host")
    verdict = gradlet.verify(project)
    assert verdict.passed, verdict.first_wrong


BLIND = {  # a planner that does not see views makes plans that the checker refuses
    "layer scale": (order, "but something else is there"),
    "made bias": (order, "but something else is there"),
    "bias is the map": (bias_gradient, "over 'reshape_0', which it reads"),
    "weight is the input": (update, "over 'detach_0', which it reads"),
}


@pytest.mark.parametrize("name", BLIND)
def test_the_checker_sees_a_planner_that_is_blind_to_views(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, complaint = BLIND[name]
    graph = graph_of(name)
    monkeypatch.setattr(module, "view_sources", lambda graph: {n: n for n in graph.tensors})
    with pytest.raises(GradletError, match=complaint):
        plan(graph, load_target("host"))


def on_one_address(original: Plan, result: str, operand: str) -> Plan:
    """With the result of a call where one of its operands lies."""
    place = original.buffer_of()[operand]
    moved = tuple(
        replace(b, region=place.region, offset=place.offset) if result in b.tensors else b
        for b in original.buffers
    )
    return replace(original, buffers=moved)


def test_the_checker_sees_a_result_on_an_operand() -> None:
    """Of a product, whose cores read all rows while others write."""
    graph = graph_of("product")
    found = plan(graph, load_target("host"), options=Options(fuse=False))
    call = next(call for call in found.calls if call.kernel.family == "gemm")
    with pytest.raises(GradletError, match="which it reads"):
        check_plan(on_one_address(found, call.outputs[0], call.inputs[0]))


def test_a_plan_that_cannot_be_ordered_is_our_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than never to come back."""

    def circular(graph: Graph, groups: list[FusionGroup]) -> list[set[int]]:
        return [{(i + 1) % len(groups)} for i in range(len(groups))]

    monkeypatch.setattr(order, "_dependences", circular)
    with pytest.raises(AssertionError, match="no order"):
        plan(graph_of("product"), load_target("host"))
