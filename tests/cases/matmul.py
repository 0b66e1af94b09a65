"""Matrix products."""

from __future__ import annotations

import random

from gradlet.ir.graph import Shape
from tests.cases.base import Case, odd_sizes


def gemm(layout: str, m: int, n: int, k: int, lead: Shape = (), bias: bool = False) -> Case:
    a = (k, m) if layout == "tn" else (m, k)
    b = (n, k) if layout == "nt" else (k, n)
    shapes = ((*lead, *a), (*lead, *b), *([(n,)] if bias else []))
    return Case("matmul", shapes, {"layout": layout})


ROWS: tuple[Case, ...] = (
    *(
        gemm(layout, m, n, k)
        for layout in ("nn", "nt", "tn")
        for m, n, k in ((1, 1, 1), (1, 7, 5), (4, 16, 8), (5, 17, 33), (13, 1, 3), (3, 70, 2))
    ),
    *(gemm(layout, 3, 5, 4, lead=(2, 3)) for layout in ("nn", "nt", "tn")),
    *(gemm(layout, 6, 21, 9, bias=True) for layout in ("nn", "nt", "tn")),
    *(  # so many weights that kernels fetch them piece by piece
        gemm("nt", 1, n, k, bias=bias)
        for n, k, bias in ((61, 70, True), (128, 33, False), (37, 129, True), (70, 64, False))
    ),
    Case("matmul", ((2, 3, 4, 5), (6, 5), (6,)), {"layout": "nt"}),
    Case("matmul", ((2, 3, 5), (5, 7)), {"layout": "nn"}),
)


def random_row(chance: random.Random) -> Case:
    size = odd_sizes(chance)
    layout = chance.choice(("nn", "nt", "tn"))
    return gemm(layout, size(20), size(80), size(40), bias=chance.random() < 0.5)
