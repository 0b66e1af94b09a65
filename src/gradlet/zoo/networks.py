"""The networks themselves, in PyTorch, with seeded weights and data of the right shapes.

Batch normalisation is folded into the convolutions and linear layers, as for deployment.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gradlet.zoo import ZooModel

ZOO: dict[str, ZooModel] = {}
SAMPLES = 8


def _zoo(
    name: str, loss: str, shape: tuple[int, ...], classes: int = 0
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register a builder. Inputs are standard normal; no classes means that the target is x."""

    def note(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        def make() -> tuple[Any, Any, Any]:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                module = build()
                x = torch.randn(SAMPLES, *shape)
                y = torch.randint(classes, (SAMPLES,)) if classes else x
            return module, (x,), y

        ZOO[name] = ZooModel(name, (build.__doc__ or "").strip(), loss, make)
        return build

    return note


@_zoo("tutorial-cnn", "cross_entropy", (8, 8, 8), 32)
def tutorial_cnn() -> nn.Module:
    """Conv 8->16 k3 on 8x8, ReLU, FC 576->32: the forerunner's tutorial."""
    return nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 32))


@_zoo("deep-ae", "mse", (640,))
def deep_ae() -> nn.Module:
    """MLPerf Tiny anomaly detection: 640-128-128-128-128-8-128-128-128-128-640."""
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640]
    layers: list[nn.Module] = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _conv(n: int, m: int, kernel: int | tuple[int, int], stride: int = 1, **kw: Any) -> nn.Module:
    return nn.Sequential(nn.Conv2d(n, m, kernel, stride, **kw), nn.ReLU())


@_zoo("ds-cnn", "cross_entropy", (1, 49, 10), 12)
def ds_cnn() -> nn.Module:
    """MLPerf Tiny keyword spotting: conv 10x4 stride 2, four depthwise-separable blocks of 64."""
    layers = [nn.ZeroPad2d((1, 1, 4, 5)), _conv(1, 64, (10, 4), 2)]
    for _ in range(4):
        layers += [_conv(64, 64, 3, padding=1, groups=64), _conv(64, 64, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12))


class _Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, 1x1 where the shape changes."""

    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(n, m, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(m, m, 3, padding=1)
        self.shortcut = nn.Identity() if n == m else nn.Conv2d(n, m, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.conv2(self.conv1(x)) + self.shortcut(x))
        return y


@_zoo("resnet8", "cross_entropy", (3, 32, 32), 10)
def resnet8() -> nn.Module:
    """MLPerf Tiny image classification: three residual stacks of 16, 32 and 64 channels."""
    return nn.Sequential(
        _conv(3, 16, 3, padding=1),
        _Residual(16, 16, 1),
        _Residual(16, 32, 2),
        _Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


@_zoo("mobilenet-v1-025", "cross_entropy", (3, 96, 96), 2)
def mobilenet_v1_025() -> nn.Module:
    """MLPerf Tiny visual wake words: MobileNetV1 of width 0.25 on 96x96."""
    plan = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)]
    plan += [(128, 1)] * 5 + [(256, 2), (256, 1)]
    layers, n = [_conv(3, 8, 3, 2, padding=1)], 8
    for m, stride in plan:
        layers += [_conv(n, n, 3, stride, padding=1, groups=n), _conv(n, m, 1)]
        n = m
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 2))


class _LastOutput(nn.Module):
    """A recurrent layer and a classifier on what it has seen at the end."""

    def __init__(self, layer: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(x)[0][:, -1])
        return logits


@_zoo("gru-kws", "cross_entropy", (49, 10), 12)
def gru_kws() -> nn.Module:
    """Keyword spotting on 49 frames of 10 MFCCs: one GRU of 154 units, as in 'Hello Edge'."""
    return _LastOutput(nn.GRU(10, 154, batch_first=True), 154, 12)


@_zoo("rnn-har", "cross_entropy", (128, 9), 6)
def rnn_har() -> nn.Module:
    """Human activities from 128 readings of 9 inertial channels: two plain recurrent layers."""
    return _LastOutput(nn.RNN(9, 32, num_layers=2, batch_first=True), 32, 6)


class _CompactTransformer(nn.Module):
    """Tokens from convolutions, encoder layers, and a learnt mean over the tokens."""

    def __init__(self, width: int, tokens: int, layers: int, heads: int, classes: int) -> None:
        super().__init__()
        self.tokenizer = nn.Sequential(
            nn.Conv2d(3, width // 2, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(width // 2, width, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            nn.Flatten(2),
        )
        self.position = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        block = nn.TransformerEncoderLayer(
            width, heads, width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 1)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokenizer(x).transpose(1, 2) + self.position
        tokens = self.norm(self.blocks(tokens))
        shares = self.attention(tokens).softmax(dim=1)
        logits: Tensor = self.head((shares.transpose(1, 2) @ tokens).squeeze(1))
        return logits


@_zoo("cct-tiny", "cross_entropy", (3, 32, 32), 10)
def cct_tiny() -> nn.Module:
    """Compact convolutional transformer on 32x32: 64 tokens of 64, two layers of two heads."""
    return _CompactTransformer(width=64, tokens=64, layers=2, heads=2, classes=10)
