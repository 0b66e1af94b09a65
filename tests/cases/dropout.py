"""Dropout; the integer operand is its state: seed, step, and whether anything is dropped."""

from __future__ import annotations

from gradlet.ir.graph import Attrs, Shape
from tests.cases.base import Case


def dropout(shape: Shape, p: float, salt: int = 0, group: int = 1, states: int = 1000) -> Case:
    attrs = {"p": p, "group": group, "salt": salt}
    return Case("dropout", (shape, (3,)), attrs, labels=states)


def ordered(view: Shape, order: tuple[int, ...], group: int, shape: Shape = ()) -> Case:
    """Of a tensor that does not lie as the model has it, maybe flattened."""
    turned = tuple(view[dim] for dim in order)
    attrs: Attrs = {"p": 0.5, "group": group, "salt": 7, "view": view, "order": order}
    return Case("dropout", (shape or turned, (3,)), attrs, labels=9)


ROWS: tuple[Case, ...] = (
    dropout((1,), 0.5),
    dropout((100,), 0.5, 1),
    dropout((3, 5, 7), 0.1, 2),
    dropout((3, 5, 2, 3), 0.4, 3, group=6),
    dropout((4, 9), 1.0, 4),
    dropout((4, 9), 0.25, 5, states=1),  # all zero: nothing is dropped
    ordered((2, 3, 4, 5), (0, 2, 3, 1), 1),
    ordered((2, 3, 4, 5), (0, 2, 3, 1), 20),
    ordered((2, 3, 4, 5), (0, 2, 3, 1), 1, (2, 60)),
    ordered((1, 7, 1, 3), (0, 3, 2, 1), 1),
    dropout((13, 2), 0.9, 6, states=2**31 - 1),
)
