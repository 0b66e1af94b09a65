"""Normalisation over batch, channels, groups and rows, with and without weight and bias."""

from __future__ import annotations

from gradlet.ir.graph import Shape
from tests.cases.base import Case


def norm(x: Shape, axes: tuple[int, ...], *affine: Shape, center: bool = True) -> Case:
    return Case("normalize", (x, *affine), {"axes": axes, "eps": 1e-3, "center": center})


ROWS: tuple[Case, ...] = (
    norm((3, 4, 5, 2), (0, 2, 3), (4, 1, 1), (4, 1, 1)),
    norm((5, 7), (0,), (7,), (7,)),
    norm((2, 3, 9), (2,), (9,), (9,)),
    norm((2, 3, 4), (1, 2), (3, 4)),
    norm((2, 3, 4, 5), (2, 3), (3, 1, 1), (3, 1, 1)),
    norm((2, 2, 3, 5), (2, 3), (2, 3, 1), (2, 3, 1)),
    norm((3, 5, 2, 4), (0, 1, 2), (1, 1, 4), (1, 1, 4)),
    norm((2, 3, 5, 2, 3), (1, 2, 4), (1, 1, 2, 3), (1, 1, 2, 3)),
    norm((4, 6), (1,)),
    norm((4, 6), (1,), (6,), center=False),
    norm((1, 11), (1,), center=False),
    *(
        Case("variance", (shape,), {"axes": axes})
        for shape, axes in (((3, 4, 5), (0, 2)), ((7,), (0,)), ((2, 9), (1,)), ((6, 2), (0,)))
    ),
    *(
        Case("frozen_norm", shapes, {"eps": 1e-3}, frozen=(1, 2), positive=True)
        for shapes in (
            ((3, 4, 5, 2), (4,), (4,), (4,), (4,)),
            ((5, 7), (7,), (7,)),
            ((2, 3, 11), (3,), (3,), (3,)),
            ((1, 1, 1, 1), (1,), (1,), (1,), (1,)),
        )
    ),
    *(Case("blend", ((n,), (n,)), {"momentum": 0.1, "scale": 1.25}) for n in (1, 3, 8, 17)),
    *(
        Case("blend", ((n,), (n,)), {"momentum": 0.1, "scale": 1.25, "guard": True})
        for n in (1, 3, 8, 17)
    ),
)
