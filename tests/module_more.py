"""Operations that models use now and then, for random modules: one function of a tensor each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.module_base import ANY, MAPS, ROWS, TANH, Function, RandomModule, kind
from tests.module_layers import applied, part

Shape = tuple[int, ...]


@kind(MAPS, ROWS, ANY)
def rare_activations(net: RandomModule, shape: Shape) -> Function:
    own = net.weight(*shape[1:])
    chosen: Function = net.chance.choice(
        (
            lambda x: F.gelu(x * own(), approximate="tanh"),
            lambda x: F.hardsigmoid(x + own()),
            lambda x: F.celu(x * own(), 0.8),
            lambda x: F.hardshrink(x + own(), 0.3) + F.softshrink(x, 0.2),
            lambda x: torch.expm1(torch.tanh(x)) + torch.erfc(x * own()),
            lambda x: x.trunc() * own() + (x + own()).frac(),
            lambda x: (
                torch.lerp(x, own().expand_as(x), 0.3) + torch.addcmul(x, x, own(), value=0.5)
            ),
            lambda x: torch.hypot(x, own() + 2),
            lambda x: torch.logaddexp(x, 2 * own()),
            lambda x: torch.sinh(torch.tanh(x)) * torch.cosh(0.3 * own()),
            lambda x: torch.asin(0.9 * torch.tanh(x)) + torch.acos(0.9 * torch.tanh(own())),
            lambda x: torch.tan(torch.tanh(x * own())) + torch.exp2(0.5 * torch.tanh(x)),
            lambda x: torch.log2(x.abs() + 0.3) - torch.rsqrt(own() * own() + 0.2),
            lambda x: torch.fmod(x, 0.6) * own() + x.ceil() / 3,
            lambda x: torch.remainder(x, own().abs() + 0.5),
            lambda x: (x.abs() + 0.2) ** torch.tanh(own()),
            lambda x: torch.atanh(0.8 * torch.tanh(x)) * own() - x.sgn(),
            lambda x: torch.nan_to_num(x * own()).square(),
            lambda x: F.rrelu(x * own()) + F.prelu(x, own().reshape(-1)[:1]),
        )
    )
    return chosen


@kind(MAPS, ROWS, ANY)
def rare_reductions(net: RandomModule, shape: Shape) -> Function:
    axis = net.chance.randrange(1, len(shape))
    own, count = net.weight(*shape[1:]), net.chance.randint(1, shape[axis])
    chosen: Function = net.chance.choice(
        (
            lambda x: x * own() - x.amin(axis, keepdim=True),
            lambda x: x + (x * own()).std(axis, keepdim=True, unbiased=False),
            lambda x: x / (1 + torch.var_mean(x * own(), axis, correction=0, keepdim=True)[0]),
            lambda x: torch.logcumsumexp(x * own(), axis),
            lambda x: x * own() + x.kthvalue(count, axis, keepdim=True).values,
            lambda x: x * own() + (x * own()).min(axis, keepdim=True).values,
            lambda x: x / (0.5 + x.norm(p=1, dim=axis, keepdim=True)) * own(),
            lambda x: x * own() - x.norm(p=float("inf"), dim=axis, keepdim=True),
            lambda x: (x * own()).diff(dim=axis, prepend=x.narrow(axis, 0, 1)),
            lambda x: x + F.one_hot(x.argmin(axis), shape[axis]).movedim(-1, axis) * own(),
            lambda x: x * own() * (x > -1).all(axis, keepdim=True),
            lambda x: torch.softmax(x * own(), axis) + F.softmin(x, axis),
        )
    )
    return chosen


@kind(MAPS, ROWS, ANY)
def rare_places(net: RandomModule, shape: Shape) -> Function:
    """Written into, put together and cut out, at places that are known or that data decide."""
    axis = net.chance.randrange(1, len(shape))
    own, count = net.weight(*shape[1:]), net.chance.randint(1, shape[axis])
    places = torch.tensor([net.chance.randrange(shape[axis]) for _ in range(count)])
    once = torch.tensor(net.chance.sample(range(shape[axis]), count))

    def index(x: Tensor) -> Tensor:
        return x.argsort(dim=axis, stable=True)

    chosen: Function = net.chance.choice(
        (
            lambda x: x.index_add(
                axis, places, x.narrow(axis, 0, count) * own().narrow(axis - 1, 0, count)
            ),
            lambda x: (x * own()).index_copy(axis, once, torch.tanh(x.narrow(axis, 0, count))),
            lambda x: (x * own()).index_fill(axis, once, 0.3),
            lambda x: x.scatter_add(axis, index(x) // 2, torch.tanh(x * own())),
            lambda x: x.scatter_reduce(axis, index(x) // 2, x * own(), "sum"),
            lambda x: (x * own()).select_scatter(torch.tanh(x.select(axis, 0)), axis, count - 1),
            lambda x: (x * own()).slice_scatter(x.narrow(axis, 0, count).sin(), axis, 0, count),
            lambda x: torch.take_along_dim(x * own(), index(x), axis),
            lambda x: (x * own()).tril() + x.triu(1) if x.dim() > 2 else x * own(),
            lambda x: (x * own()).unfold(axis, count, 1).flatten(-2),
            lambda x: x * own() + x.cumsum(axis).clamp_(-1, 1),
            lambda x: torch.where(x > own(), x, x.new_zeros(())).add_(own()).mul_(0.7),
            lambda x: (
                torch.hstack([x, x * own()]) if x.dim() == 2 else torch.dstack([x, x * own()])
            ),
            lambda x: torch.cat(
                [v * (n + 1) for n, v in enumerate((x * own()).split(2, axis))], axis
            ),
        )
    )
    return chosen


@kind(MAPS)
def rare_maps(net: RandomModule, shape: Shape) -> Function:
    _, c, h, w = shape
    weight, lines = net.weight(4, c, 2, 3), net.weight(3, c, 3)
    cut = (h // 2 * 2, w // 2 * 2)
    even = c % 2 == 0 and h * w > 1
    chosen: Function = net.chance.choice(
        (
            lambda x: F.conv2d(x, weight(), padding="same"),
            lambda x: F.conv_transpose1d(x.flatten(2), lines().transpose(0, 1), stride=2),
            lambda x: F.conv1d(x.flatten(2), lines(), padding=1).tanh(),
            lambda x: F.max_pool1d(x.flatten(2), 2, 1, 1),
            lambda x: F.avg_pool1d(x.flatten(2), 2, 1, 1, count_include_pad=False),
            lambda x: F.adaptive_max_pool1d(x.flatten(2), max(1, h - 1)),
            lambda x: F.interpolate(x.flatten(2), scale_factor=1.6, mode="linear"),
            lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest-exact"),
            lambda x: F.interpolate(x, (h + 1, max(1, w - 2)), mode="bilinear", antialias=True),
            lambda x: F.group_norm(x, 2 if even else 1, eps=1e-2) if h * w > 1 else torch.sin(x),
            lambda x: F.pixel_shuffle(F.conv2d(x, weight(), padding="same"), 2),
            lambda x: F.channel_shuffle(x, 2) * 0.7 if even else torch.cos(x),
            lambda x: F.fold(F.unfold(x, 2, padding=1, stride=2), cut, 2, padding=1, stride=2),
            lambda x: F.max_pool3d(x.unsqueeze(1), (min(2, c), 1, 1)).squeeze(1),
            lambda x: torch.kron(x, torch.ones(2, 1)) * 0.5,
        )
    )
    return chosen if min(h, w) > 2 else TANH


@kind(ROWS)
def rare_rows(net: RandomModule, shape: Shape) -> Function:
    d = shape[-1]
    weight, bias, centres = net.weight(d, 5), net.weight(5), net.weight(3, d)
    if len(shape) == 2:
        cell = net.chance.choice((nn.GRUCell, nn.RNNCell))(d, 3)
        chosen: Function = net.chance.choice(
            (
                lambda x: torch.addmm(bias(), x, weight(), beta=0.5),
                lambda x: torch.cdist(x, centres()),
                lambda x: torch.stack([F.pairwise_distance(x, centres()[:1]), x.sum(1)], 1),
                lambda x: torch.tensordot(x, weight(), 1).relu_(),
                part(net, cell, applied),
            )
        )
        return chosen
    layer = nn.LSTM(d, 3, batch_first=True, bidirectional=net.chance.random() < 0.5)
    return net.chance.choice(
        (
            lambda x: torch.baddbmm(
                bias().expand(shape[0], shape[1], 5), x, weight().expand(shape[0], d, 5)
            ),
            lambda x: torch.cdist(x, centres()),
            lambda x: torch.bmm(x, x.transpose(1, 2)) / d,
            lambda x: torch.matmul(x, weight()) + (x @ weight()[:, :1]),
            lambda x: F.layer_norm(x * 2, shape[1:], eps=1e-2),
            part(net, layer, lambda layer, x: layer(x)[1][0].transpose(0, 1).flatten(1)),
        )
    )
