"""Activations and arithmetic, element by element."""

from __future__ import annotations

from tests.cases.base import Case

PAIRS = (
    ((3, 5), (3, 5)),
    ((2, 3, 4), (4,)),
    ((2, 1, 4), (1, 3, 1)),
    ((), (3, 4)),
    ((2, 3, 4, 5), (3, 1, 1)),
)

ROWS: tuple[Case, ...] = (
    *(
        Case("power", pair, positive=True, scale=1.5)
        for pair in (*PAIRS, ((7,), ()), ((1,), (3, 1)))
    ),
    *(Case("relu", (shape,)) for shape in ((1,), (7,), (2, 3, 5), (1, 16, 6, 6))),
    Case("add", ((3, 5), (3, 5))),
    Case("add", ((2, 3, 4), (4,))),
    Case("add", ((4,), (2, 3, 4))),
    Case("add", ((2, 1, 4), (1, 3, 1))),
    Case("add", ((2, 3, 4, 5), (3, 1, 1))),
    Case("add", ((3, 4), ())),
    Case("add", ((1, 1), (5, 7))),
    *(
        Case(op, pair, positive=op == "div")
        for op in ("sub", "mul", "div", "maximum", "minimum")
        for pair in PAIRS
    ),
)
