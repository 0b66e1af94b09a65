"""The case table: one row per op and setting. Several test modules run every row in several modes.

A module of this package holds the rows of one family, as ROWS. One whose loops are worth attacking
has `random_row` too, which makes seeded rows of odd sizes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from tests.cases.base import Case
from tests.cases.layout import other_layouts

_MODULES = [
    import_module(f"{__name__}.{name}")
    for name in sorted(module.name for module in iter_modules(__path__))
    if name not in ("base", "layout")
]
_ROWS: tuple[Case, ...] = tuple(row for module in _MODULES for row in module.ROWS)
CASES: tuple[Case, ...] = (*_ROWS, *(turned for row in _ROWS for turned in other_layouts(row)))


def random_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Seeded rows, in turn from every family that makes them, in every layout."""
    chance = random.Random(seed)
    makers = [module.random_row for module in _MODULES if hasattr(module, "random_row")]
    for index in range(count):
        row = makers[index % len(makers)](chance)
        yield row
        yield from other_layouts(row)


__all__ = ["CASES", "Case", "random_cases"]
