"""Rows of a weight in their place: at the start, in the middle, at the end, all of them."""

from __future__ import annotations

from tests.cases.base import Case

ROWS: tuple[Case, ...] = tuple(
    Case("set_rows", (shape, (count, *shape[1:])), {"begin": begin}, frozen=(0,))
    for shape, begin, count in (
        ((1,), 0, 1),
        ((5,), 0, 2),
        ((7,), 3, 4),
        ((6, 3), 2, 1),
        ((9, 2, 3, 5), 4, 3),
        ((4, 1, 1, 1), 0, 4),
    )
)
