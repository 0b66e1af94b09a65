"""The forms that a weight of a random module can have: everything between a plain parameter and an
expression over several of them, some of which other weights use as well."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn

Weight = Callable[[], Tensor]
Form = Callable[["Weights", tuple[int, ...]], Weight]
FORMS: list[Form] = []


def form(make: Form) -> Form:
    FORMS.append(make)
    return make


class Running:
    """The parameters, buffers and layers of the module that runs. Modules are copied, but functions
    that read their weights are not: they look here, where each pass puts its own."""

    values: ClassVar[Mapping[str, Tensor]] = {}
    parts: ClassVar[Sequence[nn.Module]] = ()


class Weights:
    """Draws parameters and buffers by name."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.params: dict[str, nn.Parameter] = {}
        self.buffers: dict[str, Tensor] = {}

    def param(self, *shape: int, at: float = 0.0) -> Weight:
        name = f"w{len(self.params)}"
        scale = 1 / max(1, prod(shape[1:])) ** 0.5
        self.params[name] = nn.Parameter(at + scale * torch.randn(shape))
        return lambda: Running.values[name]

    def buffer(self, *shape: int) -> Weight:
        name = f"fixed{len(self.buffers)}"
        self.buffers[name] = torch.randn(shape)
        return lambda: Running.values[name]

    def draw(self, shape: tuple[int, ...]) -> Weight:
        plain = self.chance.random() < 0.35
        return self.param(*shape) if plain else self.chance.choice(FORMS)(self, shape)


@form
def reshaped(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(prod(shape))
    return lambda: w().reshape(shape)


@form
def view_of_a_view(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(*reversed(shape))
    return lambda: w().reshape(-1).reshape(1, -1).reshape(shape)


@form
def turned(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(*reversed(shape))
    order = tuple(reversed(range(len(shape))))
    return lambda: w().permute(order)


@form
def sliced(weights: Weights, shape: tuple[int, ...]) -> Weight:
    begin = weights.chance.randint(0, 2)
    w = weights.param(shape[0] + begin + 1, *shape[1:])
    return lambda: w()[begin : begin + shape[0]]


@form
def every_second(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(*shape[:-1], 2 * shape[-1])
    return lambda: w()[..., ::2]


@form
def summed(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(*shape, 3)
    return lambda: w().sum(-1)


@form
def times_a_vector(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w, b = weights.param(*shape, 6, 3), weights.param(6)
    return lambda: w().sum(-1) @ b()


@form
def outer_product(weights: Weights, shape: tuple[int, ...]) -> Weight:
    a, b = weights.param(shape[0]), weights.param(prod(shape[1:]))
    return lambda: (a().reshape(-1, 1) * b()).reshape(shape)


@form
def low_rank(weights: Weights, shape: tuple[int, ...]) -> Weight:
    """A fixed weight and a product of two small ones."""
    w, a = weights.buffer(shape[0], prod(shape[1:])), weights.param(shape[0], 2)
    b = weights.param(2, prod(shape[1:]))
    return lambda: (0.3 * w() + a() @ b()).reshape(shape)


@form
def weight_norm(weights: Weights, shape: tuple[int, ...]) -> Weight:
    v, g = weights.param(*shape), weights.param(shape[0], at=1.0)

    def normed() -> Tensor:
        rows = v().reshape(shape[0], -1)
        return (g().reshape(-1, 1) * rows / (rows.norm(dim=1, keepdim=True) + 0.1)).reshape(shape)

    return normed


@form
def centred(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(*shape)
    return lambda: w() - 0.5 * w().mean()


@form
def expanded(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(1, *shape[1:])
    return lambda: w().expand(shape)


@form
def joined(weights: Weights, shape: tuple[int, ...]) -> Weight:
    if shape[0] < 2:
        return weights.param(*shape)
    first = weights.chance.randrange(1, shape[0])
    a, b = weights.param(first, *shape[1:]), weights.param(shape[0] - first, *shape[1:])
    return lambda: torch.cat([a(), b()])


@form
def squashed(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(*shape)
    squash = weights.chance.choice((torch.tanh, torch.sigmoid, lambda x: x * torch.sigmoid(x)))
    return lambda: squash(w())


@form
def partly_detached(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w = weights.param(*shape)
    return lambda: w() * torch.sigmoid(w().detach())


@form
def masked(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w, mask = weights.param(*shape), weights.buffer(*shape)
    return lambda: w() * mask()


@form
def tied(weights: Weights, shape: tuple[int, ...]) -> Weight:
    """A parameter that another weight has already, if one is large enough."""
    size = prod(shape)
    large = [name for name, value in weights.params.items() if value.numel() >= size]
    if not large:
        return weights.param(*shape)
    name = weights.chance.choice(large)
    if weights.params[name].numel() == size:
        return lambda: Running.values[name].reshape(shape)
    return lambda: Running.values[name].reshape(-1)[:size].reshape(shape)


@form
def scaled_by_another(weights: Weights, shape: tuple[int, ...]) -> Weight:
    w, s = weights.param(*shape), weights.param(at=1.0)
    return lambda: w() * s()
