"""Views, permutations, slices, padding and running sums."""

from __future__ import annotations

from tests.cases.base import Case

ROWS: tuple[Case, ...] = (
    Case("reshape", ((2, 3, 4),), {"shape": (6, 4)}),
    Case("reshape", ((1,),), {"shape": (1, 1, 1)}),
    Case("transpose", ((2, 3, 4),), {"axes": (2, 0, 1)}),
    Case("transpose", ((3, 4),), {"axes": (1, 0)}),
    Case("transpose", ((2, 3, 4, 5),), {"axes": (0, 2, 3, 1)}),
    Case("transpose", ((1, 5, 1, 3),), {"axes": (3, 2, 1, 0)}),
    Case("slice", ((5, 7, 3),), {"start": (1, 0, 1), "step": (2, 3, 1), "size": (2, 3, 2)}),
    Case("slice", ((6,),), {"start": (5,), "step": (1,), "size": (1,)}),
    Case("pad", ((2, 3, 4),), {"start": (0, 1, 2), "step": (1, 1, 1), "size": (2, 5, 7)}),
    *(
        Case("pad", ((2, 3),), {"start": (0, 1), "step": (1, 1), "size": (4, 4), "value": value})
        for value in (-1.5, 0.1)
    ),
    Case("flip", ((2, 3, 4),), {"axes": (1,)}),
    Case("flip", ((2, 3, 4),), {"axes": (0, 1, 2)}),
    Case("flip", ((5, 1, 7),), {"axes": (0, 2)}),
    Case("flip", ((1,),), {"axes": (0,)}),
    *(
        Case("cumsum", (shape,), {"axis": axis, "reverse": reverse, "exclusive": exclusive})
        for shape, axis in (((5,), 0), ((2, 7, 3), 1), ((1, 4), 0), ((3, 9), 1))
        for reverse in (False, True)
        for exclusive in (False, True)
    ),
    Case("pad", ((2, 3),), {"start": (1, 0), "step": (3, 2), "size": (6, 5)}),
)
