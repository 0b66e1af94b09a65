"""Linear layers of a single sample that go back in one call: when they do, and that it is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.planner.model import LINEAR_BACKWARD, fetched_places
from gradlet.planner.planner import Call, Options, Plan, check_plan, plan
from gradlet.targets.target import load as load_target
from tests.launches import with_launch


def mlp(batch: int = 1) -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 72), nn.Tanh(), nn.Linear(72, 5)]
    torch.manual_seed(0)
    return nn.Sequential(*layers), torch.randn(batch, 20)


def graph_of(batch: int = 1, **recipe: object) -> Graph:
    module, x = mlp(batch)
    captured = gradlet.capture(module, (x,), name="mlp")
    return training_graph(captured, replace(Recipe(), **recipe))  # type: ignore[arg-type]


def planned(graph: Graph, **options: object) -> Plan:
    return plan(graph, load_target("pulp-open"), options=Options(**options))  # type: ignore[arg-type]


def calls_back(made: Plan) -> list[Call]:
    return [call for call in made.calls if call.fusion == LINEAR_BACKWARD]


def test_layers_behind_the_first_go_back_in_one_call() -> None:
    made = planned(graph_of())
    found = calls_back(made)
    assert [call.name for call in found] == ["4.weight.next", "2.weight.next"]
    kernels = ["gl_f32_back_sgd__once", "gl_f32_back_relu_sgd__once"]
    assert [call.kernel.name for call in found] == kernels  # one through a Tanh, one through a ReLU
    macs = {name: count for name, count in made.macs().items() if name != "forward"}
    assert macs == {"weight_grad": 20 * 33 + 33 * 72 + 72 * 5, "input_grad": 33 * 72 + 72 * 5}


@pytest.mark.parametrize(
    ("batch", "recipe", "options"),
    [
        (2, {}, {}),
        (1, {"momentum": 0.9}, {}),
        (1, {"optimizer": "adam"}, {}),
        (1, {"accumulate": 2}, {}),
        (1, {"clip_norm": 1.0}, {}),
        (1, {}, {"fuse": False}),
    ],
    ids=str,
)
def test_others_do_not(batch: int, recipe: dict[str, object], options: dict[str, object]) -> None:
    assert not calls_back(planned(graph_of(batch, **recipe), **options))


def test_other_cores_have_faster_kernels_for_each() -> None:
    assert not calls_back(plan(graph_of(), load_target("host")))


def other_nodes(call: Call) -> Call:
    first, *others = call.nodes
    return replace(call, nodes=(others[0], first, *others[1:]))


def no_mask(call: Call) -> Call:
    return with_launch(call, 0, kernel=replace(call.kernel, mode="sgd"))


def other_operands(call: Call) -> Call:
    return replace(call, inputs=(call.inputs[0], call.inputs[0], call.inputs[2]))


def other_sizes(call: Call) -> Call:
    return with_launch(call, 0, sizes=({"n": call.sizes["k"], "k": call.sizes["n"]},))


@pytest.mark.parametrize("change", [other_nodes, no_mask, other_operands, other_sizes])
def test_the_checker_finds(change: Callable[[Call], Call]) -> None:
    made = planned(graph_of())
    calls = tuple(change(call) if call.fusion == LINEAR_BACKWARD else call for call in made.calls)
    with pytest.raises(GradletError, match="not sound"):
        check_plan(replace(made, calls=calls))


def test_nodes_of_two_layers_are_not_taken_for_one() -> None:
    made = planned(graph_of())
    first, second = calls_back(made)
    swapped = {
        first.name: (second.nodes[0], *first.nodes[1:]),
        second.name: (first.nodes[0], *second.nodes[1:]),
    }
    calls = tuple(replace(call, nodes=swapped.get(call.name, call.nodes)) for call in made.calls)
    with pytest.raises(GradletError, match="of one layer"):
        check_plan(replace(made, calls=calls))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_training_is_that_of_torch(decay: float, tmp_path: Path) -> None:
    module, x = mlp()
    recipe = Recipe(weight_decay=decay)
    project = gradlet.build(module, tmp_path / "mlp", inputs=(x,), recipe=recipe)
    assert calls_back(project.plan)
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())
    assert {"d_2.weight", "d_4.weight"} <= {tensor.name for tensor in verdict.tensors}


def wide() -> tuple[nn.Module, torch.Tensor]:
    """Layers of which no two find room in L1 together; odd sizes, and one that is small."""
    sizes = (97, 131, 129, 5, 130)
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    torch.manual_seed(0)
    return nn.Sequential(*layers[:-1]), torch.randn(1, sizes[0])


def streamed(l1: str = "48k", **options: object) -> Plan:
    module, x = wide()
    captured = gradlet.capture(module, (x,), name="wide")
    memories = {"L1": l1}
    return plan(
        training_graph(captured, Recipe()),
        load_target("pulp-open", sizes=memories),
        options=Options(**options),  # type: ignore[arg-type]
    )


def test_weights_that_lie_far_away_are_fetched_by_their_kernels() -> None:
    made = streamed()
    places = made.buffer_of()
    found = {
        call.name: call.kernel.variant for call in made.calls if "stream" in call.kernel.variant
    }
    assert set(found.values()) == {"stream_256"}
    assert set(found) == {"relu_0", "relu_1", "0.weight.next", "2.weight.next"}
    assert all(places[f"{layer}.weight"].level == "L2" for layer in (0, 2))
    back = next(call for call in made.calls if call.name == "2.weight.next")
    assert [launch.kernel.family for launch in back.launches] == ["back", "sgd"]


@pytest.mark.parametrize("l1", ["20k", "24k", "32k", "64k", "96k", "128k", "192k", "256k"])
def test_plans_for_more_and_less_memory_are_sound(l1: str) -> None:
    """What finds a place in L1 is not fetched; smaller pieces are for less of it."""
    made = streamed(l1)
    places = made.buffer_of()
    for call in made.calls:
        for place in fetched_places(call):
            assert places[call.operands[place]].level == "L2"
    variants = {call.kernel.variant for call in made.calls}
    assert ("stream_128" in variants) == (l1 in ("20k", "24k", "32k"))


def near(made: Plan) -> Plan:
    """What a kernel fetches lies in L1."""
    near_buffer = next(b for b in made.buffers if b.level == "L1")
    buffers = [
        replace(b, level="L1", region=near_buffer.region) if "2.weight" in b.tensors else b
        for b in made.buffers
    ]
    return replace(made, buffers=tuple(buffers))


def no_room(made: Plan) -> Plan:
    buffers = [replace(b, bytes=64) if b.name.startswith("@scratch") else b for b in made.buffers]
    return replace(made, buffers=tuple(buffers))


def other_bias(made: Plan) -> Plan:
    def changed(call: Call) -> Call:
        if call.name != "2.weight.next":
            return call
        result, _, slope, settings = call.whole[1].operands
        return with_launch(call, 1, operands=(result, slope, slope, settings))

    return replace(made, calls=tuple(map(changed, made.calls)))


def part_of_bias(made: Plan) -> Plan:
    def changed(call: Call) -> Call:
        return with_launch(call, 1, sizes=({"count": 7},)) if call.name == "2.weight.next" else call

    return replace(made, calls=tuple(map(changed, made.calls)))


@pytest.mark.parametrize("change", [near, no_room, other_bias, part_of_bias])
def test_the_checker_finds_in_streamed_layers(change: Callable[[Plan], Plan]) -> None:
    with pytest.raises(GradletError, match="not sound"):
        check_plan(change(streamed()))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_training_with_streamed_weights_is_that_of_torch(decay: float, tmp_path: Path) -> None:
    module, x = wide()
    recipe = Recipe(weight_decay=decay)
    memories = {"L1": "48k"}
    folder = tmp_path / "wide"
    project = gradlet.build(module, folder, inputs=(x,), recipe=recipe, memories=memories)
    assert any("stream" in call.kernel.variant for call in calls_back(project.plan))
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())
