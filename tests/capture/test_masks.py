"""Masks that depend on the data, and whole numbers that are computed: values and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto
from torch import Tensor, nn

import gradlet
from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.graph import Array
from gradlet.ir.recipe import Recipe
from gradlet.oracle.interpreter import evaluate, run_reference, wide
from gradlet.oracle.tolerance import expect_forward
from tests.capture.onnx_models import build_model, capture
from tests.capture.test_torch_gradients import Calls, assert_module_gradients

make = onnx.helper.make_node


def every_comparison(x: Tensor, w: Tensor) -> Tensor:
    masks = [x > w, x >= 0.1, x < w, x.le(0.2), x == x.detach(), x.ne(0.3)]
    return torch.stack([mask * x for mask in masks]).sum(0) * w


def both_ways(x: Tensor, w: Tensor) -> Tensor:
    y = torch.where(x > 0, x * w, w)
    y = y + torch.where(x > 0.5, 1.0, -1.0) * x + torch.where(x < 0, 0.0, x)
    return y + torch.where(x[..., :1] > 0, w, x.exp()) + torch.where(x < w, 2.0, w)


def filled(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).masked_fill(x > 0.3, 0.5)
    y.masked_fill_(y < -0.5, -2.0)
    scores = y.masked_fill(x < -0.9, -torch.inf).softmax(-1)
    return scores + (x + 1).masked_fill(x > 0, w.sum())


def logical(x: Tensor, w: Tensor) -> Tensor:
    high, low = x > 0.4, x < w - 1
    either = (high | low) ^ (x > w)
    neither = torch.logical_not(torch.logical_or(high, low)) & ~torch.logical_xor(high, x > 0)
    truthy = torch.logical_and(x, high)
    return x * either + w * neither.float() + truthy.to(x.dtype) * x * x


def any_and_all(x: Tensor, w: Tensor) -> Tensor:
    high = x > 0.2
    return x * high.any(-1, keepdim=True) + w * high.all(0) + x * high.any() + high.sum() * w


def counted(x: Tensor, w: Tensor) -> Tensor:
    """Whole numbers: how many are above, which one that is, and the share of it."""
    high = (x > 0).long()
    place = high.cumsum(-1) * high
    odd = (place == 1) | (place > 2)
    return x * place.float() / high.sum(-1, keepdim=True).clamp(min=1) + w * odd.int()


def rounded(x: Tensor, w: Tensor) -> Tensor:
    y = 3 * x
    steps = y.floor() + y.ceil() + y.round() + y.trunc() + y.sign() + (10 * x).int().float()
    return steps * w + y.frac() + x.round(decimals=1)


def straight_through(x: Tensor, w: Tensor) -> Tensor:
    soft = torch.sigmoid(x * w)
    return ((soft > 0.5).float() - soft).detach() + soft


def bounded(x: Tensor, w: Tensor) -> Tensor:
    y = torch.clamp(x, min=w - 1, max=w) + torch.clamp(x, max=w.detach() / 2)
    return y + x.clamp_min(w - 0.8) * w


def finite(x: Tensor, w: Tensor) -> Tensor:
    y = torch.where(x > 0, x.clamp(min=1e-3).log(), x)
    good = torch.isfinite(y) & ~torch.isnan(y) & ~torch.isinf(y)
    return torch.nan_to_num(y * w, nan=1.0, posinf=2.0, neginf=3.0) * good


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
@pytest.mark.parametrize(
    "function",
    [
        every_comparison,
        both_ways,
        filled,
        logical,
        any_and_all,
        counted,
        rounded,
        straight_through,
        bounded,
        finite,
    ],
)
def test_gradients_are_those_of_the_module(function: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert_module_gradients(Calls(function, shape), (torch.randn(7, 6),), close=1e-6)


class Tokens(nn.Module):
    """Padding is masked out, and positions count what is left, as Hugging Face's RoBERTa does."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(20, 6, padding_idx=1), nn.Embedding(12, 6)
        self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids.ne(1)
        places = (torch.cumsum(mask.int(), 1).type_as(mask.int()) * mask.int()).long() + 1
        h = self.word(ids) + self.place(places)
        scores = (h @ self.mix(h).mT).masked_fill(~mask[:, None], torch.finfo(torch.float32).min)
        h = scores.softmax(-1) @ h
        weight = mask.unsqueeze(-1).float()
        return self.head((h * weight).sum(1) / weight.sum(1).clamp(min=1e-9))


