"""Losses."""

from __future__ import annotations

from tests.cases.base import Case

ROWS: tuple[Case, ...] = (
    Case("cross_entropy", ((1, 2), (1,)), labels=2),
    Case("cross_entropy", ((5, 7), (5,)), labels=7),
    Case("cross_entropy", ((3, 1), (3,)), labels=1),
    Case("cross_entropy", ((2, 4, 3, 5), (2, 3, 5)), labels=4),
    Case("mse", ((3, 5), (3, 5)), frozen=(1,)),
    Case("mse", ((1,), (1,)), frozen=(1,)),
)
