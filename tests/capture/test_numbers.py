"""Python numbers that a forward pass makes of tensors: constants are known, all else is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gradlet
from gradlet.errors import GradletError


class Numbers(nn.Module):
    def __init__(self, number: Callable[[Numbers, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.number = number
        self.register_buffer("size", torch.tensor([3, 2]))
        self.register_buffer("calls", torch.tensor(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.number(self, self.linear(x))


def everything(module: Numbers, x: Tensor) -> Tensor:
    dims = torch.arange(1, x.dim() - 1).tolist()
    x = x.mean(dims) * torch.tensor([x.shape[0], x.shape[1]]).prod().item()
    x = x + int(torch.ones(3).sum()) + float(torch.linspace(0, 4, 5)[2])
    if torch.ones(3).any():
        x = x * int(module.size[0]) + module.size.max().item()
    ends = torch.ones(3, dtype=torch.int64).cumsum(0)
    return x[:, : int(ends[1])] if torch.equal(ends, ends + 0) else x


def test_what_follows_from_shapes_and_constants_is_a_number(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 5, 4),)
    project = gradlet.build(Numbers(everything), tmp_path, target="host", inputs=inputs, batch=1)
    assert gradlet.verify(project, steps=2).passed


def by_data(module: Numbers, x: Tensor) -> Tensor:
    return x[:, 0] * x.sum().item()


def by_parameter(module: Numbers, x: Tensor) -> Tensor:
    return x[:, 0] * module.linear.bias[0].item()


def by_view_of_data(module: Numbers, x: Tensor) -> Tensor:
    kept = torch.zeros(2)
    kept[1:].copy_(x[0, 0, :1])
    return x[:, 0] * kept[1].item()


def by_chance(module: Numbers, x: Tensor) -> Tensor:
    return x[:, 0] * torch.rand(1).item()


def by_branch(module: Numbers, x: Tensor) -> Tensor:
    return x[:, 0] * 2 if x.sum() > 0 else x[:, 0]


def by_state(module: Numbers, x: Tensor) -> Tensor:
    x = x[:, 0] * int(module.calls)
    module.calls += 1
    return x


@pytest.mark.parametrize(
    "number", [by_data, by_parameter, by_view_of_data, by_chance, by_branch, by_state]
)
def test_what_may_differ_next_time_is_no_number(
    number: Callable[[Numbers, Tensor], Tensor], capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    with pytest.raises(GradletError, match=r"item|must not depend on the data|buffer"):
        gradlet.capture(Numbers(number), (torch.randn(2, 5, 4),), batch=1)
    assert "def forward" not in capfd.readouterr().err, "the exporter prints the graph so far"


class TwoMasks(nn.Module):
    """Adds the lowest number of its dtype twice, as masks of padding and of the future do: in
    float32 that is minus infinity, which a softmax leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.out = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lowest = torch.finfo(x.dtype).min
        mask = torch.zeros(6, dtype=x.dtype)
        mask[4:] = lowest
        scores = self.score(x) + mask * (1 if x.dtype == torch.float32 else -2)
        out: torch.Tensor = self.out(torch.softmax(scores + mask, -1))
        return out


def test_what_only_float64_makes_infinite_is_taken(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = TwoMasks(), torch.randn(2, 4)
    assert module(x).isfinite().all()
    assert not module.double()(x.double()).isfinite().all()
    project = gradlet.build(module.float(), tmp_path / "p", inputs=(x,), target="host")
    assert gradlet.verify(project, steps=2).passed
