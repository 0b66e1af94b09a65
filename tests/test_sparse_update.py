"""A part of the model is trained: right against PyTorch, and with less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import Request
from gradlet.ir.recipe import Recipe
from gradlet.planner.model import Plan
from gradlet.reports import memory_report


def network() -> tuple[nn.Module, Any]:
    torch.manual_seed(3)
    module = nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5), nn.Tanh()),
        nn.Sequential(nn.Conv2d(5, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.ReLU()),
        nn.Sequential(nn.Conv2d(6, 4, 1), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    return module, (torch.randn(2, 2, 8, 8),)


def request(update: str, target: str = "host", **recipe: Any) -> Request:
    module, inputs = network()
    chosen = Recipe(lr=0.05, weight_decay=0.01, update=update, **recipe)
    return Request(module, target, recipe=chosen, capture_options={"inputs": inputs})


def planned(update: str, **recipe: Any) -> Plan:
    return request(update, **recipe).plan()


UPDATES = {
    "all but the last": ("0,1,2", 10),
    "all but one in the middle": ("0,2,4", 8),
    "biases": ("biases", 6),
    "norms": ("norms", 4),
    "last two": ("last:2", 4),
    "biases and the head": ("biases,4", 7),
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("case", UPDATES)
def test_verifies(case: str, layout: str, tmp_path: Path) -> None:
    update, count = UPDATES[case]
    module, inputs = network()
    recipe = Recipe(lr=0.05, weight_decay=0.01, momentum=0.9, update=update)
    project = gradlet.build(
        module, tmp_path / "p", target="host", inputs=inputs, recipe=recipe, layout=layout
    )
    assert len(project.plan.graph.trained) == count
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, verdict.first_wrong


def rows_of(plan: Plan) -> dict[tuple[str, str], dict[str, int]]:
    return {(row.module, row.step): dict(row.bytes) for row in memory_report(plan).layers}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_nothing_below_the_first_trained_layer_is_kept_or_computed(optimizer: str) -> None:
    plan = planned("last:1", optimizer=optimizer)
    below = {(module, step) for module, step in rows_of(plan) if step != "forward"}
    assert below <= {
        (module, step) for module in ("4", "(loss)", "(shared)") for step in ("backward", "update")
    }
    first_backward = next(i for i, call in enumerate(plan.calls) if call.phase == "backward")
    kept = {
        buffer.tensors[0]
        for buffer in plan.buffers
        if buffer.region == "arena" and buffer.first < first_backward <= buffer.last
    }
    features = plan.graph.producer()[plan.graph.outputs[0]].inputs[0]
    assert {plan.buffer_of()[name].tensors[0] for name in (features, "target")} <= kept
    assert len(kept) <= 4  # those, the scores and the loss
    assert plan.used < 0.6 * planned("all", optimizer=optimizer).used


def test_biases_need_no_activation_of_their_layer() -> None:
    """dL/db is a sum of the gradient; only what nonlinear layers read again is kept."""
    rows = rows_of(planned("biases"))
    assert all(rows[layer, "backward"]["activations"] == 0 for layer in ("1.0", "2.0", "4"))
    assert rows["0.2", "backward"]["activations"] > 0


def test_frozen_layers_have_no_state() -> None:
    rows = rows_of(planned("0,2,4", optimizer="adam"))
    assert ("1.0", "update") not in rows
    assert rows["2.0", "update"]["optimizer"] == 2 * rows["2.0", "update"]["weights"]


def test_memory_falls_with_the_number_of_trained_layers() -> None:
    used = [planned(f"last:{count}", optimizer="adam").used for count in (6, 4, 2, 1)]
    assert used == sorted(used, reverse=True)
    assert len(set(used)) == len(used)
