"""A tiled call as the bytes that the runtime walks (gl_tiles.h), for a machine of 32 bits.

The same table that a project has as C; here a program that is compiled once runs any number of
them. Every operand has a window of its own, in the order of the call.
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
from gradlet.planner.tile.layout import BOX, HOP, STEP, TILING, WINDOW
from gradlet.planner.tile.table import MOVED_AT_FIRST, Table, sized, table_of
from gradlet.planner.tiling import Tiling


@dataclass(frozen=True)
class Place:
    """Where an operand lies, and where its slots do; 0 for what is left out."""

    far: int = 0
    near: tuple[int, ...] = ()


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
        "finish_sizes": at.finish,
        "first_step": at.steps + table.first_step,
    }
    return b"".join(
        [
            TILING.pack(head),
            *_windows(places, table, at),
            *(STEP.pack({"axis": a, "hops": at.hops + HOP.size * n}) for a, n in table.steps),
            *(HOP.pack({"far": far, "box": box}) for far, box in table.hops),
            *(BOX.pack(asdict(box)) for box in table.boxes),
            *map(_all_sizes, sized(tiling)),
        ]
    )


class _Offsets:
    """Where the parts of a table begin."""

    def __init__(self, windows: int, table: Table, tiling: Tiling) -> None:
        self.steps = TILING.size + WINDOW.size * windows
        self.hops = self.steps + STEP.size * len(table.steps)
        self.boxes = self.hops + HOP.size * len(table.hops)
        self.sizes = self.boxes + BOX.size * len(table.boxes)
        self.finish = self.sizes + len(_all_sizes(sized(tiling)[0]))


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


def _windows(places: Sequence[Place], table: Table, at: _Offsets) -> list[bytes]:
    found, rows = [], {row.position: row for row in table.rows}
    for position, place in enumerate(places):
        fields: dict[str, Any] = {"far": place.far, "moved_by": MOVED_AT_FIRST}
        if row := rows.get(position):
            fields |= {
                **row.fields(),
                "near": place.near,
                "boxes": at.boxes + BOX.size * row.first_box,
                "first_step": at.steps + STEP.size * row.first_step,
                "early": 0,  # nothing runs before
            }
        found.append(WINDOW.pack(fields))
    return found
