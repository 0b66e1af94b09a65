"""Masks that are known beforehand."""

from __future__ import annotations

from gradlet.graph import Shape
from tests.cases.base import Case


def masked(x: Shape, mask: Shape, value: float = -(2.0**100)) -> Case:
    return Case("masked_fill", (x, mask), {"value": value}, frozen=(1,))


ROWS: tuple[Case, ...] = (
    masked((1,), (1,), 0.5),
    masked((7,), (7,), 0.0),
    masked((2, 3, 5, 5), (5, 5), 0.25),
    masked((2, 3, 4, 5), (2, 1, 1, 5), -1.5),
    masked((3, 1), (4,), 2.0),
    masked((2, 5), (3, 1, 1), 0.0),
    masked((17, 3), (17, 3), 1.0),
)
