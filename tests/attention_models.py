"""Transformers and their parts for the end-to-end tests, in all the ways that PyTorch has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.model_table import Model, model


def _stirred(module: nn.Module) -> nn.Module:
    """Biases that are not 0 and norms that are not 1, or a lost one would go unseen."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return module


class Pixels(nn.Module):
    """A vision transformer: patches, class token, learned positions, encoder, head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 7, 8))
        layer = nn.TransformerEncoderLayer(
            8, 2, 12, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        logits: Tensor = self.head(self.encoder(x)[:, 0])
        return logits


@model
def vision_transformer() -> Model:
    return _stirred(Pixels()), (torch.randn(2, 1, 12, 8),)


@model
def post_norm_encoder() -> Model:
    """As PyTorch has it by default: norms after, ReLU, the sequence first; in eval mode."""
    layer = nn.TransformerEncoderLayer(6, 3, 10, dropout=0.2)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return _stirred(encoder).eval(), (torch.randn(4, 3, 6),)


class Sentences(nn.Module):
    """A causal language model with a head that is tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        self.places = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.words(ids) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.body(x, mask=mask, is_causal=True)).transpose(1, 2)


@model
def language_model() -> Model:
    ids = torch.randint(0, 11, (2, 6))
    ids[1, 4:] = 0  # padding
    return _stirred(Sentences()), (ids,)


class Heads(nn.Module):
    """Self and cross attention with masks of both kinds, weights asked for, and averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(8, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(8, 4, kdim=5, vdim=3, bias=False)
        self.head = nn.Linear(8, 3)
        blocked = torch.tensor([[False, False, False, True], [False, False, True, True]])
        self.register_buffer("blocked", torch.zeros(2, 4).masked_fill(blocked, -torch.inf))
        self.register_buffer("bias", torch.randn(4, 4).masked_fill(torch.eye(4) > 0, -torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        mask: Any = self.bias
        y, weights = self.own(x, x, x, key_padding_mask=self.blocked, attn_mask=mask)
        x = (x + y).transpose(0, 1)
        z, _ = self.cross(x, x[:3, :, :5], x[:3, :, 5:], need_weights=False)
        logits: Tensor = self.head((x + z).mean(0)) + weights.amax(1)[:, :3]
        return logits


@model
def attention_heads() -> Model:
    return _stirred(Heads()), (torch.randn(2, 4, 8),)


class HandMade(nn.Module):
    """Attention as tutorials write it: one projection, triangular masks, einsum, where."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(6, 18)
        self.register_buffer("lower", torch.tril(torch.ones(5, 5)))
        self.near = nn.Parameter(torch.randn(2, 5, 5))
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.all(x).view(b, t, 3, 2, 3).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * 3**-0.5 + self.near
        y = scores.masked_fill(self.lower == 0, float("-inf")).softmax(-1) @ v
        y = y + F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        y = y + F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], attn_mask=self.near)
        far = torch.where(torch.arange(t)[:, None] >= torch.arange(t), 0.0, -1e9)
        y = y + torch.where(self.lower.bool(), q @ k.transpose(2, 3), far).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, 6)).mean(1)


@model
def hand_made_attention() -> Model:
    return HandMade(), (torch.randn(2, 5, 6),)


@model
def dropout_net() -> Model:
    """Dropout of every kind, in training."""
    layers = [nn.Conv2d(1, 4, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten()]
    layers += [nn.Linear(48, 9), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.0), nn.Linear(9, 3)]
    return nn.Sequential(*layers), (torch.randn(3, 1, 6, 5),)


@model
def dropout_transformer() -> Model:
    """Dropout inside of attention, which is no layer of its own."""
    return Pixels(0.2), (torch.randn(2, 1, 12, 8),)
