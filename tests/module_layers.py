"""More layers of random modules: those that PyTorch has ready-made, and operations that models are
glued together with. What a shape does not allow becomes a plain activation."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.module_base import ANY, MAPS, ROWS, TANH, Function, RandomModule, kind
from tests.module_weights import Running

Shape = tuple[int, ...]


def part(
    net: RandomModule, layer: nn.Module, use: Callable[[nn.Module, Tensor], Tensor]
) -> Function:
    """A layer that the module owns, wherever a copy of the module runs."""
    net.parts.append(layer)
    place = len(net.parts) - 1
    return lambda x: use(Running.parts[place], x)


def applied(layer: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = layer(x)
    return result


@kind(MAPS)
def transposed_convolution(net: RandomModule, shape: Shape) -> Function:
    c, out, size = shape[1], net.chance.choice((1, 2, 4)), net.chance.choice((1, 2, 3))
    stride, groups = net.chance.choice((1, 2, 3)), net.chance.choice((1, c))
    padding = net.chance.randint(0, (size - 1) // 2)
    extra = net.chance.randint(0, stride - 1)
    weight = net.weight(c, out, size, size)
    bias = net.weight(out * groups)
    return lambda x: F.conv_transpose2d(x, weight(), bias(), stride, padding, extra, groups)


@kind(MAPS)
def wide_convolution(net: RandomModule, shape: Shape) -> Function:
    """Dilated, with other strides and paddings for rows and columns, or channels in groups."""
    _, c, h, w = shape
    size, dilation = (net.chance.choice((1, 2, 3)), net.chance.choice((1, 3))), (2, 1)
    groups = 2 if c % 2 == 0 and net.chance.random() < 0.5 else 1
    padding = (net.chance.randint(1, 2), net.chance.randint(0, 2))
    reach = (dilation[0] * (size[0] - 1), dilation[1] * (size[1] - 1))
    if h + 2 * padding[0] <= reach[0] or w + 2 * padding[1] <= reach[1]:
        return TANH
    weight, stride = net.weight(2 * groups, c // groups, *size), net.chance.choice(((1, 2), (2, 1)))
    return lambda x: F.conv2d(x, weight(), None, stride, padding, dilation, groups)


@kind(MAPS)
def uneven_pooling(net: RandomModule, shape: Shape) -> Function:
    """Windows that overlap, reach over the edge, or adapt to what is asked for."""
    h, w = shape[2:]
    if min(h, w) < 3:
        return TANH
    goal = (net.chance.randint(1, h), net.chance.randint(1, w))
    chosen: Function = net.chance.choice(
        (
            lambda x: F.max_pool2d(x, 3, (2, 1), 1),
            lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
            lambda x: F.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False),
            lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
            lambda x: F.adaptive_avg_pool2d(x, goal),
            lambda x: F.adaptive_max_pool2d(x, goal),
            lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 2),
        )
    )
    return chosen


@kind(MAPS)
def resizing(net: RandomModule, shape: Shape) -> Function:
    h, w = shape[2:]
    goal = (net.chance.randint(1, 2 * h), net.chance.randint(1, 2 * w))
    chosen: Function = net.chance.choice(
        (
            lambda x: F.interpolate(x, goal),
            lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
            lambda x: F.interpolate(x, goal, mode="bilinear", align_corners=True),
            lambda x: F.interpolate(x, goal, mode="bicubic"),
            lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
            lambda x: F.pad(x, (0, w - 1, h - 1, 0), mode="reflect"),
            lambda x: F.pad(x, (2, 1, 1, 2), mode="replicate"),
            lambda x: F.pad(x, (1, 0, 0, 1), mode="circular"),
            lambda x: F.pixel_unshuffle(x, 2) if h % 2 == w % 2 == 0 else torch.tanh(x),
            lambda x: F.unfold(x, 2, padding=1),
        )
    )
    return chosen


@kind(MAPS)
def ready_made_norm(net: RandomModule, shape: Shape) -> Function:
    c = shape[1]
    if shape[2] * shape[3] < 2:
        return TANH
    layer: nn.Module = net.chance.choice(
        (
            nn.InstanceNorm2d(c, affine=True, eps=1e-2),
            nn.BatchNorm2d(c, momentum=0.3, eps=1e-2),
            nn.BatchNorm2d(c, affine=False, eps=1e-2),
            nn.BatchNorm2d(c, track_running_stats=False, eps=1e-2),
            nn.LocalResponseNorm(3),
            nn.PReLU(c),
            nn.Dropout2d(0.3),
        )
    )
    return part(net, layer, applied)


@kind(ROWS)
def ready_made_recurrent(net: RandomModule, shape: Shape) -> Function:
    if len(shape) != 3 or shape[1] > 6:
        return TANH
    make = net.chance.choice((nn.GRU, nn.LSTM, nn.RNN))
    layers, both = net.chance.choice((1, 1, 2)), net.chance.random() < 0.4
    layer = make(
        shape[-1], net.chance.choice((2, 3, 4)), layers, batch_first=True, bidirectional=both
    )
    last = net.chance.random() < 0.5

    def use(layer: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = layer(x)[0]
        return y[:, -1] if last else y

    return part(net, layer, use)


@kind(ROWS)
def ready_made_attention(net: RandomModule, shape: Shape) -> Function:
    d = shape[-1]
    if len(shape) != 3 or d % 2:
        return TANH
    if net.chance.random() < 0.4:
        layer: nn.Module = nn.TransformerEncoderLayer(d, 2, 2 * d, 0.0, batch_first=True)
        return part(net, layer, applied)
    layer = nn.MultiheadAttention(d, 2, batch_first=True)
    causal = torch.triu(torch.ones(shape[1], shape[1], dtype=torch.bool), 1)

    def use(layer: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = layer(x, x, x, attn_mask=causal, need_weights=False)[0]
        return x + y

    return part(net, layer, use)


@kind(ROWS)
def ready_made_product(net: RandomModule, shape: Shape) -> Function:
    """Layers whose weights PyTorch itself derives from others."""
    d = shape[-1]
    if len(shape) == 3 and net.chance.random() < 0.4:
        layer: nn.Module = nn.Conv1d(d, 4, min(3, shape[1] + 2), padding=1)
        layer = parametrizations.weight_norm(layer)
        return part(net, layer, lambda layer, x: applied(layer, x.transpose(1, 2)).transpose(1, 2))
    if net.chance.random() < 0.5:
        return part(net, parametrizations.weight_norm(nn.Linear(d, 5)), applied)
    return part(net, nn.Bilinear(d, d, 3), lambda layer, x: layer(x, torch.tanh(x)))


@kind(MAPS, ROWS, ANY)
def reductions(net: RandomModule, shape: Shape) -> Function:
    """What is left of a dimension, kept as 1 and spread again."""
    axis = net.chance.randrange(1, len(shape))
    own = net.weight(*shape[1:])
    chosen: Function = net.chance.choice(
        (
            lambda x: x - x.amax(axis, keepdim=True),
            lambda x: x / (1 + x.norm(dim=axis, keepdim=True)),
            lambda x: x * torch.logsumexp(x * own(), axis, keepdim=True),
            lambda x: x + (x * own()).var(axis, keepdim=True, unbiased=False),
            lambda x: x * (1 + 0.1 * torch.tanh(x)).prod(axis, keepdim=True),
            lambda x: F.normalize(x + own(), dim=axis, eps=1e-2),
            lambda x: x + F.cosine_similarity(x, own().expand_as(x), axis, 1e-2).unsqueeze(axis),
            lambda x: F.rms_norm(x, shape[-1:], own()[(0,) * (len(shape) - 2)], 1e-2),
            lambda x: torch.log_softmax(x, axis) * own(),
            lambda x: x.minimum(own()) + x.median(axis, keepdim=True).values,
        )
    )
    return chosen


@kind(MAPS, ROWS, ANY)
def rearrangements(net: RandomModule, shape: Shape) -> Function:
    axis, last = net.chance.randrange(1, len(shape)), len(shape) - 1
    shift = net.chance.randint(1, 3)
    chosen: Function = net.chance.choice(
        (
            lambda x: torch.roll(x, shift, axis) * 0.5 + x,
            lambda x: x.flip(axis) - 0.3 * x,
            lambda x: x.repeat_interleave(2, axis),
            lambda x: x.tile((2,)),
            lambda x: x.transpose(axis, last).contiguous(),
            lambda x: x.unflatten(axis, (1, -1)).flatten(axis, axis + 1) * 2,
            lambda x: x[(slice(None),) * axis + (slice(None, None, 2),)],
            lambda x: torch.stack([x, torch.sigmoid(x)], axis).flatten(axis, axis + 1),
            lambda x: torch.stack(x.unbind(axis), axis).sin(),
            lambda x: F.glu(torch.cat([x, torch.cos(x)], axis), axis),
        )
    )
    return chosen


@kind(MAPS, ROWS, ANY)
def more_activations(net: RandomModule, shape: Shape) -> Function:
    chosen: Function = net.chance.choice(
        (
            lambda x: F.dropout(x, 0.4, training=True),
            lambda x: F.alpha_dropout(x, 0.2, training=True),
            F.mish,
            F.softplus,
            F.hardswish,
            F.hardtanh,
            F.elu,
            F.selu,
            F.softsign,
            F.logsigmoid,
            F.relu6,
            F.tanhshrink,
            lambda x: F.threshold(x, 0.1, -0.2),
            lambda x: torch.sqrt(x * x + 0.1),
            lambda x: torch.log1p(x.abs()),
            lambda x: torch.exp(-x * x),
            lambda x: torch.erf(x) + x.reciprocal().clamp(-1, 1),
            lambda x: torch.atan(x) + torch.sign(x),
            lambda x: x.abs() ** 1.5,
        )
    )
    return chosen
