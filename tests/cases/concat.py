"""Joining two to four tensors."""

from __future__ import annotations

from tests.cases.base import Case

ROWS: tuple[Case, ...] = (
    Case("concat", ((2, 3), (2, 4)), {"axis": 1}),
    Case("concat", ((2, 3), (5, 3)), {"axis": 0}),
    Case("concat", ((1,), (1,), (3,)), {"axis": 0}),
    Case("concat", ((2, 3, 5), (2, 1, 5), (2, 2, 5), (2, 7, 5)), {"axis": 1}),
    Case("concat", ((3, 2, 1), (3, 2, 1), (3, 2, 4)), {"axis": 2}),
)
