"""Softmax over the first, a middle and the last dimension."""

from __future__ import annotations

from tests.cases.base import Case

ROWS: tuple[Case, ...] = tuple(
    Case(op, (shape,), {"axis": axis}, scale=4.0)
    for op in ("softmax", "log_softmax")
    for shape, axis in (((7,), 0), ((3, 5), 1), ((4, 1), 1), ((2, 5, 3), 1), ((6, 2, 3), 0))
)
