"""Adaptive maxima whose windows differ in size and overlap: columns first, then rows.

In that order a tie goes to the first element of the window as it is read, which is PyTorch's too.
"""

from __future__ import annotations

from gradlet.ops.concat import join
from gradlet.ops.crop import sliced
from gradlet.ops.importer import Importer
from gradlet.ops.shape import reshaped


def adaptive_max(imp: Importer, x: str, size: tuple[int, int]) -> str:
    rank = len(imp.shape(x))
    return _along(imp, _along(imp, x, rank - 1, size[1]), rank - 2, size[0])


def _along(imp: Importer, x: str, axis: int, count: int) -> str:
    shape = imp.shape(x)
    extent = shape[axis]
    if extent == count:
        return x
    parts = []
    for index in range(count):
        begin, end = index * extent // count, -(-(index + 1) * extent // count)
        part = sliced(imp, x, [(axis, begin, end, 1)])
        if end - begin > 1:
            part = imp.add("max", [part], {"axes": (axis,), "first": True})
        parts.append(reshaped(imp, part, (*shape[:axis], 1, *shape[axis + 1 :])))
    return join(imp, parts, axis)
