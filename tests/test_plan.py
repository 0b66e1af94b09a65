"""The planner against bounds and against a checker that knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import gradlet
from gradlet.api import training_graph
from gradlet.errors import DoesNotFit, GradletError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.planner.memory.place import Request, lower_bound, place
from gradlet.planner.planner import Options, Plan, check_plan, plan
from gradlet.planner.schedule import ordered_groups
from gradlet.targets.target import load as load_target
from tests.models import MODELS


def graph_of(name: str, **recipe: object) -> Graph:
    module, inputs = MODELS[name]()
    captured = gradlet.capture(module, inputs, name=name)
    return training_graph(captured, replace(Recipe(), **recipe))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def lenet() -> Plan:
    return plan(graph_of("lenet"), load_target("host"))


requests = st.lists(
    st.tuples(st.integers(1, 400), st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=40
)


@given(requests, st.sampled_from((1, 4, 16)))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_placed_buffers_never_meet(items: list[tuple[int, int, int]], align: int) -> None:
    wanted = [
        Request(f"b{i}", size * 4, first, first + length)
        for i, (size, first, length) in enumerate(items)
    ]
    offsets = place(wanted, align)
    bound = lower_bound(wanted)
    assert max(offsets[r.name] + r.bytes for r in wanted) >= bound
    for i, a in enumerate(wanted):
        assert offsets[a.name] % align == 0
        for b in wanted[:i]:
            together = a.first <= b.last and b.first <= a.last
            apart = (
                offsets[a.name] + a.bytes <= offsets[b.name]
                or offsets[b.name] + b.bytes <= offsets[a.name]
            )
            assert apart or not together


def test_plan_json_round_trip(lenet: Plan) -> None:
    again = Plan.loads(lenet.dumps())
    assert again == lenet
    assert again.dumps() == lenet.dumps()
    check_plan(again)


def test_plan_prints(lenet: Plan) -> None:
    text = str(lenet)
    assert "gl_f32_conv2d_forward" in text
    assert "lower bound" in text


def shifted(buffer: str, by: int) -> Callable[[Plan], Plan]:
    def change(original: Plan) -> Plan:
        buffers = [
            replace(b, offset=b.offset + by) if b.name == buffer else b for b in original.buffers
        ]
        return replace(original, buffers=tuple(buffers))

    return change


def without_a_call(original: Plan) -> Plan:
    return replace(original, calls=original.calls[1:])


def reordered(original: Plan) -> Plan:
    return replace(original, calls=tuple(reversed(original.calls)))


def too_small(original: Plan) -> Plan:
    memory = replace(original.target.memories[-1], size=100)
    return replace(original, target=replace(original.target, memories=(memory,)))


def update_elsewhere(original: Plan) -> Plan:
    buffers = []
    for b in original.buffers:
        if b.name == "9.weight":
            buffers.append(replace(b, tensors=("9.weight",)))
            end = original.region_bytes("weights") + 64
            buffers.append(
                replace(b, name="copy", offset=end // 16 * 16, tensors=("9.weight.next",))
            )
        else:
            buffers.append(b)
    return replace(original, buffers=tuple(buffers))


def scratch_too_small(original: Plan) -> Plan:
    buffers = [
        replace(b, bytes=16) if b.name.startswith("@scratch") else b for b in original.buffers
    ]
    return replace(original, buffers=tuple(buffers))


def updates_before_reads(original: Plan) -> Plan:
    """Put an input gradient behind the update of the weight that it reads."""
    calls = list(original.calls)
    reader = next(i for i, c in enumerate(calls) if c.nodes[0] == "d_relu_2")
    calls.append(calls.pop(reader))
    return replace(original, calls=tuple(calls))


FAULTS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "overlap": (shifted("max_pool2d_0", 16), "something else is there|overlaps"),
    "misaligned": (shifted("loss", 4), "not aligned"),
    "missing call": (without_a_call, "never or twice"),
    "wrong order": (reordered, "something else is there"),
    "too large": (too_small, "needs"),
    "update elsewhere": (update_elsewhere, "does not replace"),
    "scratch": (scratch_too_small, "scratch of"),
    "stale weight": (updates_before_reads, "something else is there"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_finds(fault: str, lenet: Plan) -> None:
    change, message = FAULTS[fault]
    with pytest.raises(GradletError, match=message):
        check_plan(change(lenet))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("fuse", [True, False])
def test_peak_is_close_to_the_bound(name: str, accumulate: int, fuse: bool) -> None:
    loss = "mse" if name in ("tied", "single_neuron") else "cross_entropy"
    graph = graph_of(name, loss=loss, accumulate=accumulate)
    result = plan(graph, load_target("host", cores=2), options=Options(fuse=fuse))
    # tiny tensors are rounded up to the alignment: 12 bytes each at most
    assert result.used <= 1.05 * result.lower_bound + 12 * len(result.buffers)
    assert result.memory()["RAM"]["used"] == result.used


def test_fusion_lowers_the_peak() -> None:
    graph = graph_of("lenet")
    fused, plain = (
        plan(graph, load_target("host"), options=Options(fuse=fuse)) for fuse in (True, False)
    )
    assert fused.used < plain.used


def test_two_weights_that_need_each_other_are_not_both_fused() -> None:
    """The gradient of each factor of a product of weights reads the other, old one."""
    import torch
    from torch import nn

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.randn(3, 4))
            self.b = nn.Parameter(torch.randn(4, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.a @ self.b

    captured = gradlet.capture(Product(), (torch.randn(3, 5),))
    graph = training_graph(captured, Recipe(loss="mse"))
    result = plan(graph, load_target("host"))
    assert sum(len(call.nodes) > 1 for call in result.calls) < 2
    check_plan(result)


def test_order_keeps_forward_before_backward() -> None:
    phases = [group.phase for group in ordered_groups(graph_of("residual"), ("c",))]
    assert phases.index("backward") == len([p for p in phases if p == "forward"])


def test_running_statistics_move_after_the_prediction() -> None:
    """predict() runs the calls before the loss: none of them may change a state."""
    result = plan(graph_of("norms"), load_target("host"))
    loss = next(i for i, call in enumerate(result.calls) if "loss" in call.outputs)
    states = {new for _, new in result.graph.updates}
    assert any(states.intersection(call.outputs) for call in result.calls)
    assert all(states.isdisjoint(call.outputs) for call in result.calls[:loss])


def test_a_model_that_does_not_fit_says_what_is_missing() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan(graph_of("lenet"), load_target("host", sizes={"RAM": "4k"}))
    text = str(caught.value)
    assert "4,096" in text
    assert "missing" in text
    assert "largest consumers" in text
    assert "--batch" in text


@pytest.mark.parametrize("prefix", ["2net", "a-b", "", "a b", "nët"])
def test_a_prefix_must_be_a_c_name(prefix: str) -> None:
    with pytest.raises(GradletError, match="cannot begin a C name"):
        plan(graph_of("single_neuron", loss="mse"), load_target("host"), prefix=prefix)
