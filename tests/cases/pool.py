"""Pooling."""

from __future__ import annotations

import random
from typing import Any

from gradlet.graph import Shape
from tests.cases.base import Case, odd_sizes


def pool(
    op: str,
    x: Shape,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    count_include_pad: bool = True,
) -> Case:
    attrs: dict[str, Any] = {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
    }
    if op == "avg_pool2d":
        attrs["count_include_pad"] = count_include_pad
    return Case(op, (x,), attrs)


ROWS: tuple[Case, ...] = (
    pool("max_pool2d", (1, 2, 6, 6), (2, 2), (2, 2)),
    pool("max_pool2d", (2, 3, 7, 5), (3, 2), (2, 1), (1, 1, 1, 0)),
    pool("max_pool2d", (1, 1, 9, 8), (3, 3), (1, 2), dilation=(2, 2)),
    pool("max_pool2d", (1, 3, 1, 1), (1, 1), (1, 1)),
    pool("max_pool2d", (1, 2, 8, 8), (3, 3), (1, 1), (1, 1, 1, 1)),
    pool("avg_pool2d", (1, 2, 6, 6), (2, 2), (2, 2)),
    pool("avg_pool2d", (2, 3, 7, 5), (3, 2), (2, 1), (1, 1, 1, 0), count_include_pad=True),
    pool("avg_pool2d", (2, 3, 7, 5), (3, 2), (2, 1), (1, 1, 1, 0), count_include_pad=False),
    pool("avg_pool2d", (1, 5, 4, 7), (4, 7), (1, 1)),
    pool("avg_pool2d", (1, 2, 5, 5), (3, 3), (1, 1), (1, 1, 1, 1), count_include_pad=False),
)


def random_row(chance: random.Random) -> Case:
    size = odd_sizes(chance)
    kernel = (size(4), size(4))
    half = [k // 2 for k in kernel]
    padding = tuple(chance.randint(0, half[i % 2]) for i in range(4))
    shape = (size(2), size(3), kernel[0] + size(6) - 1, kernel[1] + size(6) - 1)
    return pool(
        chance.choice(("max_pool2d", "avg_pool2d")),
        shape,
        kernel,
        (chance.randint(1, 3), chance.randint(1, 3)),
        (padding[0], padding[1], padding[2], padding[3]),
        count_include_pad=chance.random() < 0.5,
    )
