"""The tables that the runtime walks for a tiled call (gl_tiles.h), as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from gradlet.ops.base import Size
from gradlet.plan.tiling import Lines, TileAxis, Tiling, Window, lines_of

WORD = 4
HEAD_WORDS, WINDOW_WORDS, STEP_WORDS, BOX_WORDS = 20, 6, 6, 5
STATE_WORDS, FRAME_WORDS = 6, 4
"""Of gl_tiling, gl_window, gl_step, gl_box; of a window's state, of a frame besides operands."""


@dataclass(frozen=True)
class Step:
    axis: int
    radix: int
    delta: int
    back: int
    most: int


@dataclass(frozen=True)
class Row:
    """A window in the table: which operand it is, its steps, and its boxes by kind."""

    position: int
    window: Window
    steps: tuple[Step, ...]
    boxes: tuple[Lines, ...]


def rows(tiling: Tiling) -> list[Row]:
    """Windows that move or are copied; the others are plain addresses."""
    return [
        Row(position, window, _steps(window, tiling.axes), _boxes(window, tiling))
        for position, window in enumerate(tiling.windows)
        if window and (window.near or window.spans)
    ]


def radices(axes: Sequence[TileAxis]) -> list[int]:
    return [prod(axis.kind_count for axis in axes[n + 1 :]) for n in range(len(axes))]


def _steps(window: Window, axes: Sequence[TileAxis]) -> tuple[Step, ...]:
    own = [axes[number] for number in window.axes]
    radix = dict(zip(window.axes, radices(own), strict=True))
    steps = []
    for number, span in window.spans:
        stride = prod(window.shape[span.dim + 1 :]) * WORD
        delta = axes[number].tile * span.step * stride
        most = (window.shape[span.dim] - 1) * stride
        # of two dimensions along one axis, one tells the kind
        steps.append(Step(number, radix.pop(number, 0), delta, -span.start * stride, most))
    return tuple(steps)


def _boxes(window: Window, tiling: Tiling) -> tuple[Lines, ...]:
    if not window.near:
        return ()
    own = [tiling.axes[number] for number in window.axes]
    firsts = [[axis.kinds.index(kind) for kind in range(axis.kind_count)] for axis in own]
    found = []
    for index in product(*firsts):
        at = dict(zip(window.axes, index, strict=True))
        ranges = [axis.range(at.get(number, 0)) for number, axis in enumerate(tiling.axes)]
        lines = lines_of(window.shape, window.box(ranges), WORD)
        assert lines is not None, f"the box of {window.tensor} cannot be copied"
        found.append(lines)
    return tuple(found)


def table_bytes(tiling: Tiling) -> int:
    """Bytes of the table on a machine of 32 bits."""
    made = rows(tiling)
    words = HEAD_WORDS + WINDOW_WORDS * len(made)
    words += sum(STEP_WORDS * len(row.steps) + BOX_WORDS * len(row.boxes) for row in made)
    words += sum(map(size_words, (*tiling.sizes, *tiling.finish_sizes)))
    kinds = sum(axis.count for axis in tiling.axes)
    return WORD * (words + -(-kinds // WORD))


def control_bytes(tilings: Sequence[Tiling]) -> int:
    """Bytes of the nearest memory that the running of these calls takes: two tables, so that the
    next one can be fetched, and as many times the frames and states of the windows."""
    if not tilings:
        return 0
    windows = max(len(rows(tiling)) for tiling in tilings)
    state = WORD * (STATE_WORDS * windows + 2 * (FRAME_WORDS + windows))
    return 2 * (max(map(table_bytes, tilings)) + state)


def size_words(sizes: Mapping[str, Size]) -> int:
    return sum(len(value) if isinstance(value, tuple) else 1 for value in sizes.values())
