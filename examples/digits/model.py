"""A small CNN and two worlds of handwritten digits: upright, and turned.

`gradlet build examples/digits/model.py:pretrained -o D` builds it without the rest of the demo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

SEED = 0
ANGLE = 40.0
"""Degrees by which the device sees the digits turned."""


@dataclass(frozen=True)
class Digits:
    """images [N, 1, 8, 8] from 0 to 1, and their labels [N]."""

    images: Tensor
    labels: Tensor

    def part(self, index: Tensor) -> Digits:
        return Digits(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Worlds:
    """Three parts of one data set; no image is in two of them."""

    upright: Digits
    turned_train: Digits
    turned_test: Digits


def worlds() -> Worlds:
    """Half of scikit-learn's digits as they are; the other half turned, two thirds for training."""
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16.0
    digits = Digits(images, torch.from_numpy(data.target).long())
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    half = len(order) // 2
    cut = half + 2 * (len(order) - half) // 3
    return Worlds(
        digits.part(order[:half]),
        turned(digits.part(order[half:cut])),
        turned(digits.part(order[cut:])),
    )


def turned(digits: Digits, degrees: float = ANGLE) -> Digits:
    """Rotate about the centre, with bilinear interpolation; the background is 0."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(digits.images), 2, 3)
    grid = nn.functional.affine_grid(matrix, list(digits.images.shape), align_corners=False)
    images = nn.functional.grid_sample(digits.images, grid, align_corners=False)
    return Digits(images, digits.labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def pretrain(digits: Digits, epochs: int = 15, batch: int = 32) -> nn.Module:
    """What happens at the maker's, before the device meets the world."""
    torch.manual_seed(SEED)
    module = network()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(epochs):
        for index in torch.randperm(len(digits.labels)).split(batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(digits.images[index]), digits.labels[index])
            loss.backward()
            optimizer.step()
    return module


def pretrained() -> tuple[nn.Module, tuple[Tensor], Tensor]:
    """The module, with turned samples and their labels as golden data."""
    data = worlds()
    golden = data.turned_train.part(torch.arange(8))
    return pretrain(data.upright), (golden.images,), golden.labels
