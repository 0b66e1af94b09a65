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
