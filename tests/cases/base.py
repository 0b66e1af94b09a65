"""A row of the case table."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradlet.ir.elements import F32
from gradlet.ir.graph import Attrs, Shape


@dataclass(frozen=True)
class Case:
    """`labels` is the number of classes that the operands `integers` count, each of a line only
    once if they are `distinct`; `frozen` operands get no gradient; the standard-normal values are
    stretched by `scale`, are kept away from 0 on the right if `positive`, are rounded, with ties,
    if `whole`, and are of type `dtype`; the loss sees the `learnt` ones of the results; `training`
    is what the recipe of the row's training graph has beside its loss."""

    op: str
    shapes: tuple[Shape, ...]
    attrs: Attrs = field(default_factory=dict)
    labels: int = 0
    integers: tuple[int, ...] = (1,)
    distinct: bool = False
    frozen: tuple[int, ...] = ()
    scale: float = 1.0
    positive: bool = False
    whole: bool = False
    dtype: str = F32.name
    learnt: tuple[int, ...] = (0,)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        shapes = "_".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        attrs = "-".join(_short(v) for v in (*self.attrs.values(), *self.training.values()))
        own = "" if self.dtype == F32.name else f"-{self.dtype}"
        return f"{self.op}-{shapes}-{attrs}".rstrip("-") + own


def _short(value: Any) -> str:
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


def odd_sizes(chance: random.Random) -> Callable[[int], int]:
    """Sizes up to a limit, with many ones among them."""
    return lambda top: chance.choice((1, 1, 2, 3, chance.randint(1, top)))
