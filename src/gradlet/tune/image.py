"""A tiled call as the bytes that the runtime walks (gl_tiles.h), for a machine of 32 bits.

The same table that a project has as C; here a program that is compiled once runs any number of
them. Every operand has a window of its own, in the order of the call.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradlet.kernels import Kernel
from gradlet.plan.table import (
    BOX_WORDS,
    HEAD_WORDS,
    STEP_WORDS,
    WINDOW_WORDS,
    WORD,
    Row,
    radices,
    rows,
)
from gradlet.plan.tiling import Tiling
from gradlet.trial import size_words

AXES = 4
MOVED_AT_FIRST = 128


@dataclass(frozen=True)
class Functions:
    """Addresses of the functions that call the kernels; 0 where there is none."""

    first: int
    more: int
    finish: int


@dataclass(frozen=True)
class Place:
    """Where an operand lies, and where its slots do; 0 for what is left out."""

    far: int = 0
    near: int = 0


def table_image(
    tiling: Tiling,
    kernel: Kernel,
    repeat: int,
    functions: Functions,
    places: Sequence[Place],
) -> bytes:
    """places: by position, with those of scratch behind the operands."""
    made = {row.position: row for row in rows(tiling)}
    offsets = _Offsets(len(places), list(made.values()), tiling, kernel)
    return b"".join(
        [
            _head(tiling, repeat, functions, offsets, len(places)),
            *_windows(places, made),
            *_steps(made, tiling, offsets),
            *(
                struct.pack("<5i", b.bytes, b.lines, b.pitch, b.planes, b.plane_pitch)
                for row in made.values()
                for b in row.boxes
            ),
            *(_sizes(kernel, sizes) for sizes in tiling.sizes),
            *(_sizes(tiling.finish, sizes) for sizes in tiling.finish_sizes if tiling.finish),
            offsets.kind_bytes,
        ]
    )


class _Offsets:
    """Where the parts of a table begin."""

    def __init__(self, windows: int, made: Sequence[Row], tiling: Tiling, kernel: Kernel) -> None:
        self.steps = WORD * (HEAD_WORDS + WINDOW_WORDS * windows)
        self.boxes = self.steps + WORD * STEP_WORDS * sum(len(row.steps) for row in made)
        self.sizes = self.boxes + WORD * BOX_WORDS * sum(len(row.boxes) for row in made)
        self.pitch = len(_sizes(kernel, tiling.sizes[0]))
        self.finish = self.sizes + self.pitch * len(tiling.sizes)
        self.finish_pitch = (
            len(_sizes(tiling.finish, tiling.finish_sizes[0])) if tiling.finish else 0
        )
        self.kinds = self.finish + self.finish_pitch * len(tiling.finish_sizes)
        kinds = bytes(kind for axis in tiling.axes for kind in axis.kinds)
        self.kind_bytes = kinds + bytes(-len(kinds) % WORD)


def _sizes(kernel: Kernel, sizes: Mapping[str, object]) -> bytes:
    words = size_words(kernel, sizes)  # type: ignore[arg-type]
    return struct.pack(f"<{len(words)}i", *words)


def _head(tiling: Tiling, repeat: int, functions: Functions, at: _Offsets, windows: int) -> bytes:
    axes = tiling.axes
    padding = [0] * (AXES - len(axes))
    free = sum(not axis.reduction for axis in axes)
    return struct.pack(
        "<3Ii4B4i4i7i",
        functions.first,
        functions.more,
        functions.finish,
        repeat,
        len(axes),
        windows,
        free,
        int(tiling.ahead),
        *(axis.count for axis in axes),
        *padding,
        *radices(axes),
        *padding,
        at.kinds,
        at.steps,
        at.boxes,
        at.sizes,
        at.pitch,
        at.finish,
        at.finish_pitch,
    )


def _windows(places: Sequence[Place], made: Mapping[int, Row]) -> list[bytes]:
    found, box, step = [], 0, 0
    for position, place in enumerate(places):
        row = made.get(position)
        if row is None:
            flags = (0, 0, 0, 0, 0, MOVED_AT_FIRST, 0, 0, 0, 0)
            found.append(struct.pack("<IIi4B4H", place.far, *flags))
            continue
        window = row.window
        moved_by = sum(1 << axis for axis in window.axes) or MOVED_AT_FIRST
        found.append(
            struct.pack(
                "<IIi4B4H",
                place.far,
                place.near if window.near else 0,
                window.slot_bytes,
                window.slots,
                int(window.load),
                int(window.store),
                moved_by,
                box,
                step,
                len(row.steps),
                0,
            )
        )
        box += len(row.boxes)
        step += len(row.steps)
    return found


def _steps(made: Mapping[int, Row], tiling: Tiling, at: _Offsets) -> list[bytes]:
    starts = [at.kinds + sum(a.count for a in tiling.axes[:n]) for n in range(len(tiling.axes))]
    return [
        struct.pack("<6i", s.axis, starts[s.axis], s.radix, s.delta, s.back, s.most)
        for row in made.values()
        for s in row.steps
    ]
