"""Parts of a tiling: the classes of tiles along axes, what kernels get for them, views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gradlet.ir.graph import Shape, Site
from gradlet.ops.base import Axis, Op, Size
from gradlet.planner.tile.search import Operand, stages
from gradlet.planner.tiling import Range, TileAxis, TileView, dense, region_elements, stage_size


def signature(site: Site) -> object:
    shapes = tuple(t.shape for t in (*site.ins, *site.outs))
    return site.node.op, tuple(sorted(site.attrs.items())), shapes


def tile_axis(op: Op, site: Site, axis: Axis, tile: int) -> TileAxis | None:
    """With the class of each tile: what differs in shapes or attributes is of another one."""
    seen: dict[object, int] = {}
    classes = []
    for begin in range(0, axis.size, tile):
        part = op.tile(site, {axis.name: (begin, min(begin + tile, axis.size))})
        if part is None:
            return None
        classes.append(seen.setdefault(signature(part), len(seen)))
    return TileAxis(axis.name, axis.size, tile, axis.reduction, tuple(classes))


def all_classes(tiles: Sequence[TileAxis]) -> list[tuple[int, ...]]:
    """An index of each class of tile, in the order of their numbers."""
    firsts = [
        [axis.classes.index(tile_class) for tile_class in range(axis.class_count)] for axis in tiles
    ]
    return list(product(*firsts))


def _in_order(tiles: Sequence[TileAxis], index: Sequence[int]) -> list[Range]:
    return [axis.range(at) for axis, at in zip(tiles, index, strict=True)]


@dataclass(frozen=True)
class Part:
    """A class of tiles: the shape of its result, and what the kernel gets."""

    shape: Shape
    sizes: Mapping[str, Size]


def part_of(op: Op, site: Site, tiles: Sequence[TileAxis], index: Sequence[int]) -> Part | None:
    ranges = {axis.name: axis.range(at) for axis, at in zip(tiles, index, strict=True)}
    part = op.tile(site, ranges) if tiles else site
    return Part(part.outs[0].shape, op.lower(part).sizes) if part is not None else None


def copyable(view: TileView, tiles: Sequence[TileAxis], *, anywhere: bool) -> bool:
    """Whether the region of every class of tile is lines of planes, or one run of bytes where it
    is used where it lies; at the ends of a map a region may have more levels than in the middle.
    anywhere: the kernel takes regions of any form."""
    ranges = [_in_order(tiles, tile_class) for tile_class in all_classes(tiles)]
    if not view.buffer:
        return anywhere or all(dense(view.shape, view.region(part)) for part in ranges)
    return all(map(view.runs, ranges))


def view_on(
    operand: Operand, places: Mapping[int, int], tiles: Sequence[TileAxis], double_buffered: bool
) -> TileView:
    spans = tuple((places[number], span) for number, span in operand.spans if number in places)
    view = TileView(
        operand.tensor,
        operand.shape,
        operand.item,
        spans,
        once=operand.once,
        fetched=operand.fetched,
    )
    if not operand.buffered:
        return view
    classes = [_in_order(tiles, tile_class) for tile_class in all_classes(tiles)]
    largest = max(region_elements(view.region(ranges)) for ranges in classes)
    return replace(
        view,
        buffer=operand.tensor,  # a name of its own comes with the place
        stages=stages(operand, bool(spans), double_buffered),
        stage_bytes=stage_size(largest, operand.item),
        load=operand.load,
        store=operand.store,
        released=operand.released and double_buffered and bool(spans),
    )
