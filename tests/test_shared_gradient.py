"""A weight to which something is added: its gradient is that of the sum as well."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradlet


class Shifted(nn.Module):
    """Its weights are used at a distance from where they are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))
        self.register_buffer("origin", torch.rand(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.origin)


def test_verified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    project = gradlet.build(Shifted(), tmp_path / "p", inputs=torch.randn(2, 5))
    grads = project.plan.graph.grads
    (shared,) = [name for weight, name in grads if weight == "weight"]
    assert [name for _, name in grads].count(shared) == 2
    assert gradlet.verify(project, steps=2).passed
