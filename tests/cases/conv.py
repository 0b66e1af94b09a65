"""Convolutions."""

from __future__ import annotations

import random
from typing import Any

from gradlet.ir.graph import Shape
from tests.cases.base import Case, odd_sizes


def conv(
    x: Shape,
    w: Shape,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    bias: bool = True,
) -> Case:
    attrs: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }
    return Case("conv2d", (x, w, *([(w[0],)] if bias else [])), attrs)


ROWS: tuple[Case, ...] = (
    conv((1, 1, 1, 1), (1, 1, 1, 1)),
    conv((1, 8, 8, 8), (16, 8, 3, 3)),
    conv((2, 3, 7, 5), (5, 3, 3, 2), bias=False),
    conv((1, 3, 9, 7), (4, 3, 3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    conv((2, 2, 6, 9), (3, 2, 2, 4), stride=(1, 3), padding=(0, 1, 2, 0)),
    conv((1, 2, 11, 10), (3, 2, 3, 2), dilation=(2, 3), padding=(2, 1, 2, 1)),
    conv((1, 3, 10, 8), (2, 3, 3, 3), stride=(3, 2), dilation=(2, 1), padding=(3, 0, 1, 2)),
    conv((2, 6, 5, 5), (4, 3, 3, 3), groups=2, padding=(1, 1, 1, 1)),
    conv((1, 5, 7, 6), (5, 1, 3, 3), groups=5, padding=(1, 1, 1, 1), stride=(2, 1)),
    conv((1, 4, 6, 5), (8, 1, 3, 3), groups=4),
    conv((2, 7, 4, 3), (9, 7, 1, 1)),
    conv((1, 2, 3, 3), (3, 2, 5, 5), padding=(2, 2, 2, 2)),
    conv((2, 18, 5, 4), (21, 18, 3, 2), padding=(1, 0, 1, 1)),
    conv((2, 35, 5, 4), (35, 1, 3, 3), groups=35, padding=(1, 1, 1, 1), stride=(2, 1)),
    conv((1, 1, 49, 10), (4, 1, 10, 4), stride=(2, 2), padding=(4, 1, 5, 1)),
    # what networks are made of: depthwise, pointwise, shortcuts
    conv((1, 9, 7, 5), (9, 1, 3, 3), groups=9, padding=(1, 1, 1, 1)),
    conv((2, 3, 5, 13), (3, 1, 3, 3), groups=3, padding=(1, 1, 1, 1)),
    conv((1, 2, 4, 3), (2, 1, 3, 3), groups=2, padding=(1, 1, 1, 1), bias=False),
    conv((1, 11, 2, 8), (11, 1, 3, 3), groups=11, padding=(1, 1, 1, 1)),
    conv((2, 4, 5, 7), (4, 1, 3, 3), groups=4, padding=(1, 1, 1, 1)),
    conv((1, 6, 4, 11), (6, 1, 3, 3), groups=6, padding=(1, 0, 1, 1)),
    *(
        conv((n, c, h, w), (c, 1, 3, 3), groups=c, padding=(1, 1, 1, 1), stride=(2, 2))
        for n, c, h, w in ((1, 5, 7, 5), (2, 3, 4, 13), (1, 9, 1, 6), (1, 2, 6, 18))
    ),
    conv((1, 12, 5, 6), (7, 12, 1, 1)),
    conv((1, 4, 3, 9), (3, 4, 1, 1), bias=False),
    conv((1, 8, 1, 1), (5, 8, 1, 1)),
    conv((2, 8, 3, 5), (2, 8, 1, 1)),
    *(
        conv((n, 4, h, w), (3, 4, 1, 1), stride=(2, 2))
        for n, h, w in ((1, 5, 7), (2, 8, 6), (1, 1, 2), (1, 6, 19))
    ),
    *(
        conv((1, c, h, w), (o, c, 1, 1), stride=(2, 2), bias=False)
        for c, o, h, w in ((6, 5, 4, 9), (3, 8, 3, 16), (9, 2, 2, 5))
    ),
    # tiles of rows and columns that stick out
    conv((1, 8, 8, 16), (8, 8, 3, 3), padding=(1, 1, 1, 1)),
    conv((2, 9, 17, 6), (5, 9, 3, 3), padding=(1, 1, 1, 1), bias=False),
    conv((1, 3, 10, 11), (8, 3, 3, 3)),
    # wider windows: as far as the map or less, and spread out
    *(
        conv((n, c, 6, w), (3, c, 5, 5), padding=(2, side, 2, side))
        for n, c, w, side in (
            *((1, 2, 9, 2), (2, 3, 12, 2), (1, 1, 17, 2), (1, 2, 13, 2)),
            *((1, 2, 16, 0), (1, 3, 11, 0), (2, 1, 9, 0), (1, 2, 20, 0)),
        )
    ),
    *(
        conv((n, c, 5, w), (4, c, k, k), padding=(k // 2,) * 4, stride=(s, s))
        for k, s in ((3, 1), (3, 2), (5, 1), (7, 1))
        for n, c, w in ((1, 2, 12), (2, 2, 14), (1, 4, 17), (1, 2, 20))
    ),
    conv((1, 2, 9, 10), (4, 2, 4, 4), padding=(1, 1, 1, 1), stride=(2, 2)),
    conv((2, 3, 6, 7), (2, 3, 3, 4), padding=(0, 1, 0, 1), stride=(1, 2)),
    *(
        conv((n, c, 7, w), (4, c, 3, 3), padding=(2, 2, 2, 2), dilation=(2, 2))
        for n, c, w in ((1, 2, 6), (2, 3, 9), (1, 5, 11), (1, 1, 4))
    ),
)


def line(
    x: Shape,
    w: Shape,
    *,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    groups: int = 1,
) -> Case:
    """Convolution over one dimension."""
    attrs: dict[str, Any] = {"stride": (stride,), "padding": padding, "dilation": (dilation,)}
    return Case("conv2d", (x, w, (w[0],)), {**attrs, "groups": groups})


def transposed(
    x: Shape,
    w: Shape,
    *,
    stride: tuple[int, ...] = (1, 1),
    padding: tuple[int, ...] = (0, 0, 0, 0),
    dilation: tuple[int, ...] = (1, 1),
    extra: tuple[int, ...] = (0, 0),
    groups: int = 1,
) -> Case:
    dims = len(stride)
    reach = [dilation[d] * (w[2 + d] - 1) + 1 + extra[d] for d in range(dims)]
    size = tuple(
        (x[2 + d] - 1) * stride[d] - padding[d] - padding[d + dims] + reach[d] for d in range(dims)
    )
    attrs: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    return Case("conv_transpose", (x, w), {**attrs, "groups": groups, "size": size})


ROWS += (
    line((2, 3, 11), (4, 3, 3), padding=(1, 1)),
    line((1, 4, 9), (6, 2, 2), stride=2, padding=(0, 1), groups=2),
    line((2, 3, 13), (3, 1, 3), dilation=3, padding=(6, 0), groups=3),
    line((1, 1, 1), (1, 1, 1)),
    transposed((1, 1, 1, 1), (1, 1, 1, 1)),
    transposed((2, 3, 4, 5), (3, 4, 3, 2)),
    transposed((1, 4, 5, 4), (4, 3, 3, 3), stride=(2, 2), padding=(1, 1, 1, 1), extra=(1, 1)),
    transposed((1, 4, 3, 4), (4, 2, 2, 3), stride=(2, 3), dilation=(2, 1), groups=2, extra=(0, 2)),
    transposed((2, 3, 4, 3), (3, 1, 4, 4), stride=(2, 2), padding=(1, 0, 2, 1), groups=3),
    transposed((2, 3, 7), (3, 5, 4), stride=(2,), padding=(1, 1), dilation=(1,), extra=(1,)),
    transposed((1, 4, 5), (4, 1, 3), stride=(3,), padding=(0, 1), dilation=(2,), groups=2),
)


def random_row(chance: random.Random) -> Case:
    size = odd_sizes(chance)
    groups = chance.choice((1, 1, 2, 3))
    kernel = (size(4), size(4))
    dilation = (chance.randint(1, 2), chance.randint(1, 3))
    padding = tuple(chance.randint(0, 2) for _ in range(4))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    height = max(1, reach[0] - padding[0] - padding[2]) + size(8) - 1
    width = max(1, reach[1] - padding[1] - padding[3]) + size(8) - 1
    depthwise = chance.random() < 0.3
    channels = groups if depthwise else groups * size(4)
    out = groups * size(3) if depthwise else groups * size(5)
    return conv(
        (size(3), channels, height, width),
        (out, channels // groups, *kernel),
        stride=(chance.randint(1, 3), chance.randint(1, 3)),
        padding=(padding[0], padding[1], padding[2], padding[3]),
        dilation=dilation,
        groups=groups,
        bias=chance.random() < 0.7,
    )
