"""Attention as PyTorch's functions and layers have it: in training and in eval mode, with every
kind of mask; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradlet.api import training_graph
from gradlet.errors import GradletError
from gradlet.frontends.capture import Captured
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.ops.mask import BLOCKED
from gradlet.oracle.interpreter import run_reference


def check(module: nn.Module, *inputs: Tensor) -> Graph:
    """Capture compares the outputs; here every gradient of a weight is compared with autograd."""
    graph = capture_module(module, inputs, name="m")
    training = training_graph(Captured(graph), Recipe(loss="mse"))
    step = next(iter(run_reference(training, 1)))
    wide = module.double()
    output = wide(*(x.double() for x in inputs))
    target = torch.from_numpy(training.samples["target"][0]).double()
    F.mse_loss(output, target).backward()
    gradients = dict(training.grads)
    for name, parameter in wide.named_parameters():
        if name in gradients:
            actual, expected = step.values[gradients[name]], parameter.grad.numpy()
            scale = max(np.abs(expected).max(), 1e-6)
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * scale)
        else:
            assert parameter.grad is None or not parameter.grad.any()
    return graph


class Scaled(nn.Module):
    """The function on projections of different lengths, with options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.query, self.key = nn.Linear(6, 6), nn.Linear(6, 6)
        self.options = options

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q = self.query(x).unflatten(-1, (2, 3)).transpose(1, 2)
        k = self.key(y).unflatten(-1, (2, 3)).transpose(1, 2)
        options = {
            name: o.to(x.dtype) if isinstance(o, Tensor) and o.is_floating_point() else o
            for name, o in self.options.items()
        }
        return F.scaled_dot_product_attention(q, k, k.relu(), **options)


TRIANGLE = torch.ones(5, 7, dtype=torch.bool).tril(2)
MASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.7},
    "causal": {"is_causal": True},
    "booleans": {"attn_mask": TRIANGLE},
    "booleans of a batch": {"attn_mask": torch.rand(2, 1, 5, 7) > torch.tensor([0.0, *[0.5] * 6])},
    "all take part": {"attn_mask": torch.ones(5, 7, dtype=torch.bool)},
    "numbers": {"attn_mask": torch.linspace(-2, 2, 35).view(5, 7)},
    "numbers and infinity": {
        "attn_mask": torch.linspace(-2, 2, 35).view(5, 7).masked_fill(~TRIANGLE, -torch.inf)
    },
    "infinity alone": {"attn_mask": torch.zeros(5, 7).masked_fill(~TRIANGLE, -torch.inf)},
    "very low": {"attn_mask": torch.zeros(5, 7).masked_fill(~TRIANGLE, -1e9)},
    "lowest": {
        "attn_mask": torch.zeros(5, 7).masked_fill(~TRIANGLE, torch.finfo(torch.float32).min)
    },
    "probability 0": {"dropout_p": 0.0},
}


@pytest.mark.parametrize("case", MASKS)
def test_scaled_dot_product(case: str) -> None:
    graph = check(Scaled(**MASKS[case]), torch.randn(2, 5, 6), torch.randn(2, 7, 6))
    fills = [node for node in graph.nodes if node.op == "masked_fill"]
    blocked = ("causal", "booleans", "booleans of a batch", "numbers and infinity")
    assert bool(fills) == (case in (*blocked, "infinity alone", "lowest"))
    assert all(node.attrs["value"] == BLOCKED for node in fills)


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(4, 4)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, self.key(k), k, enable_gqa=True)


def test_heads_that_share_keys() -> None:
    check(Grouped(), torch.randn(2, 6, 3, 4), torch.randn(2, 2, 5, 4))


