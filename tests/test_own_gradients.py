"""Functions with a backward pass of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradlet
from gradlet.errors import GradletError


class Spike(torch.autograd.Function):
    """A step with the slope of a smooth curve."""

    @staticmethod
    def forward(ctx: Any, x: Any, width: float) -> Any:
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        return dy / (1 + (x / ctx.width).abs()) ** 2, None


class Rounded(torch.autograd.Function):
    """Straight through, in the newer way to write a function."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy


class Swish(torch.autograd.Function):
    """The usual gradient, by hand."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return dy * s * (1 + x * (1 - s))


class Mixed(torch.autograd.Function):
    """A gradient that is a slope for no element."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy.flip(-1)


class Centred(torch.autograd.Function):
    """The usual gradient, of a function that writes to what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x -= x.mean(-1, keepdim=True)
        return x * 2

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return 2 * (dy - dy.mean(-1, keepdim=True))


spike = Spike.apply  # kept, as packages do


class Net(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.function = nn.Linear(4, 6), nn.Linear(6, 3), function

    def forward(self, x: Any) -> Any:
        return self.b(self.function(self.a(x)))


FUNCTIONS = {
    **{"spike": lambda x: spike(x, 0.5), "rounded": Rounded.apply, "swish": Swish.apply},
    "centred": lambda x: Centred.apply(x + 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_function(name: str, tmp_path: Path) -> None:
    net, inputs = Net(FUNCTIONS[name]), (torch.randn(2, 4),)
    project = gradlet.build(net, tmp_path / "p", inputs=inputs, batch=1)
    verdict = gradlet.verify(project)
    assert verdict.passed
    assert not verdict.no_module  # the module itself was trained and compared


def test_a_true_gradient_is_not_written_out() -> None:
    plain = gradlet.capture(Net(lambda x: x * torch.sigmoid(x)), inputs=(torch.randn(1, 4),))
    own = gradlet.capture(Net(Swish.apply), inputs=(torch.randn(1, 4),))
    assert [n.op for n in own.graph.nodes] == [n.op for n in plain.graph.nodes]


def test_checkpoints_are_as_if_they_were_not_there() -> None:
    recomputed = Net(lambda x: checkpoint(torch.tanh, x, use_reentrant=True))
    graph = gradlet.capture(recomputed, inputs=(torch.randn(1, 4),)).graph
    assert [node.op for node in graph.nodes] == ["matmul", "tanh", "matmul"]


def test_any_other_is_refused_by_name() -> None:
    with pytest.raises(GradletError, match=r"test_own_gradients\.Mixed.*backward pass"):
        gradlet.capture(Net(Mixed.apply), inputs=(torch.randn(1, 4),))
    assert Mixed.apply(torch.ones(2)).sum() == 2  # and works as before elsewhere
