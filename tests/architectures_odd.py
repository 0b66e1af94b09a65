"""Architectures with sizes that divide by nothing: odd channels, lengths, heads and steps, so that
every loop has a rest and most rows begin at no multiple of anything (bench/golden_programs.py)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

Model = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Electrodes(nn.Module):
    """EEGNet's way: filters in time, across electrodes, then both apart."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Conv2d(1, 5, (1, 17), padding=(0, 8), bias=False)
        self.space = nn.Conv2d(5, 10, (9, 1), groups=5, bias=False)
        self.apart = nn.Conv2d(10, 10, (1, 7), padding=(0, 3), groups=10, bias=False)
        self.point = nn.Conv2d(10, 11, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(5), nn.BatchNorm2d(10), nn.BatchNorm2d(11)])
        self.head = nn.Linear(11 * 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](self.time(x))
        x = F.avg_pool2d(F.elu(self.norms[1](self.space(x))), (1, 3))
        x = F.avg_pool2d(F.elu(self.norms[2](self.point(self.apart(x)))), (1, 5))
        logits: torch.Tensor = self.head(x.flatten(1))
        return logits


class NextBlock(nn.Module):
    """ConvNeXt's block: depthwise 7x7, norm over channels, an MLP, a scale, the input added."""

    def __init__(self, channels: int = 9) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 2, 2)
        self.depth = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 31), nn.Linear(31, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.3))
        self.head = nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.gamma * self.narrow(F.gelu(self.wide(y)))
        logits: torch.Tensor = self.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))
        return logits


class Cells(nn.Module):
    """An LSTM cell, step by step, and a GRU backwards over what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(5, 13)
        self.back = nn.GRU(13, 7, batch_first=True)
        self.head = nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], 13)
        said = []
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
            said.append(h)
        back, _ = self.back(torch.stack(said, 1).flip(1))
        logits: torch.Tensor = self.head(torch.cat([h, back[:, -1]], 1))
        return logits


class Causal(nn.Module):
    """Words with places, three heads of five, nobody looks ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(23, 15), nn.Parameter(torch.randn(11, 15) * 0.1)
        self.first, self.second = nn.LayerNorm(15), nn.LayerNorm(15)
        self.inner, self.outer = nn.Linear(15, 45), nn.Linear(15, 15)
        self.mlp = nn.Sequential(nn.Linear(15, 37), nn.SiLU(), nn.Linear(37, 15))
        self.head = nn.Linear(15, 23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x) + self.places
        q, k, v = self.inner(self.first(x)).unflatten(-1, (3, 3, 5)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outer(y.transpose(1, 2).flatten(2))
        x = x + self.mlp(self.second(x))
        logits: torch.Tensor = self.head(x.mean(1))
        return logits


class Ranked(nn.Module):
    """The largest, sorted, and running sums of what convolutions in time give."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv1d(3, 7, 5, stride=2, padding=2)
        self.far = nn.Conv1d(7, 11, 3, dilation=4)
        self.norm = nn.GroupNorm(1, 11)
        self.head = nn.Linear(11 * 4 + 11, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.far(F.leaky_relu(self.near(x), 0.2)))
        top = x.topk(3, dim=-1).values
        low = x.sort(dim=-1).values[..., :1]
        total = x.cumsum(-1)[..., 6]
        logits: torch.Tensor = self.head(torch.cat([top.flatten(1), low.flatten(1), total], 1))
        return logits


class Grown(nn.Module):
    """From few numbers to a map: transposed convolutions with rests, shuffled pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(7, 6 * 3 * 5)
        self.grow = nn.ConvTranspose2d(6, 5, 3, stride=2, padding=1, output_padding=(1, 0))
        self.more = nn.ConvTranspose2d(5, 8, (4, 3), stride=(2, 1), dilation=(1, 2))
        self.last = nn.Conv2d(2, 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.start(x)).view(-1, 6, 3, 5)
        x = F.hardswish(self.more(F.relu(self.grow(x))))
        image: torch.Tensor = self.last(F.pixel_shuffle(x, 2))
        return image.mean((2, 3))


def _depths() -> Model:
    layers: list[nn.Module] = [nn.Conv2d(3, 7, 3, 2, 1)]
    for kernel, stride in ((3, 1), (5, 2), (3, 2)):
        layers += [nn.Conv2d(7, 7, kernel, stride, kernel // 2, groups=7), nn.PReLU(7)]
        layers += [nn.Conv2d(7, 7, 1), nn.GroupNorm(7, 7), nn.ReLU6()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 5)]
    return nn.Sequential(*layers, *head), (torch.randn(2, 3, 27, 21),)


def _volumes() -> Model:
    module = nn.Sequential(
        nn.Conv3d(1, 3, 3, padding=1),
        nn.BatchNorm3d(3),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(3, 5, (1, 3, 3), stride=(1, 2, 1)),
        nn.Softplus(),
        nn.Flatten(),
        nn.Linear(5 * 3 * 1 * 3, 4),
    )
    return module, (torch.randn(2, 1, 7, 9, 11),)


def _primes() -> Model:
    sizes = (61, 53, 47, 43, 7)
    layers: list[nn.Module] = []
    for one, other in pairwise(sizes):
        layers += [nn.Linear(one, other), nn.Mish()]
    return nn.Sequential(*layers[:-1]), (torch.randn(3, 61),)


MODELS: dict[str, Callable[[], Model]] = {
    "electrodes": lambda: (Electrodes(), (torch.randn(2, 1, 9, 61),)),
    "next_block": lambda: (NextBlock(), (torch.randn(2, 3, 26, 22),)),
    "cells": lambda: (Cells(), (torch.randn(2, 7, 5),)),
    "causal": lambda: (Causal(), (torch.randint(0, 23, (2, 11)),)),
    "ranked": lambda: (Ranked(), (torch.randn(2, 3, 37),)),
    "grown": lambda: (Grown(), (torch.randn(2, 7),)),
    "depths": _depths,
    "volumes": _volumes,
    "primes": _primes,
}
