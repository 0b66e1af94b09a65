"""The tables that the runtime walks for a tiled call (gl_tiles.h), as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from gradlet.kernels.traits import kept
from gradlet.ops.base import Size
from gradlet.planner.launch import EVERY, FIRST, LAST, LATER, Launch
from gradlet.planner.tile.layout import FRAME, OFFSET, REGION, STATE, STEP, TILING, VIEW, WORD
from gradlet.planner.tiling import Lines, TileAxis, TileView, Tiling

MOVED_AT_FIRST = 128  # no axis changes the region, which is fetched before the first tile

Offset = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """A view in the table: which operand it is, its steps from `first_step` on, its regions by
    tile class from `first_region` on."""

    position: int
    view: TileView
    first_step: int
    steps: int
    first_region: int
    regions: tuple[Lines, ...]

    def fields(self) -> dict[str, Any]:
        """Those of its gl_tile_view that are no places."""
        view = self.view
        return {
            "stages": view.stages,
            "load": int(view.load),
            "store": int(view.store),
            "moved_by": sum(1 << axis for axis in view.axes) or MOVED_AT_FIRST,
            "steps": self.steps,
            "prefetched": int(view.prefetched),
        }


@dataclass(frozen=True)
class Table:
    """rows: views that move or are copied; the others are plain addresses. steps: an axis, and
    the number of its first offset; those of the sizes are the last, from `size_steps` on."""

    rows: tuple[Row, ...]
    steps: tuple[tuple[int, int], ...]
    offsets: tuple[Offset, ...]
    size_steps: int

    @property
    def regions(self) -> list[Lines]:
        return [region for row in self.rows for region in row.regions]

    @property
    def first_step(self) -> int:
        """Of the sizes: bytes from the first step of all."""
        return STEP.size * self.size_steps

    def head(self, tiling: Tiling, views: int) -> dict[str, Any]:
        """The fields of its gl_tiling that are no places."""
        return {
            "repeat": tiling.launches[0].repeat,
            "axes": len(tiling.axes),
            "views": views,
            "reductions": sum(not axis.reduction for axis in tiling.axes),
            "double_buffered": int(tiling.double_buffered),
            "count": tuple(axis.count for axis in tiling.axes),
            "steps": len(self.steps) - self.size_steps,
            "first_only": skipped(tiling),
            "skip": max(1, kept_along(tiling)[1]),
            "releases": int(tiling.releases),
        }


class _Steps:
    """Steps and offsets as they come; equal offsets are there once."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []
        self.offsets: list[Offset] = []
        self._known: dict[tuple[Offset, ...], int] = {}

    def add(self, axis: int, offsets: tuple[Offset, ...]) -> None:
        if offsets not in self._known:
            self._known[offsets] = len(self.offsets)
            self.offsets += offsets
        self.steps.append((axis, self._known[offsets]))


def table_of(tiling: Tiling) -> Table:
    rows, made, region = [], _Steps(), 0
    for position, view in enumerate(tiling.views):
        if view is None or not (view.buffer or view.spans):
            continue
        first = len(made.steps)
        _view_steps(view, tiling.axes, made)
        regions = _regions(view, tiling)
        rows.append(Row(position, view, first, len(made.steps) - first, region, regions))
        region += len(regions)
    size_steps = len(made.steps)
    pitch, last = (
        WORD * sum(size_words(launch.sizes[0]) for launch in launches) for launches in sized(tiling)
    )
    for number, (axis, radix) in enumerate(zip(tiling.axes, radices(tiling.axes), strict=True)):
        if axis.class_count > 1:
            made.add(number, tuple((k * radix * pitch, k * radix * last) for k in axis.classes))
    return Table(tuple(rows), tuple(made.steps), tuple(made.offsets), size_steps)


def radices(axes: Sequence[TileAxis]) -> list[int]:
    return [prod(axis.class_count for axis in axes[n + 1 :]) for n in range(len(axes))]


