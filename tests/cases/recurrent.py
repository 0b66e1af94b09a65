"""Recurrent layers: both storage orders, both directions, one time, one unit, one sample; with and
without gradients of the states before the first time."""

from __future__ import annotations

import random

from gradlet.ir.graph import Shape
from tests.cases.base import Case, odd_sizes

GATES = {"rnn": 1, "gru": 3, "gru_reset": 3, "lstm": 4}
WIDE = {"rnn": 92, "gru": 53, "lstm": 46}
"""Units whose weights count as many."""


def _case(
    op: str,
    extents: tuple[int, int, int],
    *,
    batch_first: bool = False,
    reverse: bool = False,
    relu: bool = False,
    initial: bool = True,
    learnt: tuple[int, ...] = (0,),
    peepholes: bool = False,
    scale: float = 0.6,  # far from saturation, and no explosion over a few times
) -> Case:
    times, batch, hidden = extents
    lead = (batch, times) if batch_first else (times, batch)
    wide = GATES[op] * hidden
    shapes: list[Shape] = [(*lead, wide), (wide, hidden), (batch, hidden)]
    if op.startswith("gru"):
        shapes.insert(2, (wide,))
    if op == "lstm":
        shapes += [(batch, hidden), *([(3 * hidden,)] if peepholes else [])]
    attrs = {"batch_first": batch_first, "reverse": reverse}
    states = {"rnn": (2,), "lstm": (2, 3)}.get(op, (3,))
    return Case(
        op,
        tuple(shapes),
        {"relu": relu, **attrs} if op == "rnn" else attrs,
        frozen=() if initial else states,
        scale=scale,
        learnt=learnt,
    )


ROWS: tuple[Case, ...] = (
    *(
        _case(op, extents, batch_first=first, reverse=reverse, initial=initial)
        for op in GATES
        for extents, first, reverse, initial in (
            ((4, 2, 3), False, False, True),
            ((5, 3, 9), True, False, False),
            ((3, 2, 5), False, True, False),
            ((6, 2, 4), True, True, True),
            ((1, 1, 1), False, False, True),
            ((1, 3, 8), True, False, False),
            ((7, 1, 17), False, True, True),
        )
    ),
    *(
        _case(op, (times, batch, size + more), batch_first=first, reverse=reverse, scale=0.2)
        for op, size in WIDE.items()
        for times, batch, more, first, reverse in (
            (2, 1, 0, False, False),
            (1, 2, 1, True, False),
            (2, 2, 3, False, True),
            (3, 1, 6, True, True),
        )
    ),
    _case("rnn", (4, 2, 5), relu=True),
    _case("rnn", (3, 1, 4), relu=True, reverse=True, batch_first=True, initial=False),
    _case("lstm", (4, 2, 3), learnt=(0, 1)),
    _case("lstm", (3, 1, 5), learnt=(1,), initial=False),
    _case("lstm", (5, 2, 3), learnt=(0, 1), reverse=True, batch_first=True),
    _case("lstm", (4, 2, 3), peepholes=True),
    _case("lstm", (1, 2, 5), peepholes=True, initial=False),
    _case("lstm", (4, 3, 2), peepholes=True, learnt=(0, 1), reverse=True, batch_first=True),
)


def random_row(chance: random.Random) -> Case:
    size = odd_sizes(chance)
    return _case(
        chance.choice(list(GATES)),
        (size(6), size(4), size(12)),
        batch_first=chance.random() < 0.5,
        reverse=chance.random() < 0.5,
        initial=chance.random() < 0.5,
    )