class Gated(nn.Module):
    """Convolutions with masks of whole maps, of channels, and of single places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        self.edge, self.head = nn.Parameter(torch.zeros(4, 1, 1)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y = torch.where(y > self.edge, y, 0.1 * y * self.edge.exp())
        y = self.b(y).masked_fill(x[:, :1, 1:-1, 1:-1] > 1, 0.0)
        y = y * (y.mean((2, 3), keepdim=True) < 0.5)
        return self.head(y.mean((2, 3)) + y.amax((2, 3)).round())


def models() -> dict[str, tuple[nn.Module, Tensor]]:
    torch.manual_seed(1)
    ids = torch.randint(0, 20, (4, 7))
    ids[:, 5:] = 1
    return {"tokens": (Tokens(), ids), "gated": (Gated(), torch.randn(4, 2, 9, 9))}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "layout"), [("tokens", "chw"), ("gated", "chw"), ("gated", "hwc")]
)
@pytest.mark.parametrize("memories", [{}, {"L1": "8k"}])
def test_programs(name: str, layout: str, memories: dict[str, str], tmp_path: Path) -> None:
    module, x = models()[name]
    place: dict[str, Any] = {"memories": memories} if memories else {"target": "host"}
    recipe = Recipe(lr=0.05)
    project = gradlet.build(
        module, tmp_path / "p", inputs=(x,), batch=2, layout=layout, recipe=recipe, **place
    )
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert not verdict.no_module


def test_a_mask_that_lets_a_gradient_through_is_caught(tmp_path: Path) -> None:
    module, x = models()["gated"]
    project = gradlet.build(module, tmp_path / "p", inputs=(x,), batch=2, target="host")
    (path,) = (tmp_path / "p").glob("**/*mask_fill*.c")
    path.write_text(path.read_text().replace("? s->value : old", "? s->value + 1e-3f : old"))
    assert not gradlet.verify(project, steps=1, edited=True).passed


def test_sums_of_whole_numbers_are_exact() -> None:
    """Or counting would have tolerances, and a comparison of counts would be in doubt."""
    module = Calls(counted, (6,))
    graph = training_graph(gradlet.capture(module, (torch.randn(3, 6),)), Recipe(loss="mse"))
    measured: list[Any] = []
    next(iter(run_reference(graph, 1, measured=measured)))
    counts = [n.outputs[0] for n in graph.nodes if n.op == "cumsum" and n.phase == "forward"]
    assert counts
    assert all((measured[0][name] == 0).all() for name in counts)


BITS: dict[str, Any] = {
    "and": lambda x: x * (x.long() & 3),
    "not": lambda x: x * ~x.long(),
    "infinity": lambda x: x * (x > torch.inf),
    "narrow": lambda x: x * x.to(torch.uint8),
}


@pytest.mark.parametrize("name", BITS)
def test_refusals(name: str) -> None:
    message = {"infinity": "with infinity", "narrow": "as uint8; there are"}
    module = Calls(lambda x, w: BITS[name](x), (3,))
    with pytest.raises(GradletError, match=message.get(name, "bits of whole numbers")):
        gradlet.capture(module, (torch.rand(2, 6),))


ONNX_PAIRS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def _results(model: Any, folder: Path, x: Array) -> Array:
    graph = capture(model, folder)
    values = {name: wide(value) for name, value in graph.data.items()}
    values |= dict(zip(graph.inputs, [wide(x)], strict=True))
    evaluate(graph, values, ("forward",))
    return values[graph.outputs[0]]


@pytest.mark.parametrize("op", ONNX_PAIRS)
def test_onnx_comparisons(op: str, tmp_path: Path) -> None:
    nodes = [
        make(op, ["x", "w"], ["m"]),
        make("Not", ["m"], ["n"]),
        make("Where", ["m", "x", "w"], ["a"]),
        make("Cast", ["n"], ["b"], to=TensorProto.FLOAT),
        make("Mul", ["a", "b"], ["y"]),
    ]
    x = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
    w = np.array([2, 2, 2], np.float32)
    model = build_model(nodes, {"x": [2, 3]}, {"w": w})
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(_results(model, tmp_path, x), expected)


def test_onnx_whole_numbers(tmp_path: Path) -> None:
    """Division of integers drops the fraction; a cast to integers as well."""
    nodes = [
        make("Cast", ["x"], ["i"], to=TensorProto.INT64),
        make("Div", ["i", "two"], ["half"]),
        make("Cast", ["half"], ["f"], to=TensorProto.FLOAT),
        make("Less", ["i", "two"], ["low"]),
        make("And", ["low", "low"], ["both"]),
        make("Xor", ["both", "low"], ["none"]),
        make("Or", ["none", "both"], ["any"]),
        make("Where", ["any", "f", "x"], ["y"]),
    ]
    x = np.array([[-5.7, -3.2, -0.5, 0.5, 1.9, 3.7, 5.2]], np.float32)
    model = build_model(nodes, {"x": [1, 7]}, {"two": np.asarray(2, np.int64)})
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(_results(model, tmp_path, x), expected)


def test_a_relu_by_where_is_a_relu() -> None:
    """On the edge as well: nothing passes at 0, in either spelling."""
    x = torch.tensor([[-1.0, 0.0, 1.0]])

    class ByWhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            y = x * self.w
            return torch.where(y > 0, y, 0.0) - F.relu(y)

    assert_module_gradients(ByWhere(), (x,))


class Filled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(x > 0, 0.3)


def test_a_number_that_is_filled_in_may_be_rounded() -> None:
    """0.3 is no float32."""
    graph = capture_module(Filled(), torch.tensor([[-1.0, 2.0]]), name="m")
    start = {name: wide(value[0]) for name, value in graph.samples.items()}
    start |= {name: wide(value) for name, value in graph.data.items()}
    allowed = expect_forward(graph, start)[1][graph.outputs[0]]
    assert allowed[0, 1] >= abs(float(np.float32(0.3)) - 0.3)