def _view_steps(view: TileView, axes: Sequence[TileAxis], made: _Steps) -> None:
    own = [axes[number] for number in view.axes]
    region_bytes = REGION.size if view.buffer else 0
    for number, radix in zip(view.axes, radices(own), strict=True):
        axis = axes[number]
        offsets = []
        for index, tile_class in enumerate(axis.classes):
            backing = 0
            for span in (span for at, span in view.spans if at == number):
                start, _ = view.along(span, axis.range(index))
                backing += start * prod(view.shape[span.dim + 1 :]) * view.item
            offsets.append((backing, tile_class * radix * region_bytes))
        made.add(number, tuple(offsets))


def _regions(view: TileView, tiling: Tiling) -> tuple[Lines, ...]:
    if not view.buffer:
        return ()
    own = [tiling.axes[number] for number in view.axes]
    firsts = [
        [axis.classes.index(tile_class) for tile_class in range(axis.class_count)] for axis in own
    ]
    found = []
    for index in product(*firsts):
        at = dict(zip(view.axes, index, strict=True))
        ranges = [axis.range(at.get(number, 0)) for number, axis in enumerate(tiling.axes)]
        lines = view.runs(ranges)
        assert lines is not None, f"the region of {view.tensor} cannot be copied"
        found.append(lines)
    return tuple(found)


def table_bytes(tiling: Tiling) -> int:
    """Bytes of the table on a machine of 32 bits."""
    table = table_of(tiling)
    size = TILING.size + VIEW.size * len(table.rows) + REGION.size * len(table.regions)
    size += STEP.size * len(table.steps) + OFFSET.size * len(table.offsets)
    both = (launch for launches in sized(tiling) for launch in launches)
    return size + WORD * sum(size_words(part) for launch in both for part in launch.sizes)


def functions(tiling: Tiling) -> dict[str, tuple[Launch, ...]]:
    """The launches of each function that the table knows, by its name there: of tiles that start a
    sum, of those that add to it, and behind the last of them. Within one there are no barriers."""
    roles = {"first": (FIRST, EVERY), "later": (LATER, EVERY), "last": (LAST,)}
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
    return found["first"], found.get("last", ())


def skipped(tiling: Tiling) -> int:
    """Bits of the axes along which only the first step runs what has no barrier before it, or makes
    what its kernel keeps."""
    beside = {launch.when.first_along for launch in tiling.launches if not launch.barrier}
    axes = beside.pop() if beside else kept_along(tiling)[0]
    return sum(1 << number for number in axes)


def kept_along(tiling: Tiling) -> tuple[Sequence[int], int]:
    """The axes inside of those that move an operand of which the kernel keeps something, and the
    step that it is told along these. What is kept must stay where it is in the scratch, whatever
    else is there: tiles along these axes are of one class."""
    first, count = tiling.launches[0], len(tiling.axes)
    if not all(launch.barrier for launch in tiling.launches):
        return (), 0  # the predicate is that of what is fused beside
    for number, step in kept(first.kernel).items():
        place = first.operands[number]
        view = None if place is None else tiling.views[place]
        inner = range(max(view.axes, default=-1) + 1, count) if view else range(0)
        if inner and (step == 2 or all(tiling.axes[n].class_count == 1 for n in inner)):
            return inner, step
    return (), 0


def views_of(tiling: Tiling) -> int:
    """How many the table has."""
    return sum(bool(w and (w.buffer or w.spans)) for w in tiling.views)


def control_bytes(tilings: Sequence[Tiling]) -> int:
    """Bytes of the nearest memory that the running of these calls takes: two tables, so that the
    next one can be fetched, and as many times the frames and states of the views."""
    if not tilings:
        return 0
    views = max(map(views_of, tilings))
    state = STATE.size * views + 2 * (FRAME.size + WORD * views)
    return 2 * (max(map(table_bytes, tilings)) + state)


def size_words(sizes: Mapping[str, Size]) -> int:
    return sum(len(value) if isinstance(value, tuple) else 1 for value in sizes.values())
