"""Masks, what they are made of, and what they choose."""

from __future__ import annotations

from gradlet.ir.graph import Shape
from tests.cases.base import Case


def masked(x: Shape, mask: Shape, value: float = -(2.0**100), **attrs: bool) -> Case:
    return Case("masked_fill", (x, mask), {"value": value, **attrs}, frozen=(1,))


PAIRS = (
    ((1,), (1,)),
    ((37,), (37,)),
    ((3, 5), (3, 5)),
    ((2, 3, 4), (4,)),
    ((2, 1, 4), (1, 3, 1)),
    ((), (3, 4)),
    ((2, 3, 4, 5), (3, 1, 1)),
)
TRIPLES: tuple[tuple[Shape, Shape, Shape], ...] = (
    ((1,), (1,), (1,)),
    ((37,), (37,), (37,)),
    ((4, 5), (4, 5), (4, 5)),
    ((3, 1), (3, 4), (1, 4)),
    ((5,), (2, 3, 5), ()),
    ((2, 1, 5), (1,), (2, 3, 5)),
    ((2, 3, 1, 1), (3, 4, 1), (2, 1, 4, 5)),
)


ROWS: tuple[Case, ...] = (
    masked((1,), (1,), 0.5),
    masked((7,), (7,), 0.0),
    masked((2, 3, 5, 5), (5, 5), 0.25),
    masked((2, 3, 4, 5), (2, 1, 1, 5), -1.5),
    masked((3, 1), (4,), 2.0),
    masked((2, 5), (3, 1, 1), 0.0),
    masked((17, 3), (17, 3), 1.0),
    masked((1,), (1,), 0.5, keep=True),
    masked((33,), (33,), 0.0, keep=True),
    masked((2, 3, 4, 5), (3, 1, 1), -1.5, keep=True),
    masked((3, 1), (4,), 2.0, keep=True),
    *(
        Case(op, pair, whole=True, frozen=(0, 1))
        for op in ("gt", "ge", "eq", "ne")
        for pair in PAIRS
    ),
    *(Case("select", shapes, frozen=(0,)) for shapes in TRIPLES),
)
