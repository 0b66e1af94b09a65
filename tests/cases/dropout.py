"""Dropout; the integer operand is its state: seed, step, and whether anything is dropped."""

from __future__ import annotations

from gradlet.graph import Shape
from tests.cases.base import Case


def dropout(shape: Shape, p: float, salt: int = 0, group: int = 1, states: int = 1000) -> Case:
    attrs = {"p": p, "group": group, "salt": salt}
    return Case("dropout", (shape, (3,)), attrs, labels=states)


ROWS: tuple[Case, ...] = (
    dropout((1,), 0.5),
    dropout((100,), 0.5, 1),
    dropout((3, 5, 7), 0.1, 2),
    dropout((3, 5, 2, 3), 0.4, 3, group=6),
    dropout((4, 9), 1.0, 4),
    dropout((4, 9), 0.25, 5, states=1),  # all zero: nothing is dropped
    dropout((13, 2), 0.9, 6, states=2**31 - 1),
)
