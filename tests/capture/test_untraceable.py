"""What cannot be traced is told with its module and line, and the way out works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradlet
from gradlet.errors import GradletError
from gradlet.ir.recipe import Recipe
from tests.test_module_oracle import assert_same, recorded


class Inside(nn.Module):
    """A layer whose middle is a module of the test's."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.a, self.blocks, self.b = (
            nn.Linear(4, 6),
            nn.ModuleList([middle, middle]),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.b(x)
        return out


class Chooses(nn.Module):
    def forward(this, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class ChoosesByElement(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, x, -x)


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.flip(1)


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return Backwards.apply(x)


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        self.scale.data.clamp_(min=0)
        return y


class Hides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._modules["parameters"] = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(6)


class Selects(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x[x > 0].sum()


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "control flow": (
        Chooses(),
        r"in module 'blocks.0' \(test_untraceable.py, line \d+: `return x if x.sum\(\) > 0 else -x`"
        r"\).*\n.*torch.where\(condition, this, that\)",
    ),
    "own gradient": (
        Strange(),
        r"module 'blocks.0': .*Backwards on \[2, 6\] \(test_untraceable.py, line \d+: "
        r"`return Backwards.apply\(x\)`\): a torch.autograd.Function .*\(2 times",
    ),
    "data": (Clamped(), r"by `.data` in forward .*take the line out of forward"),
    "hidden": (Hides(), r"module 'blocks.0' of 'inside' keeps a module as `self.parameters`"),
    "random": (
        Noisy(),
        r"aten.randn.default .*it draws random numbers; .*as an input of the model",
    ),
    "shapes": (
        Selects(),
        r"module 'blocks.0': aten.index.Tensor on \[2, 6\], \[2, 6\] \(test_untraceable.*"
        r"torch.where\(condition, x, 0\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    middle, message = REFUSED[name]
    with pytest.raises(GradletError, match=message):
        gradlet.capture(Inside(middle), torch.randn(2, 4))


def test_the_way_out_of_control_flow() -> None:
    assert_same(*recorded(Inside(ChoosesByElement()), torch.randn(4, 4), Recipe(loss="mse")))


class Tries(nn.Module):
    """As some libraries do: a layer may take lengths or not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 6))])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            try:
                x = layer(x, lengths=None)
            except TypeError:
                x = layer(x)
        return x


def test_a_module_that_fails_and_is_called_otherwise() -> None:
    recording, graph = recorded(Inside(Tries()), torch.randn(4, 4), Recipe(loss="mse"))
    assert_same(recording, graph)
    assert "blocks.0.layers.1.1" in {node.module for node in graph.nodes}


class Complex(nn.Module):
    """What the refusal of a complex parameter says, followed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.view_as_real(torch.randn(6, dtype=torch.complex64)).clone())

    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.view_as_complex(self.scale)).abs()


def test_complex_parameters_as_real_ones() -> None:
    assert_same(*recorded(Inside(Complex()), torch.randn(4, 4), Recipe(loss="mse")))
    module = nn.Linear(4, 3)
    module.bias = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    with pytest.raises(GradletError, match=r"parameter 'bias' .*torch.view_as_complex of it"):
        gradlet.capture(module, torch.randn(2, 4))
