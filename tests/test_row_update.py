"""Some rows of a layer are trained: against the user's own module with a masked gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.engines import host
from gradlet.errors import GradletError
from gradlet.ir.recipe import Recipe
from gradlet.training.autodiff import train
from gradlet.training.selection import select, select_rows
from tests.test_sparse_update import network, planned, request, rows_of

ROWS = {"0.0": (1, 3), "1.0": (0, 4), "2.0": (3, 4), "4": (1, 3)}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("update", ["0.0[1:3]", "1.0[:4]", "2.0[3:]", "4[1:3]", "1.0[0:4],norms,4"])
def test_verifies(update: str, layout: str, tmp_path: Path) -> None:
    module, inputs = network()
    recipe = Recipe(lr=0.05, weight_decay=0.01, update=update)
    project = gradlet.build(
        module, tmp_path / "p", target="host", inputs=inputs, recipe=recipe, layout=layout
    )
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, verdict.first_wrong
    assert verdict.bit_identical == {"host": True}


@pytest.mark.parametrize(
    "recipe",
    [{"momentum": 0.9}, {"optimizer": "adam", "clip_norm": 0.1, "accumulate": 2}],
    ids=["momentum", "adam"],
)
def test_verifies_with_states_on_the_device(recipe: dict[str, Any], tmp_path: Path) -> None:
    plan = request("1.0[2:5],4[0:2]", "pulp-open", **recipe).plan()
    verdict = gradlet.verify(gradlet.emit(plan, tmp_path / "p"), steps=2)
    assert verdict.passed, verdict.first_wrong
    assert verdict.bit_identical == {"host": True, "sim": True}


class Twice(nn.Module):
    """A weight whose rows some readers give a gradient of their own, and others do not."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x, self.w).tanh()
        return nn.functional.linear(y[:, :4], self.w.reshape(3, 4)) + self.w.sum()


def test_other_readers_of_the_weight(tmp_path: Path) -> None:
    torch.manual_seed(0)
    recipe = Recipe(update="w[2:6]", loss="mse")
    options: dict[str, Any] = {"inputs": torch.randn(2, 2), "recipe": recipe, "target": "host"}
    verdict = gradlet.verify(gradlet.build(Twice(), tmp_path / "p", **options), steps=2)
    assert verdict.passed, verdict.first_wrong
    assert "d_w.used" not in {row.name for row in verdict.tensors}


@pytest.mark.parametrize("layer", ROWS)
def test_rows_are_those_of_a_masked_gradient(layer: str, tmp_path: Path) -> None:
    """The module itself in float64: all gradients but those of the rows set to 0."""
    begin, end = ROWS[layer]
    module, inputs = network()
    labels = torch.tensor([0, 2])
    plan_options: dict[str, Any] = {"inputs": inputs, "targets": labels, "target": "host"}
    recipe = Recipe(lr=0.1, update=f"{layer}[{begin}:{end}]")
    project = gradlet.build(module, tmp_path / "p", recipe=recipe, **plan_options)
    states = host.run(project, steps=3, states=True).states
    module = module.double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    own = module.get_submodule(layer)
    before = {name: p.detach().numpy().copy() for name, p in own.named_parameters()}
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs[0].double()), labels).backward()
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            mask = torch.zeros_like(parameter)
            if name.startswith(f"{layer}."):
                mask[begin:end] = 1
            parameter.grad *= mask
        optimizer.step()
        for name, parameter in own.named_parameters():
            rows = states[step][f"{layer}.{name}[{begin}:{end}]"]
            wanted = parameter.detach().numpy()
            np.testing.assert_allclose(rows, wanted[begin:end], rtol=0, atol=3e-6)
            if name == "weight":  # a bias in front of a norm has no gradient
                assert np.abs(wanted[begin:end] - before[name][begin:end]).max() > 1e-4
            whole = states[step][f"{layer}.{name}"]
            frozen = np.delete(np.arange(len(whole)), slice(begin, end))
            np.testing.assert_array_equal(whole[frozen], before[name][frozen].astype(np.float32))


def test_gradient_and_state_are_of_the_rows_alone() -> None:
    full = rows_of(planned("1.0", optimizer="adam"))["1.0", "update"]
    part = rows_of(planned("1.0[0:2]", optimizer="adam"))["1.0", "update"]
    assert (part["optimizer"], part["gradients"]) == (
        full["optimizer"] // 3,
        full["gradients"] // 3,
    )
    graph = planned("1.0[0:2]", optimizer="adam").graph
    assert graph.tensors[dict(graph.grads)["1.0.weight[0:2]"]].shape == (2, 5, 3, 3)
    assert not any(t.role == "gradient" and t.shape == (6, 5, 3, 3) for t in graph.tensors.values())


@pytest.mark.parametrize("recipe", [{"momentum": 0.9}, {"optimizer": "adam"}, {"accumulate": 2}])
def test_memory_shrinks(recipe: dict[str, Any]) -> None:
    used = [planned(update, **recipe).used for update in ("4[0:1]", "4")]
    assert used[0] < used[1]


def test_a_weight_whose_rows_are_mixed_is_right_too(tmp_path: Path) -> None:
    """Groups: the gradient of the whole is computed, and a part of it is used."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten())
    recipe = Recipe(update="0[1:3],1[0:2]", loss="mse")
    inputs = (torch.randn(2, 4, 5, 5),)
    project = gradlet.build(module, tmp_path / "p", target="host", inputs=inputs, recipe=recipe)
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed, verdict.first_wrong


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("4[0:9]", r"4\.weight: f32\[3,36\] has rows 0 to 2"),
        ("4[2:2]", "has rows 0 to 2"),
        ("nosuch[0:1]", "no parameter matches 'nosuch'"),
        ("4[0:1],4[2:3]", "one range of rows"),
    ],
)
def test_refusals(update: str, message: str) -> None:
    module, inputs = network()
    with pytest.raises(GradletError, match=message):
        train(gradlet.capture(module, inputs).graph, Recipe(update=update))


def test_the_whole_goes_before_its_rows() -> None:
    module, inputs = network()
    graph = gradlet.capture(module, inputs).graph
    assert select_rows(graph, "4.weight[0:1],4") == {}
    assert select(graph, "4.weight[0:1]") == []
    assert select_rows(graph, "4[1:],1.0.bias[:2]") == {
        "4.weight": (1, 3),
        "4.bias": (1, 3),
        "1.0.bias": (0, 2),
    }
