"""Rows of a table by index, and their gradients."""

from __future__ import annotations

import random

from tests.cases.base import Case, odd_sizes


def gather(rows: int, index: tuple[int, ...], *width: int, skip: int = -1) -> Case:
    return Case("gather", ((rows, *width), index), {"skip": skip}, labels=rows)


ROWS: tuple[Case, ...] = (
    gather(5, (7,), 3),
    gather(1, (1,), 1),
    gather(1, (6,), 2),
    gather(11, (2, 3), 4, skip=0),
    gather(3, (2, 2, 2), 5, skip=2),
    gather(6, (4,)),
    gather(4, (9,), 2, 3),
    gather(40, (3,), 17),
)


def random_row(chance: random.Random) -> Case:
    size = odd_sizes(chance)
    rows = size(20)
    skip = chance.choice((-1, -1, rows - 1))
    return gather(rows, (size(4), size(9)), size(12), skip=skip)
