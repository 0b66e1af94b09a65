"""Elements by index, sorted elements, whole numbers, and what becomes of bad indices."""

from __future__ import annotations

import random

from gradlet.ir.graph import Shape
from tests.cases.base import Case, odd_sizes


def take(x: Shape, axis: int, index: Shape) -> Case:
    return Case("take", (x, index), {"axis": axis}, labels=x[axis])


def put_sum(x: Shape, axis: int, length: int, *, shared: bool = False) -> Case:
    index = tuple(n if dim == axis or not shared else 1 for dim, n in enumerate(x))
    return Case("put_sum", (x, index), {"axis": axis, "length": length}, labels=length)


def put(x: Shape, axis: int, count: int, *, shared: bool = False) -> Case:
    new = (*x[:axis], count, *x[axis + 1 :])
    index = tuple(n if dim == axis or not shared else 1 for dim, n in enumerate(new))
    return Case("put", (x, index, new), {"axis": axis}, labels=x[axis], distinct=True)


def sort(x: Shape, axis: int, count: int, *, largest: bool) -> Case:
    return Case("sort", (x,), {"axis": axis, "count": count, "largest": largest})


ROWS: tuple[Case, ...] = (
    take((5,), 0, (7,)),
    take((1,), 0, (1,)),
    take((3, 4, 5), 1, (3, 6, 5)),
    take((3, 4, 5), 1, (1, 2, 1)),
    take((2, 3, 4), 2, (1, 1, 9)),
    take((7, 3), 0, (2, 3)),
    take((40, 1, 17), 0, (5, 1, 17)),
    put_sum((7,), 0, 5),
    put_sum((1, 1), 1, 1),
    put_sum((3, 6, 5), 1, 4),
    put_sum((3, 6, 5), 1, 4, shared=True),
    put_sum((2, 9), 1, 30, shared=True),
    put((5,), 0, 3),
    put((1, 1), 1, 1),
    put((3, 6, 5), 1, 4),
    put((3, 6, 5), 2, 5, shared=True),
    put((2, 33), 1, 2),
    sort((9,), 0, 9, largest=True),
    sort((1,), 0, 1, largest=False),
    sort((3, 7, 2), 1, 7, largest=False),
    sort((3, 7, 2), 1, 3, largest=True),
    sort((2, 40), 1, 1, largest=True),
    sort((17, 5), 0, 16, largest=False),
    *(Case("number", (s,), labels=9, integers=(0,)) for s in ((1,), (7,), (3, 5), (9, 37))),
    *(Case("to_index", (s,), frozen=(0,), scale=20.0) for s in ((1,), (7,), (3, 5), (9, 37))),
    *(
        Case("flat_index", shapes, {"size": 7}, labels=7, integers=(0, 1))
        for shapes in (((5,),), ((4, 1), (3,)), ((2, 3, 4), (3, 1)), ((1,), (1,)), ((6,), (6,)))
    ),
    *(
        Case("index_fault", shapes, {"rows": 5}, labels=5, integers=(0,), frozen=(1,))
        for shapes in (((7,),), ((2, 3),), ((1,), (1,)), ((9, 3), (1,)))
    ),
    *(Case("guard", (s, (1,)), frozen=(1,)) for s in ((1,), (7,), (2, 3, 5), (9, 37))),
)


def random_row(chance: random.Random) -> Case:
    size = odd_sizes(chance)
    shape, axis, count = (size(4), size(20), size(7)), chance.randint(0, 2), size(20)
    shared = chance.random() < 0.4
    match chance.choice(("take", "put_sum", "put", "sort")):
        case "take":
            rest = [1 if shared else n for n in shape]
            return take(shape, axis, (*rest[:axis], count, *rest[axis + 1 :]))
        case "put_sum":
            return put_sum(shape, axis, count, shared=shared)
        case "put":
            return put(shape, axis, min(count, shape[axis]), shared=shared)
    return sort(shape, axis, min(count, shape[axis]), largest=chance.random() < 0.5)
