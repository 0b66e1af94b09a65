"""Matrix products in all the ways that PyTorch and ONNX write them, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradlet.frontends.torch.program import capture_module
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import run_reference
from gradlet.training.autodiff import train
from tests.capture.onnx_models import build_model, capture, make, random

SHAPES = (
    ((2, 3, 4, 5), (5, 6)),
    ((2, 3, 4, 5), (3, 5, 6)),
    ((1, 4, 5), (3, 5, 2)),
    ((3, 4, 5), (1, 5, 2)),
    ((2, 1, 4, 5), (1, 3, 5, 2)),
    ((4, 5), (3, 5, 2)),
    ((4, 5), (1, 1, 5, 2)),
    ((1, 1, 4, 5), (2, 3, 5, 1)),
    ((5,), (5, 3)),
    ((5,), (2, 5, 3)),
    ((4, 5), (5,)),
    ((2, 4, 5), (5,)),
    ((5,), (5,)),
    ((1,), (1,)),
    ((1, 1), (1,)),
)


class Function(nn.Module):
    """A function of parameters, added to an input so that there is one."""

    def __init__(self, compute: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.compute = compute
        self.operands = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.compute(*self.operands)


def check(compute: Callable[..., Tensor], *shapes: tuple[int, ...]) -> list[str]:
    """Values and gradients of the capture against autograd; returns the ops that it took."""
    module = Function(compute, *shapes)
    x = torch.randn((1, *compute(*module.operands).shape))
    graph = capture_module(module, x, name="m")
    target = np.zeros((1, *x.shape), np.float32)
    training = train(graph, Recipe(loss="mse"), target)
    step = next(iter(run_reference(training, 1)))
    wide = module.double()
    wide(x.double()).square().mean().backward()
    for name, parameter in wide.named_parameters():
        gradient = step.values[dict(training.grads)[name]]
        np.testing.assert_allclose(gradient, parameter.grad.numpy(), rtol=1e-9, atol=1e-12)
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_matmul_broadcasts_as_torch_does(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(torch.matmul, a, b)


def test_a_matrix_on_the_right_is_not_repeated() -> None:
    assert "expand" not in check(torch.matmul, (2, 3, 4, 5), (5, 6))
    assert "expand" not in check(torch.matmul, (2, 3, 4, 5), (1, 1, 5, 6))


SCALED: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "addmm": (torch.addmm, ((4,), (3, 5), (5, 4))),
    "addmm of a matrix": (torch.addmm, ((3, 1), (3, 5), (5, 4))),
    "addmm scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2.0),
        ((4,), (3, 5), (5, 4)),
    ),
    "addmm without its sum": (
        lambda a, b: torch.addmm(b[:1], a, b, beta=0),
        ((3, 5), (5, 4)),
    ),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.25, alpha=0.5),
        ((2, 1, 4), (2, 3, 5), (2, 5, 4)),
    ),
    "addmv": (lambda c, a, b: torch.addmv(c, a, b, alpha=3), ((3,), (3, 5), (5,))),
    "mv": (torch.mv, ((3, 5), (5,))),
    "dot": (torch.dot, ((5,), (5,))),
    "inner": (torch.inner, ((3, 5), (4, 5))),
    "scores": (lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k), ((2, 3, 4, 5), (2, 3, 6, 5))),
    "turned": (lambda q, k: torch.einsum("bihd,bjhd->bhij", q, k), ((2, 4, 3, 5), (2, 6, 3, 5))),
    "weights": (lambda x, w: torch.einsum("btd,hde->bhte", x, w), ((2, 4, 5), (3, 5, 2))),
    "outer": (lambda a, b: torch.einsum("i,j->ji", a, b), ((3,), (4,))),
}


@pytest.mark.parametrize("case", SCALED)
def test_other_spellings(case: str) -> None:
    compute, shapes = SCALED[case]
    check(compute, *shapes)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (1.0, -2.0), (3.0, 0.25), (1.0, 0.0)])
def test_scaled_gemm_of_onnx(alpha: float, beta: float, tmp_path: Path) -> None:
    node = make("Gemm", ["x", "w", "c"], ["y"], alpha=alpha, beta=beta, transB=1)
    model = build_model([node], {"x": [2, 3]}, {"w": random(4, 3), "c": random(4)})
    graph = capture(model, tmp_path)  # which compares with ONNX's own evaluator
    assert graph.tensors["w"].role == "param"
    if beta:
        assert graph.tensors["c"].role == "param"


@pytest.mark.parametrize(("x", "w"), [((2, 3), (3,)), ((3,), (2, 3, 4)), ((2, 1, 4, 3), (5, 3, 2))])
def test_onnx_broadcasts(x: tuple[int, ...], w: tuple[int, ...], tmp_path: Path) -> None:
    model = build_model([make("MatMul", ["x", "w"], ["y"])], {"x": list(x)}, {"w": random(*w)})
    assert capture(model, tmp_path).tensors["w"].role == "param"
