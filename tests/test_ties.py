"""Equal elements in a sort that is not stable: PyTorch promises no order, the program has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gradlet

PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "topk": lambda x: x.topk(5, -1).indices,
    "smallest": lambda x: x.topk(5, -1, largest=False, sorted=False).indices,
    "sort": lambda x: x.sort(-1, descending=True).indices[:, 28:],
    "argsort": lambda x: x.argsort(-1)[:, :5],
    "kthvalue": lambda x: x.kthvalue(9, -1, keepdim=True).indices,
    "median": lambda x: x.median(-1, keepdim=True).indices,
}


class Chosen(nn.Module):
    """Where the chosen elements stand tells which rows of a table are used. Most are 0."""

    def __init__(self, places: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(6, 48), nn.Embedding(48, 3)
        self.places = places

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.places((self.layer(x) - 0.8).relu())
        y: Tensor = self.table(chosen).sum(1)
        return y


@pytest.mark.parametrize("kind", PLACES)
def test_of_equal_elements_the_first_comes_first(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    project = gradlet.build(
        Chosen(PLACES[kind]), tmp_path / "p", inputs=(torch.randn(4, 6),), target="host", batch=2
    )
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert not verdict.no_module
