"""Models that say much about the order of dimensions: each has something to trip over."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = tuple[nn.Module, tuple[Tensor, ...]]
LAYOUT_MODELS: dict[str, Callable[[], Model]] = {}
TRANSPOSES: dict[str, int] = {}


def model(transposes: int) -> Callable[[Callable[[], Model]], Callable[[], Model]]:
    """Register a builder; in hwc its forward pass has so many transposes."""

    def note(build: Callable[[], Model]) -> Callable[[], Model]:
        def seeded() -> Model:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return build()

        LAYOUT_MODELS[build.__name__] = seeded
        TRANSPOSES[build.__name__] = transposes
        return seeded

    return note


class UNet(nn.Module):
    """Down by pooling, up by a transposed convolution and by interpolation, joined by channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.wide = nn.Conv2d(6, 2, 1)
        self.head = nn.Conv2d(10, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.relu(self.stem(x))
        low = torch.relu(self.down(F.max_pool2d(skip, 2)))
        grown = F.interpolate(self.wide(low), scale_factor=2, mode="bilinear")
        y: Tensor = self.head(torch.cat([skip, self.up(low), grown], dim=1))
        return y


@model(transposes=0)
def unet() -> Model:
    return UNet(), (torch.randn(2, 3, 8, 6),)


class Decoder(nn.Module):
    """Flattened maps into a product, and maps out of one."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.code = nn.Linear(18, 4)
        self.grow = nn.Linear(4, 18)
        self.up = nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        code = torch.tanh(self.code(torch.relu(self.down(x)).flatten(1)))
        y: Tensor = self.up(torch.relu(self.grow(code)).reshape(-1, 3, 3, 2))
        return y


@model(transposes=0)
def decoder() -> Model:
    return Decoder(), (torch.randn(3, 2, 5, 4),)


class Gates(nn.Module):
    """Squeeze and excite, parameters by channel and by place, slopes, softmax over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3)
        self.squeeze, self.excite = nn.Linear(4, 2), nn.Linear(2, 4)
        self.gain = nn.Parameter(torch.rand(1, 4, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.randn(4, 1, 1))
        self.place = nn.Parameter(torch.randn(4, 5, 4))
        self.column = nn.Parameter(torch.randn(4))
        self.slope, self.norm = nn.PReLU(4), nn.LayerNorm([4, 5, 4])
        self.last = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.stem(x))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean(dim=(2, 3))))))
        x = x * gate[:, :, None, None] * self.gain + self.shift
        x = self.norm(x + self.place * self.column)
        x = x * x.softmax(dim=1) - x.amax(dim=1, keepdim=True) + x.var(dim=1, keepdim=True)
        y: Tensor = self.last(x - self.shift.expand(2, 4, 5, 4))
        return y.mean(dim=(2, 3))


@model(transposes=0)
def gates() -> Model:
    return Gates(), (torch.randn(2, 2, 7, 6),)


