"""A tiled call as the bytes that the runtime walks (gl_tiles.h), for a machine of 32 bits.

The same table that a project has as C; here a program that is compiled once runs any number of
them. Every operand has a view of its own, in the order of the call.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import size_words
from gradlet.ops.base import Size
from gradlet.planner.launch import Launch
from gradlet.planner.tile.layout import OFFSET, REGION, STEP, TILING, VIEW
from gradlet.planner.tile.table import MOVED_AT_FIRST, Table, sized, table_of
from gradlet.planner.tiling import Tiling


@dataclass(frozen=True)
class Place:
    """Where an operand lies, and where its stages do; 0 for what is left out."""

    backing: int = 0
    l1: tuple[int, ...] = ()


def table_image(
    tiling: Tiling,
    functions: Mapping[str, int],
    places: Sequence[Place],
) -> bytes:
    """functions: addresses of those that call the kernels, by their names in the table. places: by
    position, with those of scratch behind the operands."""
    table = table_of(tiling)
    at = _Offsets(len(places), table, tiling)
    head = {
        **functions,
        **table.head(tiling, len(places)),
        "sizes": at.sizes,
        "last_sizes": at.last,
        "first_step": at.steps + table.first_step,
    }
    return b"".join(
        [
            TILING.pack(head),
            *_views(places, table, at),
            *(
                STEP.pack({"axis": a, "offsets": at.offsets + OFFSET.size * n})
                for a, n in table.steps
            ),
            *(
                OFFSET.pack({"backing": backing, "region": region})
                for backing, region in table.offsets
            ),
            *(REGION.pack(asdict(region)) for region in table.regions),
            *map(_all_sizes, sized(tiling)),
        ]
    )


class _Offsets:
    """Where the parts of a table begin."""

    def __init__(self, views: int, table: Table, tiling: Tiling) -> None:
        self.steps = TILING.size + VIEW.size * views
        self.offsets = self.steps + STEP.size * len(table.steps)
        self.regions = self.offsets + OFFSET.size * len(table.offsets)
        self.sizes = self.regions + REGION.size * len(table.regions)
        self.last = self.sizes + len(_all_sizes(sized(tiling)[0]))


def _all_sizes(launches: Sequence[Launch]) -> bytes:
    """By tile class, the sizes of all launches."""
    classes = zip(*(launch.sizes for launch in launches), strict=True)
    return b"".join(
        _sizes(launch.kernel, own)
        for parts in classes
        for launch, own in zip(launches, parts, strict=True)
    )


def _sizes(kernel: Kernel, sizes: Mapping[str, Size]) -> bytes:
    words = size_words(kernel, sizes)
    return struct.pack(f"<{len(words)}i", *words)


def _views(places: Sequence[Place], table: Table, at: _Offsets) -> list[bytes]:
    found, rows = [], {row.position: row for row in table.rows}
    for position, place in enumerate(places):
        fields: dict[str, Any] = {"backing": place.backing, "moved_by": MOVED_AT_FIRST}
        if row := rows.get(position):
            fields |= {
                **row.fields(),
                "l1": place.l1,
                "regions": at.regions + REGION.size * row.first_region,
                "first_step": at.steps + STEP.size * row.first_step,
                "prefetched": 0,  # nothing runs before
            }
        found.append(VIEW.pack(fields))
    return found
