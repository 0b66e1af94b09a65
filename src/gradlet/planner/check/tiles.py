"""Replays the tiles of a call over the shadow memory of replay.py, copy by copy.

Every unit of memory remembers which part of which value it holds. A tile must find the elements of
its boxes in its slots; what is copied while a tile computes must not touch what that tile uses, in
whichever order the copies come to be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Protocol

import numpy as np

from gradlet.ir.graph import Array, Graph
from gradlet.planner.model import BIAS_GRADIENT, Buffer, Call
from gradlet.planner.tiling import Tiling, Window

PARTIAL = 1 << 62
"""Marks an element that further tiles will be added to."""


class Shadow(Protocol):
    graph: Graph
    unit: int

    @property
    def places(self) -> Mapping[str, Buffer]: ...

    def span(self, buffer: Buffer, size: int) -> Array: ...

    def first(self, name: str) -> int: ...


def early_faults(shadow: Shadow, before: Call | None, call: Call) -> Iterator[str]:
    """Boxes that come in while the call before computes: it must neither make them nor use the
    place that they go to."""
    tiling = call.tiling
    if tiling is None:
        return
    for window in (w for w in tiling.windows if w and w.early):
        together = before and _runs_in(shadow.graph, before) == _runs_in(shadow.graph, call)
        if before is None or before.tiling is None or not together:
            yield f"nobody fetches '{window.tensor}' early"
            continue
        places, slot = shadow.places, shadow.places[window.slot_buffers[0]]
        used, late = _in_last_tile(before.tiling, shadow)
        first = Moves(tiling, shadow)
        first.move([0] * len(tiling.axes))
        box = first.boxes[tiling.windows.index(window)]
        for name in filter(None, before.outputs):
            written = late.get(name)
            if places[name] is places[window.tensor] and (
                name != window.tensor or written is None or np.intersect1d(written, box).size
            ):
                yield f"'{window.tensor}' is fetched before '{before.name}' has made it"
        for name in filter(None, (*used, before.scratch)):
            if name in places and _overlap(places[name], slot):
                yield f"'{window.tensor}' is fetched onto '{name}', which '{before.name}' uses"


def _in_last_tile(tiling: Tiling, shadow: Shadow) -> tuple[list[str], dict[str, Array]]:
    """The buffers that the last tile of a call uses or still writes back, and the elements of each
    tensor that are not in their place before."""
    replay = Moves(tiling, shadow)
    leaving: list[tuple[int, Array, int]] = []
    for tile in product(*(range(axis.count) for axis in tiling.axes)):
        _, leaving = replay.move(tile)
    found = [
        window.slot_buffers[replay.slots[position]] if window.near else window.tensor
        for position, window in enumerate(tiling.windows)
        if window
    ]
    late = {
        window.tensor: replay.boxes[position]
        for position, window in enumerate(tiling.windows)
        if window and window.store and window.near
    }
    for position, box, slot in leaving:
        window = tiling.windows[position]
        assert window is not None
        found.append(window.slot_buffers[slot])
        late[window.tensor] = np.concatenate([late[window.tensor], box])
    return found, late


def _runs_in(graph: Graph, call: Call) -> str:
    """What a program can run by itself: a prediction, the comparison with a target, learning, and
    the update where gradients add up first."""
    if call.phase == "forward":
        compares = any(graph.tensors[name].role == "loss" for name in filter(None, call.outputs))
        updates = {new for _, new in graph.updates}.intersection(call.outputs)
        return "compare" if compares or updates else "predict"
    return "update" if call.phase == "update" and graph.accumulate > 1 else "learn"


def _overlap(one: Buffer, other: Buffer) -> bool:
    same = (one.level, one.region) == (other.level, other.region)
    return (
        same and one.offset < other.offset + other.bytes and other.offset < one.offset + one.bytes
    )


def _numbers(window: Window, shadow: Shadow) -> Array:
    """Of the units of each element, which are a further dimension."""
    units = shadow.graph.tensors[window.tensor].element.bytes // shadow.unit
    return np.arange(int(np.prod(window.shape, dtype=np.int64)) * units).reshape(
        *window.shape, units
    )


class Moves:
    """The windows of a call, from tile to tile."""

    def __init__(self, tiling: Tiling, shadow: Shadow) -> None:
        self.tiling = tiling
        self.boxes: dict[int, Array] = {}  # numbers of the units, by position
        self.slots: dict[int, int] = {}
        self.numbers = [_numbers(window, shadow) if window else None for window in tiling.windows]

    def _box(self, position: int, tile: Sequence[int]) -> Array:
        """Numbers of the units that a tile sees of an operand."""
        window, numbers = self.tiling.windows[position], self.numbers[position]
        assert window is not None
        assert numbers is not None
        cut = [slice(None)] * len(window.shape)
        for number, span in window.spans:
            axis = self.tiling.axes[number]
            begin = tile[number] * axis.tile
            end = min(begin + axis.tile, axis.size)
            size = window.shape[span.dim]
            low = min(max(begin * span.step + span.start, 0), size - 1)
            high = min(max((end - 1) * span.step + span.start + span.extent, low + 1), size)
            cut[span.dim] = slice(low, high)
        found: Array = numbers[tuple(cut)].reshape(-1)
        return found

    def move(self, tile: Sequence[int]) -> tuple[list[int], list[tuple[int, Array, int]]]:
        """On to a tile: positions to fetch, and boxes to write back, with their slots."""
        loads, stores = [], []
        for position, window in enumerate(self.tiling.windows):
            if window is None:
                continue
            box, before = self._box(position, tile), self.boxes.get(position)
            if before is not None and np.array_equal(box, before):
                continue
            if before is None:
                self.slots[position] = 0
            else:
                if window.near and window.store:
                    stores.append((position, before, self.slots[position]))
                self.slots[position] = (self.slots[position] + 1) % max(1, window.slots)
            self.boxes[position] = box
            if window.near and window.load:
                loads.append(position)
        return loads, stores


class TileReplay(Moves):
    """old: what an update in place replaces; source: whose bytes a view shows."""

    def __init__(
        self, shadow: Shadow, call: Call, source: Mapping[str, str], old: Mapping[str, str]
    ) -> None:
        assert call.tiling is not None
        super().__init__(call.tiling, shadow)
        self.shadow, self.call, self.source, self.old = shadow, call, source, old
        self.outputs = len(call.outputs)
        self.operands = self.outputs + len(call.inputs)  # partial sums are behind them

    def faults(self) -> Iterator[str]:
        cramped = list(self._buffers())
        yield from cramped
        if cramped:
            return
        tiles = list(product(*(range(axis.count) for axis in self.tiling.axes)))
        loads, _ = self.move(tiles[0])
        self._copied(loads, [])
        leaving: list[tuple[int, Array, int]] = []
        for number, tile in enumerate(tiles):
            used = dict(self.boxes), dict(self.slots)
            if self.tiling.double_buffered and number + 1 < len(tiles):
                loads, stores = self.move(tiles[number + 1])
                yield from self._apart(loads, leaving, used)
                yield from self._compute(tile, used)
                # the stores of this tile's boxes start behind it, when the next one computes
                self._copied(loads, [])
                self._copied([], stores)
                leaving = stores
            else:
                yield from self._compute(tile, used)
                if number + 1 < len(tiles):
                    loads, stores = self.move(tiles[number + 1])
                    self._copied([], stores)
                    self._copied(loads, [])
        last = [p for p, w in self._windows() if w.store]
        self._copied([], [(p, self.boxes[p], self.slots[p]) for p in last])

    def _windows(self) -> Iterator[tuple[int, Window]]:
        for position, window in enumerate(self.tiling.windows):
            if window is not None and window.near:
                yield position, window

    def _buffers(self) -> Iterator[str]:
        for _, window in self._windows():
            buffers = [self.shadow.places.get(name) for name in window.slot_buffers]
            if not all(buffer and buffer.bytes >= window.slot_bytes for buffer in buffers):
                yield f"the window on '{window.tensor}' has no room"
            elif self.tiling.double_buffered and window.axes:
                least = 3 if window.load and window.store else 2
                if window.slots < least:
                    yield f"the window on '{window.tensor}' needs {least} slots"
        yield from self._overlaps()

    def _overlaps(self) -> Iterator[str]:
        """Buffers that are in use together; a result may take an operand's place."""
        names = [name for _, w in self._windows() for name in w.slot_buffers]
        inside = [w.tensor for w in self.tiling.windows if w and not w.near]
        places = self.shadow.places
        own = [places[name] for name in (*names, self.call.scratch) if name in places]
        other = [places[name] for name in inside if name in places]
        for number, buffer in enumerate(own):
            for met in (*own[number + 1 :], *other):
                if _overlap(buffer, met):
                    yield f"'{buffer.name}' and '{met.name}' overlap"

    def _slot(self, position: int, slot: int, count: int) -> Array:
        window = self.tiling.windows[position]
        assert window is not None
        buffer = self.shadow.places[window.slot_buffers[slot]]
        return self.shadow.span(buffer, buffer.bytes)[:count]

    def _home(self, window: Window) -> Array:
        size = self.shadow.graph.tensors[window.tensor].bytes
        return self.shadow.span(self.shadow.places[window.tensor], size)

    def _copied(self, loads: Sequence[int], stores: Sequence[tuple[int, Array, int]]) -> None:
        for position, box, slot in stores:
            window = self.tiling.windows[position]
            assert window is not None
            units = self._slot(position, slot, len(box))
            self._home(window)[box[: len(units)]] = units
        for position in loads:
            window = self.tiling.windows[position]
            assert window is not None
            wanted = self.boxes[position]
            place = self._slot(position, self.slots[position], len(wanted))
            place[:] = self._home(window)[wanted][: len(place)]

    def _apart(
        self,
        loads: Sequence[int],
        leaving: Sequence[tuple[int, Array, int]],
        used: tuple[dict[int, Array], dict[int, int]],
    ) -> Iterator[str]:
        """While a tile computes, the next boxes come in and those of the tile before leave: other
        slots than it uses, and nothing of the one is of the other."""
        for position in loads:
            window = self.tiling.windows[position]
            assert window is not None
            if self.slots[position] == used[1][position]:
                yield f"the next box of '{window.tensor}' overwrites the one in use"
            for stored, box, slot in leaving:
                other = self.tiling.windows[stored]
                assert other is not None
                if stored == position and slot == self.slots[position]:
                    yield f"the next box of '{window.tensor}' overwrites the one that leaves"
                places = self.shadow.places
                same = places[window.tensor] is places[other.tensor]
                if same and np.intersect1d(self.boxes[position], box).size:
                    yield f"'{window.tensor}' is fetched while it is written back"

    def _compute(
        self, tile: Sequence[int], used: tuple[dict[int, Array], dict[int, int]]
    ) -> Iterator[str]:
        boxes, slots = used
        reductions = [n for n, axis in enumerate(self.tiling.axes) if axis.reduction]
        added = any(tile[n] for n in reductions)
        done = all(tile[n] == self.tiling.axes[n].count - 1 for n in reductions)
        beside, idle = self._beside(tile)
        sums = set(range(self.operands, len(self.tiling.windows)))
        for position, window in enumerate(self.tiling.windows):
            if window is None or (window.once and added) or (idle and position in beside):
                continue
            if window.near and len(boxes[position]) * self.shadow.unit > window.slot_bytes:
                yield f"a box of '{window.tensor}' is larger than its slot"
                return
            lies = not window.near and not window.fetched
            if lies and (np.diff(boxes[position]) != 1).any():
                yield f"a box of '{window.tensor}' is used where it lies, but not in one run"
            words = self._words(position, window, boxes[position], slots[position])
            read = position >= self.outputs and position not in sums
            updated = position < self.outputs and self.call.updates
            if read or updated:
                name = window.tensor if read else self.old.get(window.tensor, "")
                if not self._holds(words, name, boxes[position]):
                    yield f"tile {tuple(tile)} does not find its part of '{name}'"
            elif added and not self._partial(words, window.tensor, boxes[position]):
                yield f"tile {tuple(tile)} has nothing to add to in '{window.tensor}'"
        for position, window in enumerate(self.tiling.windows):
            if window is None or (position >= self.outputs and position not in sums):
                continue
            if (sums and position not in sums and not done) or (idle and position in beside):
                continue
            made = self.shadow.first(window.tensor) + boxes[position]
            final = made if done else made + PARTIAL
            self._put(position, window, boxes[position], slots[position], final)

    def _beside(self, tile: Sequence[int]) -> tuple[set[int], bool]:
        """The results that are made beside, and whether this tile skips them: the first tiles along
        axes that do not move what is summed up have seen it all."""
        if self.call.fusion != BIAS_GRADIENT:
            return set(), False
        _, sum_beside = self.call.whole
        position = sum_beside.operands[-2]
        assert position is not None
        summed = self.tiling.windows[position]
        assert summed is not None
        still = [
            at
            for number, (axis, at) in enumerate(zip(self.tiling.axes, tile, strict=True))
            if not axis.reduction and number not in summed.axes
        ]
        own = {p for p in sum_beside.operands[:-2] if p is not None}
        return own | set(range(self.operands + 1, len(self.tiling.windows))), any(still)

    def _words(self, position: int, window: Window, box: Array, slot: int) -> Array:
        return self._slot(position, slot, len(box)) if window.near else self._home(window)[box]

    def _put(self, position: int, window: Window, box: Array, slot: int, made: Array) -> None:
        if window.near:
            self._slot(position, slot, len(box))[:] = made
        else:
            self._home(window)[box] = made

    def _holds(self, words: Array, name: str, box: Array) -> bool:
        expected = self.shadow.first(self.source[name]) + box
        return len(words) == len(box) and bool((words == expected).all())

    def _partial(self, words: Array, name: str, box: Array) -> bool:
        return bool((words == self.shadow.first(name) + box + PARTIAL).all())
