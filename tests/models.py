"""PyTorch models for end-to-end tests: small, odd, and each with something to trip over."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import tests.architectures
import tests.attention_models  # noqa: F401
from tests.model_table import MODELS, Model, model

__all__ = ["MODELS", "Model"]


@model
def lenet() -> Model:
    layers = [nn.Conv2d(1, 4, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3)]
    layers += [nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 10), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(10, 5)), (torch.randn(3, 1, 16, 16),)


class Residual(nn.Module):
    """A tensor with three readers, a 1x1 shortcut with stride, and a global mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.body = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.down = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.short = nn.Conv2d(4, 6, 1, stride=2)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.body(x) + x
        x = torch.relu(self.down(x) + self.short(x))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


@model
def residual() -> Model:
    return Residual(), (torch.randn(2, 3, 9, 7),)


class Tied(nn.Module):
    """One weight used twice, once transposed, and a bias that is shared as well."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.inner.weight
        self.again.bias = self.inner.bias
        self.offset = nn.Parameter(torch.randn(6))
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inner(x)) + self.offset + self.shift
        y: Tensor = self.again(x) @ self.inner.weight.t()
        return y


@model
def tied() -> Model:
    return Tied(), (torch.randn(4, 6),)


class Tokens(nn.Module):
    """Three-dimensional linear layers, transposes and batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(5, 5)
        self.channel = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        scores = x @ x.transpose(1, 2)
        x = scores @ torch.relu(self.channel(x))
        return self.head(x).flatten(0, 1)


@model
def tokens() -> Model:
    return Tokens(), (torch.randn(2, 5, 8),)


@model
def asymmetric() -> Model:
    layers = [nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(2, 3, (4, 3), (2, 1)), nn.ReLU()]
    layers += [nn.Conv2d(3, 3, 2, padding="same", dilation=(1, 2)), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 4)), (torch.randn(2, 2, 7, 6),)


@model
def segmentation() -> Model:
    """Class scores per pixel: cross-entropy over [N, C, H, W]."""
    layers = [nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 3, 1)]
    return nn.Sequential(*layers), (torch.randn(2, 2, 6, 5),)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 6)
        self.right = nn.Linear(3, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.left(a) + self.right(b)))
        return logits


@model
def two_inputs() -> Model:
    return TwoInputs(), (torch.randn(3, 4), torch.randn(3, 3))


@model
def single_neuron() -> Model:
    return nn.Linear(1, 2), (torch.randn(1, 1),)


@model
def temporal() -> Model:
    """Causal, dilated convolutions over one dimension, as in a TCN."""
    layers = [nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(3, 6, 3, dilation=2), nn.ReLU()]
    layers += [
        nn.Conv1d(6, 6, 3, padding="same", groups=6),
        nn.Conv1d(6, 4, 2, stride=2),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(20, 3)), (torch.randn(2, 3, 10),)


@model
def autoencoder() -> Model:
    """Down by strides and up again by transposed convolutions, in two dimensions."""
    layers = [nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU()]
    layers += [nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=2)]
    layers += [nn.ReLU(), nn.ConvTranspose2d(4, 3, 2, dilation=2)]
    return nn.Sequential(*layers), (torch.randn(2, 2, 6, 8),)


@model
def waves() -> Model:
    layers = [nn.Conv1d(2, 4, 4, stride=2), nn.ReLU(), nn.ConvTranspose1d(4, 3, 5, stride=2)]
    return nn.Sequential(*layers), (torch.randn(2, 2, 11),)


class Pyramid(nn.Module):
    """Pooling of every kind, and planes of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.mean = nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)
        self.top = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.head = nn.Linear(3 * 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        small = nn.functional.interpolate(self.mean(x), (5, 4), mode="bilinear")
        wide = nn.functional.interpolate(self.top(x), scale_factor=2)
        flat = nn.functional.adaptive_avg_pool2d(wide, (5, 4)) + small
        logits: Tensor = self.head(nn.functional.adaptive_avg_pool2d(flat, (3, 2)).flatten(1))
        return logits


@model
def pyramid() -> Model:
    return Pyramid(), (torch.randn(2, 1, 10, 9),)


class Signals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 4, 3)
        self.down = nn.Sequential(nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(2, ceil_mode=True))
        self.up = nn.Upsample(scale_factor=2, mode="linear", align_corners=True)
        self.mean, self.top = nn.AdaptiveAvgPool1d(3), nn.AdaptiveMaxPool1d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.down(self.stem(x)))
        y: Tensor = (self.mean(x) + self.top(x)).flatten(1)
        return y


@model
def signals() -> Model:
    return Signals(), (torch.randn(2, 2, 15),)


class Norms(nn.Module):
    """Every norm in training, batch norm on images and on rows, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(6), nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)]
        norms += [nn.LayerNorm([4, 3]), nn.RMSNorm(3), nn.InstanceNorm2d(6)]
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.norms = nn.Sequential(*norms)
        self.rows = nn.Sequential(nn.Linear(72, 5), nn.Tanh(), nn.BatchNorm1d(5, momentum=0.3))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for norm in self.norms:
            x = x + torch.relu(norm(x))
        logits: Tensor = self.head(self.rows(x.flatten(1)))
        return logits


