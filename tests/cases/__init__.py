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

_MODULES = [
    import_module(f"{__name__}.{name}")
    for name in sorted(module.name for module in iter_modules(__path__))
    if name != "base"
]
CASES: tuple[Case, ...] = tuple(row for module in _MODULES for row in module.ROWS)


def random_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Seeded rows, in turn from every family that makes them."""
    chance = random.Random(seed)
    makers = [module.random_row for module in _MODULES if hasattr(module, "random_row")]
    for index in range(count):
        yield makers[index % len(makers)](chance)


__all__ = ["CASES", "Case", "random_cases"]
