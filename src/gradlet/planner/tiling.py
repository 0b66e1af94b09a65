"""How one call runs tile by tile: the loops, and the window that each operand is seen through.

A tile is a range of steps of some axes of a node. Of each operand it needs a box; where the operand
lies far away, the box is copied into a slot of the nearest memory before the kernel runs, or from
there afterwards. Tiles of one kind have boxes of one shape, and the kernel gets the same sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from gradlet.ir.graph import Shape
from gradlet.ops.base import Span
from gradlet.planner.launch import EVERY, LAST, LATER, Launch, launch_from_json

WORD = 4
Range = tuple[int, int]
Box = tuple[Range, ...]


@dataclass(frozen=True)
class TileAxis:
    """`tile` steps of the axis at a time, the last tile fewer; the kind of each tile."""

    name: str
    size: int
    tile: int
    reduction: bool
    kinds: tuple[int, ...]

    @property
    def count(self) -> int:
        return -(-self.size // self.tile)

    @property
    def kind_count(self) -> int:
        return max(self.kinds) + 1

    def range(self, index: int) -> Range:
        return index * self.tile, min((index + 1) * self.tile, self.size)


@dataclass(frozen=True)
class Window:
    """One operand. item: bytes of an element. spans: (number of the axis, which dimension it
    selects and how).

    near: what the buffers of its slots are called, which are `slot_buffers`; "" if the operand is
    used where it lies. once: only the first tile of a reduction gets it. early: its first box is
    fetched while the call before still computes. fetched: the operand stays in its far memory, and
    the kernel itself copies what it needs.
    """

    tensor: str
    shape: Shape
    item: int
    spans: tuple[tuple[int, Span], ...]
    near: str = ""
    slots: int = 0
    slot_bytes: int = 0
    load: bool = False
    store: bool = False
    once: bool = False
    early: bool = False
    fetched: bool = False

    def box(self, ranges: Sequence[Range]) -> Box:
        """What the tile with these ranges of all axes needs."""
        found = [(0, extent) for extent in self.shape]
        for axis, span in self.spans:
            found[span.dim] = self.along(span, ranges[axis])
        return tuple(found)

    def along(self, span: Span, steps: Range) -> Range:
        """What steps of an axis see of a dimension: never nothing, as a tile of a node."""
        low, high = span.range(*steps, self.shape[span.dim])
        low = min(low, self.shape[span.dim] - 1)
        return low, max(high, low + 1)

    def runs(self, ranges: Sequence[Range]) -> Lines | None:
        """The box of these ranges as a transfer."""
        return lines_of(self.shape, self.box(ranges), self.item)

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(sorted({axis for axis, _ in self.spans}))

    @property
    def slot_buffers(self) -> tuple[str, ...]:
        return tuple(f"{self.near}.{slot}" for slot in range(self.slots)) if self.near else ()


@dataclass(frozen=True)
class Tiling:
    """Loops from the outermost to the innermost, reductions inside; windows by the position of the
    operand among the call's outputs and inputs, None for one that is left out; behind them those
    in which partial sums add up that a launch goes on with.

    launches: what a tile may run, in order; their sizes are numbered over the kinds of all axes
    with the last axis fastest. double_buffered: the boxes of the next tile are fetched while this
    one is computed.
    """

    axes: tuple[TileAxis, ...]
    windows: tuple[Window | None, ...]
    double_buffered: bool
    launches: tuple[Launch, ...] = ()

    @property
    def count(self) -> int:
        return prod(axis.count for axis in self.axes)

    def kind(self, index: Sequence[int]) -> int:
        number = 0
        for axis, at in zip(self.axes, index, strict=True):
            number = number * axis.kind_count + axis.kinds[at]
        return number

    def ranges(self, index: Sequence[int]) -> tuple[Range, ...]:
        return tuple(axis.range(at) for axis, at in zip(self.axes, index, strict=True))

    def indices(self) -> Iterator[tuple[int, ...]]:
        return product(*(range(axis.count) for axis in self.axes))

    def runs(self, launch: Launch, index: Sequence[int]) -> bool:
        """Whether a tile runs this."""
        if any(index[number] for number in launch.when.first_along):
            return False
        if launch.when.tiles == EVERY:
            return True
        sums = [
            (at, axis.count) for at, axis in zip(index, self.axes, strict=True) if axis.reduction
        ]
        if launch.when.tiles == LAST:
            return all(at == count - 1 for at, count in sums)
        return any(at for at, _ in sums) == (launch.when.tiles == LATER)

    def __str__(self) -> str:
        loops = ", ".join(f"{axis.name} by {axis.tile} of {axis.size}" for axis in self.axes)
        return f"{self.count} tiles{' ahead' if self.double_buffered else ''}: {loops or 'whole'}"

    @property
    def near_bytes(self) -> int:
        return sum(w.slots * w.slot_bytes for w in self.windows if w and w.near)

    def used_in_place(self, tensor: str) -> Tiling:
        """The same with a tensor used where it lies."""
        windows = tuple(
            replace(w, near="", slots=0, slot_bytes=0, load=False, store=False)
            if w and w.tensor == tensor
            else w
            for w in self.windows
        )
        return replace(self, windows=windows)


@dataclass(frozen=True)
class Lines:
    """A box as a transfer: `planes` times `lines` runs of `bytes` at these distances."""

    bytes: int
    lines: int
    pitch: int
    planes: int
    plane_pitch: int


def lines_of(shape: Shape, box: Box, item: int) -> Lines | None:
    """The runs of bytes that a box takes in its tensor, or None if it has too many levels."""
    run, pitch, outer = item, item, []
    whole = True  # everything further inside is taken whole
    for extent, (low, high) in zip(reversed(shape), reversed(box), strict=True):
        if whole:
            run *= high - low
        elif high - low > 1:
            outer.append((high - low, pitch))
        whole = whole and (high - low == extent)
        pitch *= extent
    merged: list[tuple[int, int]] = []
    for count, distance in outer:
        if merged and distance == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * count, merged[-1][1])
        else:
            merged.append((count, distance))
    if len(merged) > 2:
        return None
    (lines, pitch), (planes, plane_pitch) = [*merged, (1, 0), (1, 0)][:2]
    return Lines(run, lines, pitch, planes, plane_pitch)


def dense(shape: Shape, box: Box) -> bool:
    """Whether a box is one run of bytes."""
    found = lines_of(shape, box, 1)
    return found is not None and found.lines * found.planes == 1


def box_elements(box: Box) -> int:
    return prod(high - low for low, high in box)


def slot_size(elements: int, item: int) -> int:
    """Bytes of a slot for so many elements: the next slot begins at a word."""
    return -(-elements * item // WORD) * WORD


def tiling_from_json(value: Mapping[str, Any]) -> Tiling:
    return Tiling(
        tuple(TileAxis(**{**axis, "kinds": tuple(axis["kinds"])}) for axis in value["axes"]),
        tuple(_window_from_json(window) if window else None for window in value["windows"]),
        value["double_buffered"],
        tuple(map(launch_from_json, value["launches"])),
    )


def _window_from_json(value: Mapping[str, Any]) -> Window:
    spans = tuple((axis, Span(**span)) for axis, span in value["spans"])
    return Window(**{**value, "shape": tuple(value["shape"]), "spans": spans})
