"""A wrong keyword in Python names the right ones; a loss that does not fit names those that do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.errors import GradletError

NET = nn.Linear(3, 2)
X = torch.randn(4, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch": 3}, r"gradlet\.build has no 'epoch'; it has model, folder, target, cores"),
        ({"batchsize": 3}, r"has no 'batchsize' \(did you mean 'batch'\?\)"),
        ({"batch_size": 3}, r"has no 'batch_size' \(did you mean 'batch'\?\)"),
        ({"lr": 0.1}, r"how to train is told by recipe=gradlet\.Recipe\(lr=\.\.\.\)"),
        ({"learning_rate": 0.1}, r"recipe=gradlet\.Recipe\(lr=\.\.\.\)"),
    ],
)
def test_of_build(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(GradletError, match=message) as caught:
        gradlet.build(NET, tmp_path / "p", inputs=(X,), **options)
    assert isinstance(caught.value, TypeError)
    assert "dims" in str(caught.value) or "Recipe" in str(caught.value)
    assert not (tmp_path / "p").exists()


def test_of_a_recipe() -> None:
    wrong: dict[str, Any] = {"learning_rate": 0.1}
    with pytest.raises(TypeError, match=r"Recipe has no 'learning_rate' \(did you mean 'lr'\?\)"):
        gradlet.Recipe(**wrong)
    assert gradlet.Recipe(lr=0.5).lr == 0.5


def test_of_the_other_verbs() -> None:
    wrong: dict[str, Any] = {"step": 3}
    verbs: tuple[Any, ...] = (gradlet.run, gradlet.verify)
    for verb in verbs:
        with pytest.raises(TypeError, match=r"has no 'step' \(did you mean 'steps'\?\)"):
            verb("nowhere", **wrong)
    for other in (gradlet.memory, gradlet.capture):
        with pytest.raises(TypeError, match=r"has no 'step'"):
            other(NET, **wrong)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x)).squeeze(-1)


def test_a_loss_that_does_not_fit_names_those_that_do() -> None:
    captured = gradlet.capture(Line(), (X,), batch=2)
    with pytest.raises(GradletError) as caught:
        gradlet.training_graph(captured)
    text = str(caught.value)
    assert "cross_entropy needs an output of [batch, classes]" in text
    assert "is [2]. For that there are mse, l1" in text
    gradlet.training_graph(captured, gradlet.Recipe(loss="mse"))  # the way out, followed


def test_targets_that_do_not_fit_name_the_losses_that_do() -> None:
    captured = gradlet.capture(NET, (X,), np.zeros((4, 2), np.float32), batch=2)
    with pytest.raises(GradletError, match=r"needs \(2,\); for such targets there are mse, l1"):
        gradlet.training_graph(captured)
    gradlet.training_graph(captured, gradlet.Recipe(loss="mse"))
