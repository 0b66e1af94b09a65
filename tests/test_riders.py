"""Gradients of biases that ride on those of the weights: when they do, and that it is right."""

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
from gradlet.planner.launch import Launch
from gradlet.planner.model import BIAS_GRADIENT, UPDATE
from gradlet.planner.planner import Call, Options, Plan, check_plan, plan
from gradlet.planner.tile.schedule import ScheduleOverride
from gradlet.targets.target import load as load_target
from tests.launches import with_launch, with_tiles


def network() -> tuple[nn.Module, torch.Tensor]:
    """Plain, grouped, depthwise and pointwise convolutions, and a linear layer of two samples."""
    torch.manual_seed(0)
    layers = [
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU()),
        *(nn.Conv2d(8, 12, 1), nn.ReLU()),
        *(nn.Conv2d(12, 6, 3, stride=2, groups=3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(6 * 3 * 3, 5)),
    ]
    return nn.Sequential(*layers), torch.randn(2, 3, 8, 8)


def graph_of(**recipe: Any) -> Graph:
    module, x = network()
    captured = gradlet.capture(module, inputs=(x,), batch=2, name="network")
    return training_graph(captured, Recipe(**recipe))


def planned(graph: Graph, l1: str = "64k", **options: Any) -> Plan:
    target = load_target("pulp-open", sizes={"L1": l1})
    return plan(graph, target, options=Options(**options))


def carriers(made: Plan) -> dict[str, Call]:
    return {call.name: call for call in made.calls if call.fusion == BIAS_GRADIENT}


def test_biases_ride_on_weights() -> None:
    found = carriers(planned(graph_of()))
    # channels of a group are not one behind the other in a tile of groups: that bias is by itself
    assert set(found) == {"0.weight.next", "2.weight.next", "4.weight.next", "9.weight.next"}
    call = found["0.weight.next"]
    assert call.nodes == ("d_0.weight", "0.weight.next", "d_0.bias", "0.bias.next")
    assert call.outputs == ("0.weight.next", "0.bias.next")
    assert call.beside
    assert call.beside.kernel.name == "gl_f32_channel_sum_sum_sgd__chains"
    assert Plan.loads(planned(graph_of()).dumps()).calls == planned(graph_of()).calls


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ({}, {"fuse": False}),
        ({"accumulate": 2}, {}),
        ({"optimizer": "adam"}, {}),
        ({"update": "biases"}, {}),
    ],
    ids=str,
)
def test_others_are_by_themselves(recipe: dict[str, Any], options: dict[str, Any]) -> None:
    assert not carriers(planned(graph_of(**recipe), **options))


SPLITS = {
    "by inputs": (("in_channels", 2), ("out_channels", 4)),
    "by rows": (("out_channels", 6), ("rows", 3)),
    "both": (("out_channels", 5), ("in_channels", 2), ("batch", 1), ("rows", 3)),
}


@pytest.fixture(params=SPLITS)
def split(request: pytest.FixtureRequest) -> Plan:
    override = ScheduleOverride(SPLITS[request.param], True, "ref")
    made = planned(graph_of(), "24k", buffers="double", overrides={"0.weight.next": override})
    tiling = carriers(made)["0.weight.next"].tiling
    assert tiling
    assert tuple((axis.name, axis.tile) for axis in tiling.axes) == override.split
    return made


def with_sums(call: Call, change: Callable[[Launch], Launch | None]) -> Call:
    """What tiles sum up beside is changed."""
    assert call.tiling
    tiling = with_tiles(call.tiling, lambda x: not x.barrier and x.when.tiles != "last", change)
    return replace(call, tiling=tiling)


def never_skipped(call: Call) -> Call:
    def change(launch: Launch) -> Launch:
        wrong = () if launch.when.first_along else (0,)
        return replace(launch, when=replace(launch.when, first_along=wrong))

    return with_sums(call, change)


def other_sizes(call: Call) -> Call:
    return with_sums(call, lambda x: replace(x, sizes=tuple({**s, "inner": 1} for s in x.sizes)))


def turned_round(call: Call) -> Call:
    """As many elements, but those of other channels."""

    def change(launch: Launch) -> Launch:
        turned = ({**s, "outer": s["inner"], "inner": s["outer"]} for s in launch.sizes)
        return replace(launch, sizes=tuple(turned))

    return with_sums(call, change)


def left_out(call: Call) -> Call:
    return with_sums(call, lambda launch: None)


def other_operand(call: Call) -> Call:
    assert call.beside
    *results, summed, settings = call.beside.operands
    return with_launch(call, 1, operands=(*results, (summed or 0) + 1, settings))


def other_update(call: Call) -> Call:
    assert call.beside
    return with_launch(call, 1, kernel=replace(call.beside.kernel, epilogue=""))


def behind_a_barrier(call: Call) -> Call:
    return with_launch(call, 1, barrier=True)


def another_fusion(call: Call) -> Call:
    return replace(call, fusion=UPDATE)


@pytest.mark.parametrize(
    "change",
    [
        never_skipped,
        other_sizes,
        turned_round,
        left_out,
        other_operand,
        other_update,
        behind_a_barrier,
        another_fusion,
    ],
)
def test_the_checker_finds(split: Plan, change: Callable[[Call], Call]) -> None:
    check_plan(split)
    calls = tuple(change(call) if call.name == "0.weight.next" else call for call in split.calls)
    with pytest.raises(GradletError, match="not sound"):
        check_plan(replace(split, calls=calls))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize("l1", ["64k", "12k"])
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_it_trains_as_torch_does(optimizer: str, l1: str, layout: str, tmp_path: Path) -> None:
    module, x = network()
    recipe = Recipe(momentum=0.9 if optimizer == "momentum" else 0.0)
    project = gradlet.build(
        module,
        tmp_path / "p",
        inputs=(x,),
        batch=2,
        memories={"L1": l1},
        recipe=recipe,
        layout=layout,
    )
    assert carriers(project.plan)
    assert bool(project.plan.tilings) == (l1 == "12k")
    verdict = gradlet.verify(project, engine="sim", steps=2)
    assert verdict.passed
    assert {"d_0.bias", "d_4.bias"} <= {row.name for row in verdict.tensors}
