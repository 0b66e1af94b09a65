"""The tables that the runtime walks for a tiled call (gl_tiles.h), as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from gradlet.ops.base import Size
from gradlet.planner.launch import EVERY, FIRST, LAST, LATER, Launch
from gradlet.planner.tile.layout import BOX, FRAME, HOP, STATE, STEP, TILING, WINDOW, WORD
from gradlet.planner.tiling import Lines, TileAxis, Tiling, Window

MOVED_AT_FIRST = 128  # no axis changes the box, which is fetched before the first tile

Hop = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """A window in the table: which operand it is, its steps from `first_step` on, its boxes by kind
    from `first_box` on."""

    position: int
    window: Window
    first_step: int
    steps: int
    first_box: int
    boxes: tuple[Lines, ...]

    def fields(self) -> dict[str, Any]:
        """Those of its gl_window that are no places."""
        window = self.window
        return {
            "slots": window.slots,
            "load": int(window.load),
            "store": int(window.store),
            "moved_by": sum(1 << axis for axis in window.axes) or MOVED_AT_FIRST,
            "steps": self.steps,
            "early": int(window.early),
        }


@dataclass(frozen=True)
class Table:
    """rows: windows that move or are copied; the others are plain addresses. steps: an axis, and
    the number of its first hop; those of the sizes are the last, from `size_steps` on."""

    rows: tuple[Row, ...]
    steps: tuple[tuple[int, int], ...]
    hops: tuple[Hop, ...]
    size_steps: int

    @property
    def boxes(self) -> list[Lines]:
        return [box for row in self.rows for box in row.boxes]

    @property
    def first_step(self) -> int:
        """Of the sizes: bytes from the first step of all."""
        return STEP.size * self.size_steps

    def head(self, tiling: Tiling, windows: int) -> dict[str, Any]:
        """The fields of its gl_tiling that are no places."""
        return {
            "repeat": tiling.launches[0].repeat,
            "axes": len(tiling.axes),
            "windows": windows,
            "reductions": sum(not axis.reduction for axis in tiling.axes),
            "ahead": int(tiling.double_buffered),
            "count": tuple(axis.count for axis in tiling.axes),
            "steps": len(self.steps) - self.size_steps,
            "idle": skipped(tiling),
        }


class _Steps:
    """Steps and hops as they come; equal hops are there once."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.hops: list[Hop] = []
        self._known: dict[tuple[Hop, ...], int] = {}

    def add(self, axis: int, hops: tuple[Hop, ...]) -> None:
        if hops not in self._known:
            self._known[hops] = len(self.hops)
            self.hops += hops
        self.steps.append((axis, self._known[hops]))


def table_of(tiling: Tiling) -> Table:
    rows, made, box = [], _Steps(), 0
    for position, window in enumerate(tiling.windows):
        if window is None or not (window.near or window.spans):
            continue
        first = len(made.steps)
        _window_steps(window, tiling.axes, made)
        boxes = _boxes(window, tiling)
        rows.append(Row(position, window, first, len(made.steps) - first, box, boxes))
        box += len(boxes)
    size_steps = len(made.steps)
    pitch, finish = (
        WORD * sum(size_words(launch.sizes[0]) for launch in launches) for launches in sized(tiling)
    )
    for number, (axis, radix) in enumerate(zip(tiling.axes, radices(tiling.axes), strict=True)):
        if axis.kind_count > 1:
            made.add(number, tuple((k * radix * pitch, k * radix * finish) for k in axis.kinds))
    return Table(tuple(rows), tuple(made.steps), tuple(made.hops), size_steps)


def radices(axes: Sequence[TileAxis]) -> list[int]:
    return [prod(axis.kind_count for axis in axes[n + 1 :]) for n in range(len(axes))]


def _window_steps(window: Window, axes: Sequence[TileAxis], made: _Steps) -> None:
    own = [axes[number] for number in window.axes]
    box_bytes = BOX.size if window.near else 0
    for number, radix in zip(window.axes, radices(own), strict=True):
        axis = axes[number]
        hops = []
        for index, kind in enumerate(axis.kinds):
            far = 0
            for span in (span for at, span in window.spans if at == number):
                start, _ = window.along(span, axis.range(index))
                far += start * prod(window.shape[span.dim + 1 :]) * window.item
            hops.append((far, kind * radix * box_bytes))
        made.add(number, tuple(hops))


def _boxes(window: Window, tiling: Tiling) -> tuple[Lines, ...]:
    if not window.near:
        return ()
    own = [tiling.axes[number] for number in window.axes]
    firsts = [[axis.kinds.index(kind) for kind in range(axis.kind_count)] for axis in own]
    found = []
    for index in product(*firsts):
        at = dict(zip(window.axes, index, strict=True))
        ranges = [axis.range(at.get(number, 0)) for number, axis in enumerate(tiling.axes)]
        lines = window.runs(ranges)
        assert lines is not None, f"the box of {window.tensor} cannot be copied"
        found.append(lines)
    return tuple(found)


def table_bytes(tiling: Tiling) -> int:
    """Bytes of the table on a machine of 32 bits."""
    table = table_of(tiling)
    size = TILING.size + WINDOW.size * len(table.rows) + BOX.size * len(table.boxes)
    size += STEP.size * len(table.steps) + HOP.size * len(table.hops)
    both = (launch for launches in sized(tiling) for launch in launches)
    return size + WORD * sum(size_words(part) for launch in both for part in launch.sizes)


def functions(tiling: Tiling) -> dict[str, tuple[Launch, ...]]:
    """The launches of each function that the table knows, by its name there: of tiles that start a
    sum, of those that add to it, and behind the last of them. Within one there are no barriers."""
    roles = {"first": (FIRST, EVERY), "more": (LATER, EVERY), "finish": (LAST,)}
    found = {
        role: tuple(launch for launch in tiling.launches if launch.when.tiles in tiles)
        for role, tiles in roles.items()
    }
    needed = {
        "first",
        *(
            role
            for role, tiles in roles.items()
            for launch in found[role]
            if launch.when.tiles == tiles[0]
        ),
    }
    return {role: launches for role, launches in found.items() if role in needed}


def sized(tiling: Tiling) -> tuple[tuple[Launch, ...], tuple[Launch, ...]]:
    """Whose sizes the table has, one behind the other for each tile class: those of tiles (the same
    for the first of a sum and for those that are added), and those behind the last."""
    found = functions(tiling)
    return found["first"], found.get("finish", ())


def skipped(tiling: Tiling) -> int:
    """Bits of the axes along which only the first step runs what has no barrier before it."""
    beside = {launch.when.first_along for launch in tiling.launches if not launch.barrier}
    return sum(1 << number for number in beside.pop()) if beside else 0


def windows_of(tiling: Tiling) -> int:
    """How many the table has."""
    return sum(bool(w and (w.near or w.spans)) for w in tiling.windows)


def control_bytes(tilings: Sequence[Tiling]) -> int:
    """Bytes of the nearest memory that the running of these calls takes: two tables, so that the
    next one can be fetched, and as many times the frames and states of the windows."""
    if not tilings:
        return 0
    windows = max(map(windows_of, tilings))
    state = STATE.size * windows + 2 * (FRAME.size + WORD * windows)
    return 2 * (max(map(table_bytes, tilings)) + state)


def size_words(sizes: Mapping[str, Size]) -> int:
    return sum(len(value) if isinstance(value, tuple) else 1 for value in sizes.values())
