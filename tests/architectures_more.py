"""Further architectures in small, each with something that the others have not; larger than those
of the unit tests, so that little L1 makes them run tile by tile (bench/golden_programs.py)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = tuple[nn.Module, tuple[Tensor, ...]]


class Patches(nn.Module):
    """A vision transformer of one block: patches, two heads, GELU, a mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, stride=4)
        self.place = nn.Parameter(torch.randn(1, 16, 24) * 0.02)
        self.first, self.second = nn.LayerNorm(24), nn.LayerNorm(24)
        self.mix = nn.MultiheadAttention(24, 2, batch_first=True)
        self.wide, self.narrow = nn.Linear(24, 48), nn.Linear(48, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.place
        y = self.first(x)
        x = x + self.mix(y, y, y, need_weights=False)[0]
        x = x + self.narrow(F.gelu(self.wide(self.second(x))))
        logits: Tensor = self.head(x.mean(1))
        return logits


class Mixer(nn.Module):
    """Across tokens, then across channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, stride=4)
        self.tokens = nn.Sequential(nn.Linear(36, 24), nn.GELU(), nn.Linear(24, 36))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norms[1](x))
        logits: Tensor = self.head(x.mean(1))
        return logits


class Fire(nn.Module):
    """Squeeze, then 1x1 and 3x3 side by side."""

    def __init__(self, inside: int, squeezed: int, each: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inside, squeezed, 1)
        self.small = nn.Conv2d(squeezed, each, 1)
        self.large = nn.Conv2d(squeezed, each, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.small(x)), F.relu(self.large(x))], 1)


class Inverted(nn.Module):
    """Expand, depthwise with a stride, squeeze and excite, project; a residual where it fits."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        wide = 3 * inside
        self.expand = nn.Sequential(nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide))
        depth = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.depth = nn.Sequential(depth, nn.BatchNorm2d(wide))
        self.gate = nn.Sequential(nn.Linear(wide, 6), nn.ReLU(), nn.Linear(6, wide), nn.Sigmoid())
        self.project = nn.Conv2d(wide, outside, 1)
        self.same = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.expand(x))
        y = F.hardswish(self.depth(y))
        y = y * self.gate(y.mean((2, 3)))[:, :, None, None]
        y = self.project(y)
        return x + y if self.same else y


class Highway(nn.Module):
    """A recurrent layer over features that convolutions make, with a gate beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv1d(8, 20, 5, padding=2)
        self.recur = nn.LSTM(20, 24, batch_first=True)
        self.carry = nn.Linear(24, 24)
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.features(x)).transpose(1, 2)
        last = self.recur(x)[0][:, -1]
        gate = torch.sigmoid(self.carry(last))
        logits: Tensor = self.head(gate * last + (1 - gate) * last.abs())
        return logits


def _fire() -> Model:
    layers = [nn.Conv2d(3, 12, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2), Fire(12, 6, 12)]
    layers += [Fire(24, 8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)]
    return nn.Sequential(*layers), (torch.randn(2, 3, 33, 33),)


def _inverted() -> Model:
    layers = [nn.Conv2d(3, 8, 3, 2, 1), Inverted(8, 8, 1), Inverted(8, 12, 2)]
    return (
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)),
        (torch.randn(2, 3, 28, 28),),
    )


def _wide() -> Model:
    """Much larger fully connected layers than L1 holds."""
    layers = [nn.Linear(200, 160), nn.Tanh(), nn.Linear(160, 90), nn.ELU(), nn.Linear(90, 7)]
    return nn.Sequential(nn.Flatten(), *layers), (torch.randn(3, 200),)


def _big_kernels() -> Model:
    layers = [nn.Conv2d(2, 6, 7, 2, 3), nn.LeakyReLU(0.1), nn.Conv2d(6, 9, (5, 3), padding=(2, 1))]
    layers += [nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(9 * 7 * 5, 6)]
    return nn.Sequential(*layers), (torch.randn(2, 2, 28, 20),)


def _grouped() -> Model:
    layers = [nn.Conv2d(8, 16, 3, 1, 1, groups=4), nn.GroupNorm(4, 16), nn.SiLU()]
    layers += [
        nn.Conv2d(16, 16, 3, 1, 2, dilation=2, groups=16),
        nn.InstanceNorm2d(16, affine=True),
    ]
    layers += [nn.ReLU6(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 36, 5)]
    return nn.Sequential(*layers), (torch.randn(2, 8, 12, 12),)


def _patch_stem() -> Model:
    layers = [nn.Conv2d(3, 8, 4, 4), nn.Flatten(), nn.Linear(512, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 4)), (torch.randn(2, 3, 32, 32),)


def _decoder() -> Model:
    layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU()]
    layers += [nn.ConvTranspose2d(12, 8, 3, 2, 1, output_padding=1), nn.ReLU()]
    layers += [nn.Conv2d(8, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers), (torch.randn(2, 1, 26, 26),)


def _lines() -> Model:
    layers: list[nn.Module] = [nn.Conv1d(6, 16, 9, stride=2), nn.BatchNorm1d(16), nn.ReLU()]
    layers += [nn.Conv1d(16, 24, 5, dilation=2), nn.PReLU(24), nn.AdaptiveMaxPool1d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 8)), (torch.randn(2, 6, 96),)


MODELS: dict[str, Callable[[], Model]] = {
    "patches": lambda: (Patches(), (torch.randn(2, 3, 16, 16),)),
    "mixer": lambda: (Mixer(), (torch.randn(2, 3, 24, 24),)),
    "fire": _fire,
    "inverted": _inverted,
    "highway": lambda: (Highway(), (torch.randn(2, 8, 30),)),
    "wide": _wide,
    "big_kernels": _big_kernels,
    "grouped": _grouped,
    "patch_stem": _patch_stem,
    "decoder": _decoder,
    "lines": _lines,
}