@model
def norms() -> Model:
    network = Norms()
    with torch.no_grad():
        for parameter in network.parameters():  # or an exporter takes equal ones for one
            parameter += 0.1 * torch.randn_like(parameter)
    return network, (torch.randn(4, 2, 4, 3),)


@model
def frozen_norms() -> Model:
    """Batch norms in eval mode: weights and biases learn, statistics stay."""
    layers = [nn.Conv2d(2, 4, 3), nn.SiLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 3, 1, bias=False)]
    network = nn.Sequential(*layers, nn.Tanh(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(36, 4))
    with torch.no_grad():
        for _ in range(5):
            network(2 * torch.randn(8, 2, 6, 5) + 1)
    return network.eval(), (torch.randn(3, 2, 6, 5),)


class Functions(nn.Module):
    """Every activation once, each behind a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        kinds = [nn.ReLU6(), nn.LeakyReLU(0.1), nn.Sigmoid(), nn.Tanh(), nn.GELU(), nn.SiLU()]
        kinds += [nn.GELU("tanh"), nn.Hardswish(), nn.Hardsigmoid(), nn.ELU(0.7), nn.SELU()]
        kinds += [nn.CELU(1.3), nn.Softplus(), nn.PReLU(5), nn.Mish(), nn.LogSigmoid()]
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 5), kind) for kind in kinds)
        self.head = nn.Linear(5 * len(kinds), 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([layer(x) for layer in self.layers], dim=1))
        return logits


@model
def functions() -> Model:
    return Functions(), (torch.randn(3, 4),)


class Arithmetic(nn.Module):
    """Operators and reductions: scalars on either side, broadcasting, ties in a maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.gate = nn.Parameter(torch.rand(8) + 0.5)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        a, b = (x * self.gate - 0.5).chunk(2, dim=1)
        size = (a.abs() + 1).log() + (b**2 + 0.3).sqrt() + 1 / (a.exp() + 0.7)
        x = torch.stack([size, torch.maximum(a, b), torch.minimum(a, 2 - b)], dim=1)
        x = x / (1 + x.square().mean(dim=2, keepdim=True)) - x.amax(dim=1, keepdim=True)
        x = torch.cat([x.max(dim=1)[0], x.mean(dim=1) + x.var(dim=1)], dim=1)
        weights = x.softmax(dim=1) + 0.1 * x.log_softmax(dim=0)
        logits: Tensor = self.head(weights.clamp(-2.0, 0.9) * x.clamp(min=-1.0))
        return logits


@model
def arithmetic() -> Model:
    return Arithmetic(), (torch.randn(3, 6),)


class Recurrent(nn.Module):
    """Every kind of layer and cell: deep, in both directions, stored both ways, states in use."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 4, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
        self.lstm = nn.LSTM(8, 6, bias=False)
        self.rnn = nn.RNN(6, 3, nonlinearity="relu", num_layers=2, batch_first=True)
        self.start = nn.Parameter(torch.randn(2, 1, 3))
        self.gru_cell, self.lstm_cell = nn.GRUCell(3, 3), nn.LSTMCell(3, 3)
        self.rnn_cell = nn.RNNCell(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, hidden = self.gru(x)
        z, (_, cell) = self.lstm(y.transpose(0, 1))
        y, last = self.rnn(z.transpose(0, 1), self.start.expand(-1, len(x), -1).contiguous())
        h = self.gru_cell(y[:, -1], last[0])
        h, c = self.lstm_cell(h + hidden.sum(0)[:, :3], (h, cell[0, :, :3]))
        logits: Tensor = self.rnn_cell(h, c)
        return logits


@model
def recurrent() -> Model:
    return Recurrent(), (torch.randn(2, 7, 5),)


@model
def gru_in_reverse() -> Model:
    """Only the last output of a bidirectional layer counts: most times get no gradient from it."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 5, bidirectional=True)
            self.head = nn.Linear(10, 4)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.gru(x)[0][-1])
            return logits

    return Last(), (torch.randn(9, 2, 3),)


class Windows(nn.Module):
    """Overlapping windows of a signal, patches of an image, and moves of dimensions of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Linear(5, 4)
        self.patches = nn.Unfold((2, 3), dilation=(1, 2), padding=(1, 0), stride=2)
        self.head = nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.frames(x.unfold(2, 5, 3)).permute(0, 1, 3, 2)
        y = self.patches(x.unsqueeze(1).transpose(1, 2).squeeze(2))
        logits: Tensor = self.head(y.mean(dim=2))
        return logits


@model
def windows() -> Model:
    return Windows(), (torch.randn(1, 3, 30),)
