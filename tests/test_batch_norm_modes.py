"""--bn: what batch norms do in training, held against PyTorch's own arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradlet
from gradlet.capture.batch_norms import MODES
from gradlet.errors import GradletError
from gradlet.recipe import Recipe
from gradlet.reference import run_reference
from tests.test_module_oracle import assert_same, recorded_from


class Norms(nn.Module):
    """Over maps, over rows, one without weights, one that is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.maps = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=0.3)
        self.head, self.rows = nn.Linear(12, 4), nn.BatchNorm1d(4, affine=False)
        self.last = nn.Linear(4, 2)
        for part in (self.maps, self.rows):
            nn.init.uniform_(part.running_mean)
            nn.init.uniform_(part.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.maps(self.conv(x))).flatten(1)
        y: Tensor = self.last(self.rows(self.head(h)))
        return y


def example(batch: int) -> Tensor:
    return torch.randn(2 * batch, 1, 4, 4)


@pytest.mark.parametrize("mode", [*MODES, ""])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_module_and_graph_agree(mode: str, batch: int, layout: str) -> None:
    if batch == 1 and mode in ("train", ""):
        return  # PyTorch refuses that
    torch.manual_seed(0)
    captured = gradlet.capture(Norms(), example(batch), batch=batch, bn=mode)
    recording, graph = recorded_from(captured, Recipe(loss="mse", bn=mode), layout)
    assert_same(recording, graph)
    replaced = {captured.graph.own_name(old) for old, _ in captured.graph.updates}
    assert bool(replaced) == (mode != "frozen")
    assert ("rows.running_var" in replaced) == (batch > 1 and mode != "frozen")
    assert "d_maps.weight" in dict(graph.grads).values()


def test_recalibration_is_what_the_manual_says() -> None:
    """By hand: new = (1 - m) * old + m * statistics of the batch, then normalise by the new."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, momentum=0.25).double()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64) * 3 + 1
    captured = gradlet.capture(norm, x, batch=2, bn="recalibrate")
    x = x.float().double()
    mean, var = x.mean((0, 2, 3)) * 0.25, 0.75 + 0.25 * x.var((0, 2, 3))
    expected = (x - mean[:, None, None]) / (var[:, None, None] + norm.eps).sqrt()
    graph = gradlet.training_graph(captured, Recipe(loss="mse", lr=0.0))
    step = next(iter(run_reference(graph, 1)))
    (output,) = captured.graph.outputs
    assert np.abs(step.values[output] - expected.numpy()).max() < 1e-12
    assert np.abs(step.state["running_var"] - var.numpy()).max() < 1e-12


@pytest.mark.parametrize("target", ["host", "pulp-open"])
@pytest.mark.parametrize("mode", ["frozen", "recalibrate"])
def test_a_batch_of_one_is_trained_in_c(mode: str, target: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    project = gradlet.build(
        Norms(), tmp_path / "p", target=target, inputs=example(1), batch=1, recipe=Recipe(bn=mode)
    )
    verdict = gradlet.verify(project, steps=3)
    assert verdict.passed
    assert not verdict.no_module
    assert any(row.oracle == "module" and "maps.weight" in row.name for row in verdict.tensors)


def test_what_the_user_hears() -> None:
    with pytest.raises(GradletError, match=r"module 'rows'.*--batch 2.*--bn frozen.*--bn recalib"):
        gradlet.capture(Norms(), example(1), batch=1)
    with pytest.raises(GradletError, match="--bn froze: batch norms can be train, frozen, recal"):
        gradlet.capture(Norms(), example(1), bn="froze")
    captured = gradlet.capture(Norms(), example(2))
    with pytest.raises(GradletError, match=r"gradlet.capture\(..., bn='frozen'\)"):
        gradlet.training_graph(captured, Recipe(bn="frozen"))


def test_the_module_itself_keeps_its_mode_and_statistics() -> None:
    module = Norms().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    gradlet.capture(module, example(2), bn="recalibrate")
    assert not any(part.training for part in module.modules())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert functional.batch_norm.__module__ == "torch.nn.functional"
