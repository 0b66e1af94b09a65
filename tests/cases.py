"""The case table: one row per op and setting. Several test modules run every row in several modes.

A row gives the op, the shapes of its operands and its attributes. `random_cases` adds seeded rows
of odd sizes for the ops whose loops are worth attacking.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gradlet.graph import Attrs, Shape


@dataclass(frozen=True)
class Case:
    """`labels` is the number of classes that an integer operand counts; `frozen` operands get no
    gradient."""

    op: str
    shapes: tuple[Shape, ...]
    attrs: Attrs = field(default_factory=dict)
    labels: int = 0
    frozen: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        shapes = "_".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        attrs = "-".join(_short(value) for value in self.attrs.values())
        return f"{self.op}-{shapes}-{attrs}".rstrip("-")


def _short(value: Any) -> str:
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


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


def gemm(layout: str, m: int, n: int, k: int, lead: Shape = (), bias: bool = False) -> Case:
    a = (k, m) if layout == "tn" else (m, k)
    b = (n, k) if layout == "nt" else (k, n)
    shapes = ((*lead, *a), (*lead, *b), *([(n,)] if bias else []))
    return Case("matmul", shapes, {"layout": layout})


CASES: tuple[Case, ...] = (
    *(
        gemm(layout, m, n, k)
        for layout in ("nn", "nt", "tn")
        for m, n, k in ((1, 1, 1), (1, 7, 5), (4, 16, 8), (5, 17, 33), (13, 1, 3), (3, 70, 2))
    ),
    *(gemm(layout, 3, 5, 4, lead=(2, 3)) for layout in ("nn", "nt", "tn")),
    *(gemm(layout, 6, 21, 9, bias=True) for layout in ("nn", "nt", "tn")),
    Case("matmul", ((2, 3, 4, 5), (6, 5), (6,)), {"layout": "nt"}),
    Case("matmul", ((2, 3, 5), (5, 7)), {"layout": "nn"}),
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
    conv((1, 1, 49, 10), (4, 1, 10, 4), stride=(2, 2), padding=(4, 1, 5, 1)),
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
    *(Case("relu", (shape,)) for shape in ((1,), (7,), (2, 3, 5), (1, 16, 6, 6))),
    Case("add", ((3, 5), (3, 5))),
    Case("add", ((2, 3, 4), (4,))),
    Case("add", ((4,), (2, 3, 4))),
    Case("add", ((2, 1, 4), (1, 3, 1))),
    Case("add", ((2, 3, 4, 5), (3, 1, 1))),
    Case("add", ((3, 4), ())),
    Case("add", ((1, 1), (5, 7))),
    Case("sum", ((2, 3, 4),), {"axes": (0, 2)}),
    Case("sum", ((2, 3, 4),), {"axes": (1,)}),
    Case("sum", ((5, 6),), {"axes": (0, 1)}),
    Case("sum", ((2, 3, 4, 5, 6),), {"axes": (0, 2, 4)}),
    Case("sum", ((7,),), {"axes": (0,)}),
    Case("expand", ((2, 1, 4),), {"shape": (3, 2, 5, 4)}),
    Case("expand", ((1,),), {"shape": (7,)}),
    Case("reshape", ((2, 3, 4),), {"shape": (6, 4)}),
    Case("reshape", ((1,),), {"shape": (1, 1, 1)}),
    Case("transpose", ((2, 3, 4),), {"axes": (2, 0, 1)}),
    Case("transpose", ((3, 4),), {"axes": (1, 0)}),
    Case("transpose", ((2, 3, 4, 5),), {"axes": (0, 2, 3, 1)}),
    Case("transpose", ((1, 5, 1, 3),), {"axes": (3, 2, 1, 0)}),
    Case("slice", ((5, 7, 3),), {"start": (1, 0, 1), "step": (2, 3, 1), "size": (2, 3, 2)}),
    Case("slice", ((6,),), {"start": (5,), "step": (1,), "size": (1,)}),
    Case("pad", ((2, 3, 4),), {"start": (0, 1, 2), "step": (1, 1, 1), "size": (2, 5, 7)}),
    Case("pad", ((2, 3),), {"start": (1, 0), "step": (3, 2), "size": (6, 5)}),
    Case("cross_entropy", ((1, 2), (1,)), labels=2),
    Case("cross_entropy", ((5, 7), (5,)), labels=7),
    Case("cross_entropy", ((3, 1), (3,)), labels=1),
    Case("cross_entropy", ((2, 4, 3, 5), (2, 3, 5)), labels=4),
    Case("mse", ((3, 5), (3, 5)), frozen=(1,)),
    Case("mse", ((1,), (1,)), frozen=(1,)),
)


def random_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Seeded odd sizes, with many ones among them, for the kernels with leftovers."""
    chance = random.Random(seed)

    def size(top: int) -> int:
        return chance.choice((1, 1, 2, 3, chance.randint(1, top)))

    for index in range(count):
        kind = index % 3
        if kind == 0:
            layout = chance.choice(("nn", "nt", "tn"))
            yield gemm(layout, size(20), size(80), size(40), bias=chance.random() < 0.5)
        elif kind == 1:
            yield _random_conv(chance, size)
        else:
            yield _random_pool(chance, size)


def _random_conv(chance: random.Random, size: Any) -> Case:
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


def _random_pool(chance: random.Random, size: Any) -> Case:
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
