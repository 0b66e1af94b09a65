"""Elementwise nodes that are computed where the result before them is made, one or two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.planner.model import EPILOGUE
from gradlet.planner.planner import Call, Options, Plan, check_plan, plan
from gradlet.targets.target import load as load_target
from tests.launches import with_launch


class Residual(nn.Module):
    """Two blocks; the second one's shortcut is a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.inside = nn.Conv2d(4, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(4, 6, 1, stride=2)
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.inside(x))
        x = torch.relu(self.second(x) + self.shortcut(x))
        result: torch.Tensor = self.last(x.mean((2, 3)))
        return result


def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Residual(), torch.randn(1, 3, 7, 7)


def graph_of() -> Graph:
    module, x = network()
    return training_graph(gradlet.capture(module, (x,), name="network"))


def planned(target: str = "pulp-open", **options: object) -> Plan:
    return plan(graph_of(), load_target(target), options=Options(**options))  # type: ignore[arg-type]


def followed_by_two(made: Plan) -> dict[str, Call]:
    ops = {node.name: node.op for node in made.graph.nodes}
    calls = (call for call in made.calls if call.fusion == EPILOGUE and len(call.nodes) == 3)
    return {"_".join(ops[name] for name in call.nodes): call for call in calls}


@pytest.mark.parametrize("target", ["pulp-open", "host"])
@pytest.mark.parametrize("buffers", ["auto", "double"])
def test_a_sum_and_its_relu_follow_at_once(target: str, buffers: str) -> None:
    found = followed_by_two(planned(target, buffers=buffers))
    assert set(found) == {"conv2d_add_relu", "conv2d_input_grad_add_relu_grad"}
    for call in found.values():
        assert [launch.when.tiles for launch in call.whole] == ["every", "last"]
        assert not call.updates


def test_not_where_nothing_is_fused() -> None:
    assert not followed_by_two(planned(fuse=False))


def other_operand(call: Call) -> Call:
    result, own, *others = call.whole[1].operands
    return with_launch(call, 1, operands=(result, own, *others[:-1], own))


def other_kernel(call: Call) -> Call:
    return with_launch(call, 1, kernel=replace(call.whole[1].kernel, mode="relu"))


def other_order(call: Call) -> Call:
    first, second, third = call.nodes
    return replace(call, nodes=(first, third, second))


@pytest.mark.parametrize("change", [other_operand, other_kernel, other_order])
def test_the_checker_finds(change: Callable[[Call], Call]) -> None:
    made = planned()
    two = list(followed_by_two(made).values())
    calls = tuple(change(call) if call in two else call for call in made.calls)
    with pytest.raises(GradletError, match="not sound"):
        check_plan(replace(made, calls=calls))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("memory", ["64k", "11k"])
def test_it_trains_as_torch_does(memory: str, tmp_path: Path) -> None:
    module, x = network()
    project = gradlet.build(module, tmp_path / "p", inputs=(x,), memories={"L1": memory})
    assert followed_by_two(project.plan)
    assert bool(project.plan.tilings) == (memory == "11k")
    assert gradlet.verify(project).passed


class Differences(nn.Module):
    """The result of a layer is the first operand of what follows, then the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) - x
        return (x - self.second(x)).mean((2, 3))


def test_calls_that_differ_in_the_order_of_operands_are_not_taken_for_alike() -> None:
    torch.manual_seed(0)
    captured = gradlet.capture(Differences(), (torch.randn(1, 4, 12, 12),), name="network")
    target = load_target("pulp-open", sizes={"L1": "16k"})
    made = plan(training_graph(captured), target, options=Options(buffers="double"))
    tiled = (call for call in made.calls if call.tiling and call.fusion == EPILOGUE)
    assert {call.launches[-1].operands for call in tiled} >= {(0, 0, 4), (0, 4, 0)}
