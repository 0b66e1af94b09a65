"""Parts of a tiling: the kinds of tiles along axes, what kernels get for them, windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gradlet.ir.graph import Shape, Site
from gradlet.ops.base import Axis, Op, Size
from gradlet.planner.tile.search import Operand, slots
from gradlet.planner.tiling import Range, TileAxis, Window, box_elements, dense, slot_size


def signature(site: Site) -> object:
    shapes = tuple(t.shape for t in (*site.ins, *site.outs))
    return site.node.op, tuple(sorted(site.attrs.items())), shapes


def tile_axis(op: Op, site: Site, axis: Axis, tile: int) -> TileAxis | None:
    """With the kind of each tile: what differs in shapes or attributes is of another kind."""
    seen: dict[object, int] = {}
    kinds = []
    for begin in range(0, axis.size, tile):
        part = op.tile(site, {axis.name: (begin, min(begin + tile, axis.size))})
        if part is None:
            return None
        kinds.append(seen.setdefault(signature(part), len(seen)))
    return TileAxis(axis.name, axis.size, tile, axis.reduction, tuple(kinds))


def all_kinds(tiles: Sequence[TileAxis]) -> list[tuple[int, ...]]:
    """An index of each kind of tile, in the order of their numbers."""
    firsts = [[axis.kinds.index(kind) for kind in range(axis.kind_count)] for axis in tiles]
    return list(product(*firsts))


def _in_order(tiles: Sequence[TileAxis], index: Sequence[int]) -> list[Range]:
    return [axis.range(at) for axis, at in zip(tiles, index, strict=True)]


@dataclass(frozen=True)
class Part:
    """A kind of tile: the shape of its result, and what the kernel gets."""

    shape: Shape
    sizes: Mapping[str, Size]


def part_of(op: Op, site: Site, tiles: Sequence[TileAxis], index: Sequence[int]) -> Part | None:
    ranges = {axis.name: axis.range(at) for axis, at in zip(tiles, index, strict=True)}
    part = op.tile(site, ranges) if tiles else site
    return Part(part.outs[0].shape, op.lower(part).sizes) if part is not None else None


def copyable(window: Window, tiles: Sequence[TileAxis]) -> bool:
    """Whether the box of every kind of tile is lines of planes, or one run of bytes where it is
    used where it lies; at the ends of a map a box may have more levels than in the middle."""
    ranges = [_in_order(tiles, kind) for kind in all_kinds(tiles)]
    if not window.near:
        return window.fetched or all(dense(window.shape, window.box(part)) for part in ranges)
    return all(map(window.runs, ranges))


def window_on(
    operand: Operand, places: Mapping[int, int], tiles: Sequence[TileAxis], double_buffered: bool
) -> Window:
    spans = tuple((places[number], span) for number, span in operand.spans if number in places)
    window = Window(
        operand.tensor,
        operand.shape,
        operand.item,
        spans,
        once=operand.once,
        fetched=operand.fetched,
    )
    if not operand.windowed:
        return window
    kinds = [_in_order(tiles, kind) for kind in all_kinds(tiles)]
    largest = max(box_elements(window.box(ranges)) for ranges in kinds)
    return replace(
        window,
        near=operand.tensor,  # a name of its own comes with the place
        slots=slots(operand, bool(spans), double_buffered),
        slot_bytes=slot_size(largest, operand.item),
        load=operand.load,
        store=operand.store,
    )
