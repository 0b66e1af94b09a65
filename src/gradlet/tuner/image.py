"""A tiled call as the bytes that the runtime walks (gl_tiles.h), for a machine of 32 bits.

The same table that a project has as C; here a program that is compiled once runs any number of
them. Every operand has a window of its own, in the order of the call.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import size_words
from gradlet.ops.base import Size
from gradlet.planner.launch import Launch
from gradlet.planner.tile.table import (
    BOX_WORDS,
    HEAD_WORDS,
    HOP_WORDS,
    STEP_WORDS,
    WINDOW_WORDS,
    WORD,
    Table,
    sized,
    skipped,
    table_of,
)
from gradlet.planner.tiling import Tiling

AXES = 4
MOVED_AT_FIRST = 128


@dataclass(frozen=True)
class Place:
    """Where an operand lies, and where its slots do; 0 for what is left out."""

    far: int = 0
    near: tuple[int, ...] = ()


def table_image(
    tiling: Tiling,
    repeat: int,
    functions: Mapping[str, int],
    places: Sequence[Place],
) -> bytes:
    """functions: addresses of those that call the kernels, by their names in the table. places: by
    position, with those of scratch behind the operands."""
    table = table_of(tiling)
    at = _Offsets(len(places), table, tiling)
    return b"".join(
        [
            _head(tiling, repeat, functions, table, at, len(places)),
            *_windows(places, table, at),
            *(struct.pack("<HH", a, at.hops + WORD * HOP_WORDS * hop) for a, hop in table.steps),
            *(struct.pack("<ii", *hop) for hop in table.hops),
            *(
                struct.pack("<5i", b.bytes, b.lines, b.pitch, b.planes, b.plane_pitch)
                for b in table.boxes
            ),
            *map(_all_sizes, sized(tiling)),
        ]
    )


class _Offsets:
    """Where the parts of a table begin."""

    def __init__(self, windows: int, table: Table, tiling: Tiling) -> None:
        self.steps = WORD * (HEAD_WORDS + WINDOW_WORDS * windows)
        self.hops = self.steps + WORD * STEP_WORDS * len(table.steps)
        self.boxes = self.hops + WORD * HOP_WORDS * len(table.hops)
        self.sizes = self.boxes + WORD * BOX_WORDS * len(table.boxes)
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


def _head(
    tiling: Tiling,
    repeat: int,
    functions: Mapping[str, int],
    table: Table,
    at: _Offsets,
    windows: int,
) -> bytes:
    axes = tiling.axes
    padding = [0] * (AXES - len(axes))
    free = sum(not axis.reduction for axis in axes)
    return struct.pack(
        "<3Ii4B4i4HI",
        *(functions.get(role, 0) for role in ("first", "more", "finish")),
        repeat,
        len(axes),
        windows,
        free,
        int(tiling.ahead),
        *(axis.count for axis in axes),
        *padding,
        at.sizes,
        at.finish,
        at.steps + WORD * STEP_WORDS * table.size_steps,
        len(table.steps) - table.size_steps,
        skipped(tiling),
    )


def _windows(places: Sequence[Place], table: Table, at: _Offsets) -> list[bytes]:
    found, rows = [], {row.position: row for row in table.rows}
    for position, place in enumerate(places):
        row = rows.get(position)
        if row is None:
            flags = (0, 0, 0, MOVED_AT_FIRST, 0, 0, 0, 0)
            found.append(struct.pack("<4I4B4H", place.far, 0, 0, 0, *flags))
            continue
        window = row.window
        moved_by = sum(1 << axis for axis in window.axes) or MOVED_AT_FIRST
        found.append(
            struct.pack(
                "<4I4B4H",
                place.far,
                *(*place.near, 0, 0, 0)[:3],
                window.slots,
                int(window.load),
                int(window.store),
                moved_by,
                at.boxes + WORD * BOX_WORDS * row.first_box,
                at.steps + WORD * STEP_WORDS * row.first_step,
                row.steps,
                0,
            )
        )
    return found
