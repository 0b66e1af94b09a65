"""Pooling."""

from __future__ import annotations

import random
from typing import Any

from gradlet.ir.graph import Shape
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
    *(
        pool(op, x, (kernel, kernel), stride, padding)
        for op in ("max_pool2d", "avg_pool2d")
        for kernel in (2, 3)
        for x, stride, padding in (
            ((1, 9, 5, 6), (2, 2), (0, 0, 0, 0)),
            ((2, 1, 6, 3), (1, 3), (1, 1, 1, 1)),
            ((1, 2, 9, 8), (3, 1), (0, 1, 1, 0)),
        )
    ),
    pool("avg_pool2d", (2, 3, 5, 1), (5, 1), (1, 1)),
    pool("avg_pool2d", (1, 9, 1, 7), (1, 7), (1, 1)),
    pool("avg_pool2d", (2, 2, 2, 3), (2, 3), (2, 1)),
    pool("max_pool2d", (1, 2, 8, 8), (3, 3), (1, 1), (1, 1, 1, 1)),
    pool("avg_pool2d", (1, 2, 6, 6), (2, 2), (2, 2)),
    pool("avg_pool2d", (2, 3, 7, 5), (3, 2), (2, 1), (1, 1, 1, 0), count_include_pad=True),
    pool("avg_pool2d", (2, 3, 7, 5), (3, 2), (2, 1), (1, 1, 1, 0), count_include_pad=False),
    pool("avg_pool2d", (1, 5, 4, 7), (4, 7), (1, 1)),
    pool("avg_pool2d", (1, 2, 5, 5), (3, 3), (1, 1), (1, 1, 1, 1), count_include_pad=False),
)


def resample(x: Shape, size: tuple[int, int], method: str) -> Case:
    return Case("resample2d", (x,), {"size": size, "method": method})


def beyond(case: Case, **more: Any) -> Case:
    """With windows that reach beyond the padding, or another divisor."""
    return Case(case.op, case.shapes, {**case.attrs, **more})


ROWS += (
    beyond(pool("max_pool2d", (1, 2, 6, 7), (3, 3), (2, 2)), ceil=(1, 0)),
    beyond(pool("avg_pool2d", (2, 1, 6, 8), (3, 3), (2, 2), (1, 1, 1, 1)), ceil=(1, 1)),
    beyond(
        pool("avg_pool2d", (1, 2, 6, 8), (3, 3), (2, 2), (1, 1, 1, 1), count_include_pad=False),
        ceil=(1, 1),
    ),
    beyond(pool("avg_pool2d", (1, 2, 5, 5), (2, 2), (2, 2)), ceil=(1, 1)),
    beyond(pool("avg_pool2d", (1, 2, 5, 6), (3, 2), (2, 2), (1, 0, 1, 0)), divisor=5),
    *(
        resample(x, size, method)
        for method in ("nearest", "linear", "corners", "mean")
        for x, size in (
            ((1, 1, 1, 1), (1, 1)),
            ((2, 3, 4, 5), (8, 10)),
            ((1, 2, 5, 3), (3, 7)),
            ((2, 1, 7, 6), (1, 5)),
        )
    ),
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