class Attention(nn.Module):
    def __init__(self, own: bool, options: dict[str, Any], call: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.attention = nn.MultiheadAttention(6, 2, **options)
        self.own, self.call = own, call

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        other = x if self.own else y
        result, weights = self.attention(x, other, other, **self.call)
        return result if weights is None else result.sum() + weights


LAYERS: dict[str, tuple[bool, dict[str, Any], dict[str, Any]]] = {
    "self": (True, {"batch_first": True}, {"need_weights": False}),
    "self with weights": (True, {"batch_first": True}, {}),
    "sequence first": (True, {}, {"need_weights": False}),
    "weights of each head": (True, {}, {"average_attn_weights": False}),
    "cross": (False, {"batch_first": True}, {"need_weights": False}),
    "cross with weights, no bias": (False, {"bias": False, "batch_first": True}, {}),
    "causal": (
        True,
        {"batch_first": True},
        {
            "attn_mask": nn.Transformer.generate_square_subsequent_mask(4),
            "is_causal": True,
            "need_weights": False,
        },
    ),
    "padding": (
        False,
        {"batch_first": True},
        {"key_padding_mask": torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]) > 0},
    ),
    "both masks": (
        True,
        {"batch_first": True},
        {
            "key_padding_mask": torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 1]]) > 0,
            "attn_mask": torch.ones(4, 4).triu(1) > 0,
            "need_weights": False,
        },
    ),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", LAYERS)
def test_multihead_attention(case: str, training: bool) -> None:
    module = Attention(*LAYERS[case]).train(training)
    check(module, torch.randn(3, 4, 6), torch.randn(3, 5, 6))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(activation: str, before: bool, training: bool, frozen: bool) -> None:
    """Frozen and in eval mode PyTorch would take its fused short cut."""
    layer = nn.TransformerEncoderLayer(
        6, 2, 7, 0.0, activation, batch_first=True, norm_first=before
    )
    module = nn.Sequential(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
    module.append(nn.Linear(6, 2))
    module[0].requires_grad_(not frozen)
    graph = capture_module(module.train(training), (torch.randn(2, 3, 6),), name="m")
    assert {"softmax", "normalize", "gelu" if activation == "gelu" else "relu"} <= {
        node.op for node in graph.nodes
    }
    if not frozen:
        check(module, torch.randn(2, 3, 6))


def test_decoder_and_whole_transformer() -> None:
    torch.manual_seed(3)
    model = nn.Transformer(4, 2, 1, 1, 6, 0.0, batch_first=True)
    check(model, torch.randn(2, 3, 4), torch.randn(2, 5, 4))


def test_equal_masks_are_stored_once() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 7, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(x.dtype)
            result: Tensor = self.encoder(x, mask=mask)
            return result

    graph = check(Causal(), torch.randn(2, 4, 6))
    masks = [t.shape for t in graph.of_role("const")]
    assert masks == [(4, 4)]
    assert sum(node.op == "masked_fill" for node in graph.nodes) == 3


class Chosen(nn.Module):
    """where, masked_fill, triangles: on data, on weights, and between two tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.w = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("even", torch.arange(16).view(4, 4) % 2 == 0)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.w.tril(-1) + x @ self.w.triu(1)
        y = torch.where(self.even, y, x * self.w) + torch.where(self.even[:1], 0.5, y)
        y = y.masked_fill(self.even[:, :1], 2.0) * torch.where(self.even, self.w, self.w.exp())
        return y + y.masked_fill(~self.even, -torch.inf).amax(-1, keepdim=True)


def test_choices_by_constants() -> None:
    check(Chosen(), torch.randn(3, 4, 4))


def _refused(build: Callable[[], nn.Module], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(GradletError, match=message):
        capture_module(build(), (torch.randn(shape),), name="m")


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(3, 3, dtype=torch.bool)
        mask[1] = False
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


class NothingByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        blocked = torch.tensor([[True, True, True], [False, True, False], [False, False, False]])
        return (x @ x.mT).masked_fill(blocked, -torch.inf).softmax(-1)


def test_refusals() -> None:
    _refused(Nothing, (1, 3, 4), "a row in which nothing takes part")
    _refused(NothingByHand, (1, 3, 4), "gives NaN or infinity on its own example inputs")