class NextBlock(nn.Module):
    """Norm and products over channels that the model itself puts last, and back again."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.norm = nn.LayerNorm(4)
        self.wide, self.narrow = nn.Linear(4, 6), nn.Linear(6, 4)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.mix(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)
        z: Tensor = self.head(x + y)
        return z.flatten(2).transpose(1, 2).mean(dim=1)


@model(transposes=0)
def next_block() -> Model:
    return NextBlock(), (torch.randn(2, 4, 5, 3),)


class Shuffle(nn.Module):
    """Channels in groups that are dealt out anew, and pixels made of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, groups=1, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, groups=2, padding=1)
        self.last = nn.Conv2d(2, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        n, _, h, w = x.shape
        x = self.grouped(x.reshape(n, 2, 4, h, w).transpose(1, 2).reshape(n, 8, h, w))
        a, b = F.pixel_shuffle(x, 2).chunk(2, dim=1) if x.shape[1] > 8 else (x[:, :4], x[:, 4:])
        x = F.pad(a * b, (1, 0, 0, 2))
        y: Tensor = self.last(x.reshape(n, 2, 2, h + 2, w + 1).sum(dim=2))
        return y


@model(transposes=1)
def shuffle() -> Model:
    return Shuffle(), (torch.randn(2, 3, 4, 4),)


class Readers(nn.Module):
    """One flattened map with several readers, some of which need the model's own order."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 3, 2)
        self.left, self.right = nn.Linear(36, 4), nn.Linear(36, 4, bias=False)
        self.short = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.tanh(self.stem(x).flatten(1))
        y: Tensor = self.left(flat) + self.right(torch.relu(flat)) + self.short(flat[:, ::3])
        return y


@model(transposes=1)
def readers() -> Model:
    return Readers(), (torch.randn(2, 2, 5, 4),)


class Shared(nn.Module):
    """A kernel that is read twice, once by a product; weights that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 3, 2, 2))
        self.gain = nn.Parameter(torch.rand(4, 1, 1, 1) + 0.5)
        self.offset = nn.Parameter(torch.randn(4, 3, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(x, self.kernel) + F.conv2d(x, self.gain * self.offset)
        y = torch.relu(y).mean(dim=(2, 3))
        z: Tensor = y @ self.kernel.flatten(1)
        return z


@model(transposes=1)
def shared() -> Model:
    return Shared(), (torch.randn(2, 3, 4, 5),)


class Dropping(nn.Module):
    """Dropout of elements and of channels, on maps and on what was flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3)
        self.body = nn.Sequential(nn.Dropout2d(0.4), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(24, 3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(self.stem(x)))
        return y


@model(transposes=0)
def dropping() -> Model:
    return Dropping().train(), (torch.randn(2, 2, 5, 4),)


class Listening(nn.Module):
    """Convolutions over time, then steps of a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU())
        self.pool = nn.MaxPool1d(2)
        self.gru = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.gru(self.pool(self.stem(x)).transpose(1, 2))
        y: Tensor = steps[:, -1]
        return y


@model(transposes=0)
def listening() -> Model:
    return Listening(), (torch.randn(2, 3, 8),)


class TwoImages(nn.Module):
    """An image for convolutions, and one that only a product sees, as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.flat = nn.Conv2d(2, 3, 3), nn.Linear(24, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        y: Tensor = self.conv(2 * a - 1).amax(dim=(2, 3)) + self.flat(b.flatten(1))
        return y


@model(transposes=0)
def two_images() -> Model:
    return TwoImages(), (torch.randn(2, 2, 4, 5), torch.randn(2, 2, 4, 3))


class LastFirst(nn.Module):
    """A model whose own images have their channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return y.mean(dim=(1, 2))


@model(transposes=0)
def last_first() -> Model:
    return LastFirst(), (torch.randn(2, 5, 4, 3),)


@model(transposes=0)
def one_channel() -> Model:
    """Maps of one channel, or of one pixel, lie alike in both layouts."""
    layers = [nn.Conv2d(1, 1, 3), nn.ReLU(), nn.Flatten(), nn.Unflatten(1, (6, 1, 1))]
    layers += [nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(4, 3)]
    return nn.Sequential(*layers), (torch.randn(2, 1, 4, 5),)


class SharedBias(nn.Module):
    """One bias for a layer that makes a map and for one that reads it, and one that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 24, bias=False), nn.Linear(24, 24, bias=False)
        self.bias, self.more = nn.Parameter(torch.randn(24)), nn.Parameter(torch.randn(24, 2))
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.first.weight, self.bias).reshape(-1, 4, 2, 3)
        y = F.linear(self.conv(y).flatten(1), self.last.weight, self.bias).reshape(-1, 4, 2, 3)
        return F.linear(self.conv(y).flatten(1), self.first.weight.t(), self.more.sum(-1)[:5])


@model(transposes=4)
def shared_bias() -> Model:
    return SharedBias(), (torch.randn(2, 5),)
