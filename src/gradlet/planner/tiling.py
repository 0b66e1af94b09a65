"""How one call runs tile by tile: the loops, and the view that each operand is seen through.

A tile is a range of steps of some axes of a node. Of each operand it needs a region; where the
operand lies in a backing memory, the region is copied into a stage, a buffer in L1, before the
kernel runs, or from there afterwards. Tiles of one class have regions of one shape, and the kernel
gets the same sizes.
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
Region = tuple[Range, ...]


@dataclass(frozen=True)
class TileAxis:
    """`tile` steps of the axis at a time, the last tile fewer; the class of each tile."""

    name: str
    size: int
    tile: int
    reduction: bool
    classes: tuple[int, ...]

    @property
    def count(self) -> int:
        return -(-self.size // self.tile)

    @property
    def class_count(self) -> int:
        return max(self.classes) + 1

    def range(self, index: int) -> Range:
        return index * self.tile, min((index + 1) * self.tile, self.size)


@dataclass(frozen=True)
class TileView:
    """One operand. item: bytes of an element. spans: (number of the axis, which dimension it
    selects and how).

    buffer: what the buffers of its stages are called, which are `stage_buffers`; "" if the operand
    is used where it lies. once: only the first tile of a reduction gets it. prefetched: its first
    region is fetched while the call before still computes. fetched: the operand stays in its
    backing memory, and the kernel itself copies what it needs. released: only the first step of the
    kernel reads it; the next region takes the place of this one behind that.
    """

    tensor: str
    shape: Shape
    item: int
    spans: tuple[tuple[int, Span], ...]
    buffer: str = ""
    stages: int = 0
    stage_bytes: int = 0
    load: bool = False
    store: bool = False
    once: bool = False
    prefetched: bool = False
    fetched: bool = False
    released: bool = False

    def region(self, ranges: Sequence[Range]) -> Region:
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
        """The region of these ranges as a transfer."""
        return lines_of(self.shape, self.region(ranges), self.item)

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(sorted({axis for axis, _ in self.spans}))

    @property
    def stage_buffers(self) -> tuple[str, ...]:
        return (
            tuple(f"{self.buffer}.{stage}" for stage in range(self.stages)) if self.buffer else ()
        )


@dataclass(frozen=True)
class Tiling:
    """Loops from the outermost to the innermost, reductions inside; views by the position of the
    operand among the call's outputs and inputs, None for one that is left out; behind them those
    in which partial sums add up that a launch goes on with.

    launches: what a tile may run, in order; their sizes are numbered over the classes of all axes
    with the last axis fastest. double_buffered: the regions of the next tile are fetched while this
    one is computed.
    """

    axes: tuple[TileAxis, ...]
    views: tuple[TileView | None, ...]
    double_buffered: bool
    launches: tuple[Launch, ...] = ()

    @property
    def count(self) -> int:
        return prod(axis.count for axis in self.axes)

    def tile_class(self, index: Sequence[int]) -> int:
        number = 0
        for axis, at in zip(self.axes, index, strict=True):
            number = number * axis.class_count + axis.classes[at]
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
        how = ", double-buffered" if self.double_buffered else ""
        return f"{self.count} tiles{how}: {loops or 'whole'}"

    @property
    def releases(self) -> bool:
        """Whether the next regions come in behind the first step of a tile, and not before."""
        return any(view and view.released for view in self.views)

    @property
    def l1_bytes(self) -> int:
        return sum(w.stages * w.stage_bytes for w in self.views if w and w.buffer)

    def used_in_place(self, tensor: str) -> Tiling:
        """The same with a tensor used where it lies."""
        views = tuple(
            replace(w, buffer="", stages=0, stage_bytes=0, load=False, store=False)
            if w and w.tensor == tensor
            else w
            for w in self.views
        )
        return replace(self, views=views)


@dataclass(frozen=True)
class Lines:
    """A region as a transfer: `planes` times `lines` runs of `bytes` at these distances."""

    bytes: int
    lines: int
    pitch: int
    planes: int
    plane_pitch: int


def lines_of(shape: Shape, region: Region, item: int) -> Lines | None:
    """The runs of bytes that a region takes in its tensor, or None if it has too many levels."""
    run, pitch, outer = item, item, []
    whole = True  # everything further inside is taken whole
    for extent, (low, high) in zip(reversed(shape), reversed(region), strict=True):
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


def dense(shape: Shape, region: Region) -> bool:
    """Whether a region is one run of bytes."""
    found = lines_of(shape, region, 1)
    return found is not None and found.lines * found.planes == 1


def region_elements(region: Region) -> int:
    return prod(high - low for low, high in region)


def stage_size(elements: int, item: int) -> int:
    """Bytes of a stage for so many elements: the next stage begins at a word."""
    return -(-elements * item // WORD) * WORD


def tiling_from_json(value: Mapping[str, Any]) -> Tiling:
    return Tiling(
        tuple(TileAxis(**{**axis, "classes": tuple(axis["classes"])}) for axis in value["axes"]),
        tuple(_view_from_json(view) if view else None for view in value["views"]),
        value["double_buffered"],
        tuple(map(launch_from_json, value["launches"])),
    )


def _view_from_json(value: Mapping[str, Any]) -> TileView:
    spans = tuple((axis, Span(**span)) for axis, span in value["spans"])
    return TileView(**{**value, "shape": tuple(value["shape"]), "spans": spans})
