"""Sums and repetition."""

from __future__ import annotations

from tests.cases.base import Case

ROWS: tuple[Case, ...] = (
    Case("sum", ((2, 3, 4),), {"axes": (0, 2)}),
    Case("sum", ((2, 3, 4),), {"axes": (1,)}),
    Case("sum", ((5, 6),), {"axes": (0, 1)}),
    Case("sum", ((2, 3, 4, 5, 6),), {"axes": (0, 2, 4)}),
    Case("sum", ((7,),), {"axes": (0,)}),
    Case("expand", ((2, 1, 4),), {"shape": (3, 2, 5, 4)}),
    *(
        Case("max", (shape,), {"axes": axes, "first": False})
        for shape, axes in (((2, 3, 4), (0, 2)), ((5, 6), (0, 1)), ((7,), (0,)), ((3, 1, 5), (1,)))
    ),
    *(
        Case("max", (shape,), {"axes": (axis,), "first": True})
        for shape, axis in (((2, 3, 4), 1), ((5, 6), 0), ((5, 6), 1))
    ),
    Case("expand", ((1,),), {"shape": (7,)}),
)
