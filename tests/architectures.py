"""Well-known architectures in small, as their authors spell them: in-place steps, functional calls,
shapes taken from tensors. They join the models of the end-to-end tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.model_table import Model, model


class EegNet(nn.Module):
    """Temporal, depthwise spatial (two per filter) and separable convolution, with ELU."""

    def __init__(self) -> None:
        super().__init__()
        self.temporal = nn.Conv2d(1, 4, (1, 8), padding="same", bias=False)
        self.spatial = nn.Conv2d(4, 8, (5, 1), groups=4, bias=False)
        self.depth = nn.Conv2d(8, 8, (1, 4), padding=(0, 2), groups=8, bias=False)
        self.point = nn.Conv2d(8, 6, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n, momentum=0.05) for n in (4, 8, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.temporal(x))
        x = F.avg_pool2d(F.elu(self.norms[1](self.spatial(x))), (1, 4))
        x = F.elu(self.norms[2](self.point(self.depth(x))), inplace=True)
        return self.head(torch.flatten(F.avg_pool2d(F.dropout(x, 0.25, False), (1, 4)), 1))


@model
def eegnet() -> Model:
    return EegNet(), (torch.randn(3, 1, 5, 24),)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.GroupNorm(3, 6), nn.ReLU(True))
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.soft = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.out = nn.Conv2d(14, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        b = self.deep(F.max_pool2d(a, 2))
        parts = [a]
        for raised in (self.up(b), self.soft(b)):
            high, wide = a.size(2) - raised.size(2), a.size(3) - raised.size(3)
            parts.append(F.pad(raised, [wide // 2, wide - wide // 2, high // 2, high - high // 2]))
        logits: Tensor = self.out(torch.cat(parts, dim=1))
        return logits


@model
def unet() -> Model:
    return UNet(), (torch.randn(2, 1, 7, 6),)


class Temporal(nn.Module):
    """A block of a TCN: weight norm, padding on both sides, of which the right one is cut off."""

    def __init__(self, channels: int, out: int, dilation: int) -> None:
        super().__init__()
        norm = torch.nn.utils.parametrizations.weight_norm
        self.chomp = 2 * dilation
        options = {"padding": self.chomp, "dilation": dilation}
        self.first = norm(nn.Conv1d(channels, out, 3, **options))
        self.second = nn.Conv1d(out, out, 3, **options)
        self.short = nn.Conv1d(channels, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)[:, :, : -self.chomp].contiguous().relu_()
        y = self.second(y)[..., : -self.chomp]
        y += self.short(x)
        return torch.relu_(y)


class Tcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Temporal(2, 4, 1), Temporal(4, 4, 2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(x)[..., -1])
        return logits


@model
def tcn() -> Model:
    return Tcn(), (torch.randn(2, 2, 11),)


class Inverted(nn.Module):
    def __init__(self, channels: int, gated: bool) -> None:
        super().__init__()
        wide = 2 * channels
        act = nn.Hardswish(inplace=True) if gated else nn.ReLU6(inplace=True)
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide))
        self.depth = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.norm, self.act = nn.BatchNorm2d(wide), act
        self.gate = nn.Sequential(nn.Conv2d(wide, 2, 1), nn.ReLU(True), nn.Conv2d(2, wide, 1))
        self.point, self.gated = nn.Conv2d(wide, channels, 1), gated

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.norm(self.depth(self.act(self.expand(x)))))
        if self.gated:
            y = y * F.hardsigmoid(self.gate(F.adaptive_avg_pool2d(y, 1))).expand_as(y)
        return x + self.point(y)


@model
def mobilenets() -> Model:
    """An inverted residual of the second version and one of the third, in training."""
    layers = [nn.Conv2d(3, 4, 3, 2, 1, bias=False), Inverted(4, False), Inverted(4, True)]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(4, 3))
    return network, (torch.randn(3, 3, 9, 8),)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kinds = [(3, 2), (5, 2), (7, 2), (9, 2), (11, 2)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, g, 3, padding=1, bias=False))
            for n, g in kinds
        )
        self.head = nn.Linear(13, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers:
            maps.append(layer(torch.cat(maps, 1)))
        return self.head(torch.cat(maps, 1).mean([-2, -1]))


@model
def densenet() -> Model:
    return Dense(), (torch.randn(2, 3, 5, 6),)


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, 4, 7, padding=3, groups=4)
        self.norm, self.out = nn.LayerNorm(4, eps=1e-6), nn.Linear(4, 3)
        self.wide, self.narrow = nn.Linear(4, 8), nn.Linear(8, 4)
        self.scale = nn.Parameter(0.1 * torch.ones(4))
        self.weight = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        mean = x.mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + 1e-6)
        x = self.weight[:, None, None] * x
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return self.out((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


@model
def convnext() -> Model:
    return ConvNext(), (torch.randn(2, 3, 8, 10),)


class Shuffles(nn.Module):
    """Blocks to channels and back, by hand and by layer; channels shuffled; a sub-pixel head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(8, 12, 1, groups=2)
        self.apart, self.channels = nn.PixelUnshuffle(2), nn.ChannelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        n, c, h, w = x.shape
        y = x.reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4)
        y = y.reshape(n, c * 4, h // 2, w // 2) + self.apart(x)
        a, b = self.channels(y).chunk(2, dim=1)
        return F.pixel_shuffle(self.mix(torch.cat((b, a), dim=-3)), 2)


@model
def shuffles() -> Model:
    return Shuffles(), (torch.randn(2, 1, 4, 6),)


class Siamese(nn.Module):
    """One network for two inputs, compared by distance, angle and difference."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(4))
        self.head = nn.Linear(16, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        u, v = self.twin(a).flatten(1), self.twin(b).flatten(1)
        far, angle = F.pairwise_distance(u, v), F.cosine_similarity(u, v, dim=1)
        away = (F.normalize(u, dim=1) - F.normalize(v, dim=-1)).abs()
        return self.head(away) + torch.stack([far, angle], 1)


@model
def siamese() -> Model:
    return Siamese(), (torch.randn(3, 2, 11), torch.randn(3, 2, 11))


@model
def style() -> Model:
    """Padding of every mode, and instance norms that track statistics or do not."""
    layers = [nn.ReflectionPad2d((2, 1, 1, 2)), nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3), nn.ReLU()]
    layers += [nn.Conv2d(3, 3, 3, stride=2, padding=1, padding_mode="replicate")]
    layers += [nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.SiLU()]
    layers += [nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"), nn.ConstantPad2d(1, 0.3)]
    layers += [nn.AdaptiveMaxPool2d((3, 2)), nn.Flatten(), nn.Linear(18, 3)]
    return nn.Sequential(*layers), (torch.randn(2, 2, 6, 5),)


class Odd(nn.Module):
    """What a forward pass may contain beside layers: most of the small operations once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.power = nn.Parameter(torch.rand(8) + 1)
        self.register_buffer("steps", torch.arange(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        x += self.steps / 10
        size = (x.abs() + 0.1) ** self.power
        size = size / size.detach().amax(dim=1, keepdim=True)
        x = torch.cumsum(size, 1).flip(-1) + x.roll(1, -1) + torch.logsumexp(x, 1, keepdim=True)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) + (x / 6).prod(
            1, keepdim=True
        )
        x = F.glu(torch.cat([x, x.log_softmax(1)], 1)) + F.softshrink(x, 0.2) + x.std(0)
        x = torch.lerp(x, torch.zeros_like(x), 0.3).clamp_(-1.4, 1.4)
        logits: Tensor = self.head(x) + F.linear(x.narrow(1, 0, 8), self.head.weight)
        return logits


@model
def odd() -> Model:
    return Odd(), (torch.randn(3, 6),)
