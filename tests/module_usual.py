"""The usual layers of random modules, with weights of every form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.module_base import ANY, MAPS, ROWS, TANH, Function, RandomModule, kind
from tests.module_weights import Running


@kind(MAPS)
def convolution(net: RandomModule, shape: tuple[int, ...]) -> Function:
    _, c, h, w = shape
    groups = net.chance.choice((1, 1, c))
    out = groups * net.chance.choice((1, 2)) if groups > 1 else net.chance.choice((2, 4, 5, 8))
    size = (min(h, net.chance.choice((1, 3, 3, 5))), min(w, net.chance.choice((1, 3, 3))))
    stride, padding = net.chance.choice((1, 1, 2)), net.chance.choice((0, 1))
    weight = net.weight(out, c // groups, *size)
    bias = net.weight(out) if net.chance.random() < 0.6 else None
    return lambda x: F.conv2d(x, weight(), bias and bias(), stride, padding, 1, groups)


@kind(MAPS)
def depthwise_block(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """As in a ConvNeXt: depthwise, norm over channels, two products, layer scale, residual."""
    c, wide = shape[1], 2 * shape[1]
    spatial, inner, outer = net.weight(c, 1, 3, 3), net.weight(wide, c), net.weight(c, wide)
    norm, scale, bias = net.weight(c), net.weight(c), net.weight(wide)

    def block(x: Tensor) -> Tensor:
        y = F.conv2d(x, spatial(), None, 1, 1, 1, c).permute(0, 2, 3, 1)
        y = F.linear(F.layer_norm(y, (c,), norm()), inner(), bias())
        y = F.linear(F.gelu(y), outer()) * scale()
        return x + y.permute(0, 3, 1, 2)

    return block


@kind(MAPS)
def pooling(net: RandomModule, shape: tuple[int, ...]) -> Function:
    if min(shape[2:]) < 2:
        return TANH
    pool = net.chance.choice((F.max_pool2d, F.avg_pool2d))
    return lambda x: pool(x, 2)


@kind(MAPS)
def norm_of_maps(net: RandomModule, shape: tuple[int, ...]) -> Function:
    c = shape[1]
    if shape[0] * shape[2] * shape[3] < 2:
        return TANH
    layer: nn.Module = net.chance.choice(
        (nn.BatchNorm2d(c), nn.BatchNorm2d(c).eval(), nn.GroupNorm(1, c), nn.BatchNorm2d(c))
    )
    net.parts.append(layer)
    place = len(net.parts) - 1
    return lambda x: Running.parts[place](x)


@kind(MAPS)
def channel_gate(net: RandomModule, shape: tuple[int, ...]) -> Function:
    c = shape[1]
    weight, scale = net.weight(c, c), net.weight(c, 1, 1)

    def gate(x: Tensor) -> Tensor:
        y = torch.sigmoid(x.mean((2, 3)) @ weight())
        return x * y.reshape(-1, c, 1, 1) * scale()

    return gate


@kind(MAPS)
def to_rows(net: RandomModule, shape: tuple[int, ...]) -> Function:
    return lambda x: x.flatten(2).transpose(1, 2)


@kind(ROWS)
def product(net: RandomModule, shape: tuple[int, ...]) -> Function:
    out = net.chance.choice((3, 4, 6, 8, 12))
    weight = net.weight(out, shape[-1])
    bias = net.weight(out) if net.chance.random() < 0.6 else None
    return lambda x: F.linear(x, weight(), bias and bias())


@kind(ROWS)
def attention(net: RandomModule, shape: tuple[int, ...]) -> Function:
    if len(shape) != 3:
        return TANH
    d = shape[-1]
    packed = net.weight(3 * d, d)

    def attend(x: Tensor) -> Tensor:
        q, k, v = F.linear(x, packed()).chunk(3, -1)
        return x + torch.softmax(q @ k.transpose(1, 2) / d**0.5, -1) @ v

    return attend


@kind(ROWS)
def class_token(net: RandomModule, shape: tuple[int, ...]) -> Function:
    if len(shape) != 3:
        return TANH
    n, t, d = shape
    token, position = net.weight(1, 1, d), net.weight(1, t + 1, d)
    return lambda x: torch.cat([token().expand(n, 1, d), x], 1) + position()


@kind(ROWS)
def norm_of_rows(net: RandomModule, shape: tuple[int, ...]) -> Function:
    d = shape[-1]
    if d < 2:
        return TANH
    scale, bias = net.weight(d), net.weight(d)
    return lambda x: F.layer_norm(x, (d,), scale(), bias(), 1e-2)


@kind(ROWS)
def recurrent(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """A cell by hand, unrolled, whose weights are used at every time."""
    if len(shape) != 3 or shape[1] > 5:
        return TANH
    t, d = shape[1:]
    inner, outer, bias = net.weight(d, d), net.weight(d, d), net.weight(d)

    def unrolled(x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for time in range(t):
            h = torch.tanh(F.linear(x[:, time], inner(), bias()) + h @ outer())
        return h

    return unrolled


@kind(MAPS, ROWS, ANY)
def activation(net: RandomModule, shape: tuple[int, ...]) -> Function:
    found: Function = net.chance.choice(
        (torch.relu, torch.tanh, F.gelu, F.silu, torch.sigmoid, F.leaky_relu)
    )
    return found


@kind(MAPS, ROWS, ANY)
def by_masks(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """What data and weights say is chosen, replaced, counted."""
    edge = net.weight(*shape[net.chance.randrange(1, len(shape)) :])
    chosen: Function = net.chance.choice(
        (
            lambda x: torch.where(x > edge(), x, 0.2 * x),
            lambda x: torch.where(x < edge(), edge(), x),
            lambda x: x.masked_fill((x > 0.1) & ~(x > edge()), 0.3),
            lambda x: x * ((x >= edge()) | (x < -0.5)),
            lambda x: x + 0.1 * (x > edge()).cumsum(-1),
            lambda x: torch.clamp(x, min=edge()) * (x > 0).any(-1, keepdim=True),
            lambda x: x - (2 * x).round().detach() / 2 + (x.floor() - x).detach(),
        )
    )
    return chosen


@kind(MAPS, ROWS, ANY)
def by_places(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """What sorting, looking up and writing in place do with places that the data decide."""
    axis = net.chance.randrange(1, len(shape))
    scale = net.weight(*shape[axis:])
    count = net.chance.randint(1, shape[axis])

    def written(x: Tensor) -> Tensor:
        y = torch.tanh(x).clone()
        y.narrow(axis, 0, count).mul_(0.5)
        y[x > 1] = 0.25
        return y * scale()

    chosen: Function = net.chance.choice(
        (
            lambda x: x.sort(axis, descending=True).values * scale(),
            lambda x: x.topk(count, axis).values,
            lambda x: (x * scale()).gather(axis, x.argsort(dim=axis, stable=True)),
            lambda x: x.index_select(axis, torch.arange(count)) * 0.7,
            lambda x: torch.zeros_like(x).scatter(
                axis, x.argsort(dim=axis, stable=True), torch.tanh(x * scale())
            ),
            lambda x: (x * scale()).cumsum(axis) / 2,
            lambda x: x + F.one_hot(x.argmax(axis), shape[axis]).movedim(-1, axis) * scale(),
            written,
        )
    )
    return chosen


@kind(MAPS, ROWS, ANY)
def by_angles(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """Waves, remainders, spectra, norms with a limit, and a rounding that has a slope."""
    own = net.weight(*shape[1:])
    chosen: Function = net.chance.choice(
        (
            lambda x: torch.sin(3 * x) * own(),
            lambda x: torch.cos(x + own()) + torch.atan(x),
            lambda x: torch.remainder(x, 0.7) * own(),
            lambda x: torch.fft.rfft(x * own(), norm="ortho").abs(),
            lambda x: torch.fft.irfft(torch.fft.rfft(x) * 0.5, n=shape[-1]) + own(),
            lambda x: torch.renorm(x + own(), 2, 1, 0.8),
            lambda x: x + ((2 * x).round() / 2 - x).detach() * torch.sigmoid(own()),
        )
    )
    return chosen


@kind(MAPS)
def volume(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """The channels as depth: convolved and pooled in three dimensions."""
    _, c, h, w = shape
    size = (min(2, c), min(3, h), min(2, w))
    weight, bias = net.weight(2, 1, *size), net.weight(2)
    pool = (1, min(2, h), 1)

    def convolved(x: Tensor) -> Tensor:
        y = F.conv3d(x.unsqueeze(1), weight(), bias(), padding=(0, 1, 0))
        return F.max_pool3d(y, pool).flatten(1, 2)

    return convolved


@kind(MAPS, ROWS)
def contraction(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """An einsum of two operands along the last dimensions."""
    if len(shape) == 4:
        mixing = net.weight(shape[1], 3)
        return lambda x: torch.einsum("ncij,cd->ndij", x, mixing())
    inner = net.weight(shape[-1], 4)
    return lambda x: torch.einsum("n...d,de->n...e", x, inner())


@kind(MAPS, ROWS, ANY)
def by_broadcasting(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """A parameter that repeats along some dimensions, added or multiplied."""
    own = tuple(n if net.chance.random() < 0.6 else 1 for n in (1, *shape[1:]))
    weight = net.weight(*own[net.chance.randrange(2) :])
    if net.chance.random() < 0.5:
        return lambda x: x * weight()
    return lambda x: weight() + x


@kind(MAPS, ROWS, ANY)
def slices(net: RandomModule, shape: tuple[int, ...]) -> Function:
    """One half gates the other, or both are swapped."""
    axis = net.chance.randrange(1, len(shape))
    half = shape[axis] // 2
    if half == 0:
        return TANH
    if net.chance.random() < 0.5:
        return lambda x: x.narrow(axis, 0, half) * torch.sigmoid(x.narrow(axis, half, half))
    return lambda x: torch.cat([x.narrow(axis, half, half), x.narrow(axis, 0, half)], axis)
