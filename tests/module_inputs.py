"""What random modules do with whole numbers that come as an input: tables, places, masks."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from tests.module_base import RandomModule

Use = Callable[[Tensor, Tensor], Tensor]
Made = Callable[["RandomModule", tuple[int, ...], int], Use]
"""Of a network, the shape of a float and how many whole numbers there are: what is made of both."""
USES: list[Made] = []


def use(made: Made) -> Made:
    USES.append(made)
    return made


def _beside(x: Tensor, rows: Tensor) -> Tensor:
    """A row for each sample, added to all of it."""
    return x + rows.reshape(x.shape)


@use
def embedded(net: RandomModule, shape: tuple[int, ...], rows: int) -> Use:
    table = net.weight(rows, prod(shape[1:]))
    return lambda x, ids: _beside(x, F.embedding(ids, table()).mean(1))


@use
def indexed(net: RandomModule, shape: tuple[int, ...], rows: int) -> Use:
    table = net.weight(rows, prod(shape[1:]))
    return lambda x, ids: _beside(x, torch.tanh(table()[ids[:, 0]]))


@use
def one_hot(net: RandomModule, shape: tuple[int, ...], rows: int) -> Use:
    weight = net.weight(prod(shape[1:]), rows)
    return lambda x, ids: _beside(x, F.linear(F.one_hot(ids, rows).float().sum(1), weight()))


@use
def gathered(net: RandomModule, shape: tuple[int, ...], rows: int) -> Use:
    """Elements of the sample itself, by their places, and by way of a product."""
    weight = net.weight(rows, prod(shape[1:]))

    def gather(x: Tensor, ids: Tensor) -> Tensor:
        scores = F.linear(x.flatten(1), weight())
        return x * torch.sigmoid(scores.gather(1, ids)).mean(1).reshape(-1, *(1,) * (x.dim() - 1))

    return gather


@use
def masked(net: RandomModule, shape: tuple[int, ...], rows: int) -> Use:
    """Weights of places that a mask leaves, as in attention."""
    weight, value = net.weight(3, prod(shape[1:])), net.weight(3)

    def mask(x: Tensor, ids: Tensor) -> Tensor:
        scores = F.linear(x.flatten(1), weight())
        away = (ids[:, :1] + torch.arange(3)) % 3 == 0
        share = scores.masked_fill(away, -1e9).softmax(1) @ value().reshape(3, 1)
        return x + share.reshape(-1, *(1,) * (x.dim() - 1))

    return mask


@use
def chosen(net: RandomModule, shape: tuple[int, ...], rows: int) -> Use:
    scale = net.weight(shape[-1])

    def choose(x: Tensor, ids: Tensor) -> Tensor:
        first = (ids[:, 0] > rows // 2).reshape(-1, *(1,) * (x.dim() - 1))
        return torch.where(first, x * scale(), torch.tanh(x))

    return choose


def whole_numbers(chance: random.Random, batch: int, chunks: int) -> tuple[Tensor, int]:
    """Samples of an input, and how many different numbers there are."""
    rows = chance.choice((3, 5, 8))
    return torch.randint(0, rows, (batch * chunks, chance.choice((1, 2, 4)))), rows
