"""Models for `tool_speed.py`: of the sizes and shapes that cost the tool itself most time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]


def dense() -> Built:
    """2.5 million parameters in a few matrices: what the weights alone cost."""
    torch.manual_seed(0)
    layers = [nn.Linear(784, 1500), nn.ReLU(), nn.Linear(1500, 880), nn.ReLU(), nn.Linear(880, 10)]
    return nn.Sequential(*layers), (torch.randn(4, 784),)


def wav2letter() -> Built:
    """Twelve convolutions over raw audio, 23.5 million parameters (Collobert et al., 2016)."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv1d(1, 250, 250, 160, 45), nn.ReLU()]
    layers += [nn.Conv1d(250, 250, 48, 2, 23), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Conv1d(250, 250, 7, 1, 3), nn.ReLU()]
    layers += [nn.Conv1d(250, 2000, 32, 1, 16), nn.ReLU()]
    layers += [nn.Conv1d(2000, 2000, 1), nn.ReLU(), nn.Conv1d(2000, 40, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.LogSoftmax(1)), (torch.randn(1, 1, 3200),)


class LiquidCell(nn.Module):
    """A liquid time constant cell: an ODE of synapses, solved in a few semi-implicit steps."""

    def __init__(self, inputs: int, units: int, unfolds: int) -> None:
        super().__init__()
        self.unfolds = unfolds
        self.leak = nn.Parameter(torch.rand(units) + 0.1)
        self.rest = nn.Parameter(torch.rand(units) * 0.4 - 0.2)
        self.capacity = nn.Parameter(torch.rand(units) * 0.2 + 0.4)
        for name, rows in (("sensory", inputs), ("inner", units)):
            setattr(self, f"{name}_gain", nn.Parameter(torch.rand(rows, units) + 0.01))
            setattr(self, f"{name}_slope", nn.Parameter(torch.rand(rows, units) * 5 + 3))
            setattr(self, f"{name}_centre", nn.Parameter(torch.rand(rows, units) * 0.5 + 0.3))
            setattr(self, f"{name}_target", nn.Parameter(torch.randn(rows, units).sign()))

    def currents(self, name: str, value: Tensor) -> tuple[Tensor, Tensor]:
        centred = value.unsqueeze(-1) - getattr(self, f"{name}_centre")
        gate = torch.sigmoid(getattr(self, f"{name}_slope") * centred)
        gate = getattr(self, f"{name}_gain") * gate
        return (gate * getattr(self, f"{name}_target")).sum(1), gate.sum(1)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        drive, conductance = self.currents("sensory", x)
        capacity = self.capacity * self.unfolds
        for _ in range(self.unfolds):
            inner, share = self.currents("inner", state)
            above = capacity * state + self.leak * self.rest + drive + inner
            state = above / (capacity + self.leak + conductance + share + 1e-8)
        return state


class Liquid(nn.Module):
    """The cell over a sequence, unrolled in time; 590 parameters, nearly two thousand tensors."""

    def __init__(self, inputs: int = 4, units: int = 9, steps: int = 8) -> None:
        super().__init__()
        self.units, self.steps = units, steps
        self.cell = LiquidCell(inputs, units, unfolds=6)
        self.scale, self.shift = nn.Parameter(torch.ones(inputs)), nn.Parameter(torch.zeros(inputs))
        self.head = nn.Linear(units, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], self.units)
        for step in range(self.steps):
            state = self.cell(x[:, step] * self.scale + self.shift, state)
        out: Tensor = self.head(state)
        return out


def liquid() -> Built:
    torch.manual_seed(0)
    return Liquid(), (torch.randn(1, 8, 4),)


class ClosedForm(nn.Module):
    """A closed-form continuous-time cell (CfC) over a sequence, unrolled in time."""

    def __init__(self, inputs: int = 8, units: int = 32, backbone: int = 64, steps: int = 12):
        super().__init__()
        self.units, self.steps = units, steps
        self.backbone = nn.Linear(inputs + units, backbone)
        self.one, self.other = nn.Linear(backbone, units), nn.Linear(backbone, units)
        self.rate, self.shift = nn.Linear(backbone, units), nn.Linear(backbone, units)
        self.head = nn.Linear(units, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], self.units)
        for step in range(self.steps):
            hidden = torch.tanh(self.backbone(torch.cat([x[:, step], state], 1)))
            one, other = torch.tanh(self.one(hidden)), torch.tanh(self.other(hidden))
            gate = torch.sigmoid(self.rate(hidden) + self.shift(hidden))
            state = one * (1.0 - gate) + gate * other
        out: Tensor = self.head(state)
        return out


def closed_form() -> Built:
    torch.manual_seed(0)
    return ClosedForm(), (torch.randn(1, 12, 8),)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        def split(value: Tensor) -> Tensor:
            return value.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

        query, key, value = split(self.query(x)), split(self.key(x)), split(self.value(x))
        scores = query @ key.transpose(-1, -2) * (x.shape[-1] // self.heads) ** -0.5
        mixed = (scores if bias is None else scores + bias).softmax(-1) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(x.shape))
        return out


class Albert(nn.Module):
    """One layer of a transformer, used again and again with the same weights."""

    def __init__(self, words: int = 64, embedding: int = 8, width: int = 16, times: int = 3):
        super().__init__()
        self.times = times
        self.words, self.place = nn.Embedding(words, embedding), nn.Embedding(16, embedding)
        self.widen = nn.Linear(embedding, width)
        self.attention, self.norm = Attention(width, 2), nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, words: Tensor) -> Tensor:
        x = self.widen(self.words(words) + self.place.weight[: words.shape[1]])
        for _ in range(self.times):
            x = self.norm(x + self.attention(x))
            x = self.last(x + self.shrink(nn.functional.gelu(self.grow(x))))
        out: Tensor = self.head(x[:, 0])
        return out


def albert() -> Built:
    torch.manual_seed(0)
    return Albert(), (torch.randint(0, 64, (1, 16)),)


class RootNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Encoder(nn.Module):
    """An encoder as T5 has it: norms before the layers, a bias by relative position."""

    def __init__(self, words: int = 64, width: int = 32, layers: int = 2, heads: int = 2):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.bias = nn.Parameter(torch.randn(heads, 16, 16) * 0.1)
        self.attentions = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.norms = nn.ModuleList(RootNorm(width) for _ in range(2 * layers + 1))
        self.grow = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.shrink = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 4)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for index, attention in enumerate(self.attentions):
            x = x + attention(self.norms[2 * index](x), self.bias)
            hidden = torch.relu(self.grow[index](self.norms[2 * index + 1](x)))
            x = x + self.shrink[index](hidden)
        out: Tensor = self.head(self.norms[-1](x).mean(1))
        return out


def encoder() -> Built:
    torch.manual_seed(0)
    return Encoder(), (torch.randint(0, 64, (1, 16)),)
