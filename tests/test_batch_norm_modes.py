"""--bn: what batch norms do in training, held against PyTorch's own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradlet
from gradlet.errors import GradletError
from gradlet.frontends.passes.batch_norms import MODES
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
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


class Around(nn.Module):
    """A norm of any kind between two layers of convolutions or rows."""

    def __init__(self, norm: nn.Module, rank: int) -> None:
        super().__init__()
        conv = {0: nn.Linear, 1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[rank]
        size = () if rank == 0 else (1,)
        self.before, self.norm, self.after = conv(2, 4, *size), norm, conv(4, 2, *size)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.after(torch.tanh(self.norm(self.before(x))))
        return y.flatten(1)


class Mixed(nn.Module):
    """One norm in training, one that is frozen, as in a backbone that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.trained = nn.BatchNorm2d(4).eval(), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.trained(torch.relu(self.kept(x)))
        return y


KINDS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "rows": (lambda: nn.BatchNorm1d(4), 0),
    "lines": (lambda: nn.BatchNorm1d(4), 1),
    "maps": (lambda: nn.BatchNorm2d(4), 2),
    "volumes": (lambda: nn.BatchNorm3d(4), 3),
    "sync": (lambda: nn.SyncBatchNorm(4), 2),
    "no weights": (lambda: nn.BatchNorm2d(4, affine=False), 2),
    "no statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), 2),
    "cumulative": (lambda: nn.BatchNorm2d(4, momentum=None), 2),
    "mixed": (Mixed, 2),
}


@pytest.mark.drawn(20)
@pytest.mark.parametrize("mode", [*MODES, ""])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("batch", [1, 2])
def test_every_kind_of_norm(name: str, mode: str, batch: int) -> None:
    torch.manual_seed(0)
    make, rank = KINDS[name]
    module = Around(make(), rank)
    x = torch.randn(2 * batch, 2, *(3,) * rank)
    if batch == 1 and rank == 0 and mode in ("train", ""):
        with pytest.raises(GradletError, match=r"module 'norm' .*--batch 2 or more.*--bn frozen"):
            gradlet.capture(module, x, batch=batch, bn=mode)
        return
    if name == "cumulative" and mode != "frozen":
        with pytest.raises(GradletError, match=r"module 'norm' of 'around' .*norm.momentum = 0.1"):
            gradlet.capture(module, x, batch=batch, bn=mode)
        assert isinstance(module.norm, nn.BatchNorm2d)
        module.norm.momentum = 0.1  # as it says
    captured = gradlet.capture(module, x, batch=batch, bn=mode)
    assert_same(*recorded_from(captured, Recipe(loss="mse", bn=mode)))
