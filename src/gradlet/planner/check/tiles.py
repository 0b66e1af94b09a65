"""Replays the tiles of a call over the shadow memory of replay.py, copy by copy.

Every unit of memory remembers which part of which value it holds. A tile must find the elements of
its regions in its stages; what is copied while a tile computes must not touch what that tile uses,
in whichever order the copies come to be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Protocol

import numpy as np

from gradlet.ir.graph import Array, Graph
from gradlet.kernels.catalogue import operands
from gradlet.kernels.traits import released
from gradlet.planner.model import BIAS_GRADIENT, Buffer, Call
from gradlet.planner.tiling import TileView, Tiling

PARTIAL = 1 << 62
"""Marks an element that further tiles will be added to."""


class Shadow(Protocol):
    graph: Graph
    unit: int

    @property
    def places(self) -> Mapping[str, Buffer]: ...

    def span(self, buffer: Buffer, size: int) -> Array: ...

    def first(self, name: str) -> int: ...


def prefetch_faults(shadow: Shadow, before: Call | None, call: Call) -> Iterator[str]:
    """Regions that come in while the call before computes: it must neither make them nor use the
    place that they go to."""
    tiling = call.tiling
    if tiling is None:
        return
    for view in (w for w in tiling.views if w and w.prefetched):
        together = before and _runs_in(shadow.graph, before) == _runs_in(shadow.graph, call)
        if before is None or before.tiling is None or not together:
            yield f"nobody fetches '{view.tensor}' early"
            continue
        places, stage = shadow.places, shadow.places[view.stage_buffers[0]]
        used, late = _in_last_tile(before.tiling, shadow)
        first = Moves(tiling, shadow)
        first.move([0] * len(tiling.axes))
        region = first.regions[tiling.views.index(view)]
        for name in filter(None, before.outputs):
            written = late.get(name)
            if places[name] is places[view.tensor] and (
                name != view.tensor or written is None or np.intersect1d(written, region).size
            ):
                yield f"'{view.tensor}' is fetched before '{before.name}' has made it"
        for name in filter(None, (*used, before.scratch)):
            if name in places and _overlap(places[name], stage):
                yield f"'{view.tensor}' is fetched onto '{name}', which '{before.name}' uses"


def _in_last_tile(tiling: Tiling, shadow: Shadow) -> tuple[list[str], dict[str, Array]]:
    """The buffers that the last tile of a call uses or still writes back, and the elements of each
    tensor that are not in their place before."""
    replay = Moves(tiling, shadow)
    leaving: list[tuple[int, Array, int]] = []
    for tile in product(*(range(axis.count) for axis in tiling.axes)):
        _, leaving = replay.move(tile)
    found = [
        view.stage_buffers[replay.stages[position]] if view.buffer else view.tensor
        for position, view in enumerate(tiling.views)
        if view
    ]
    late = {
        view.tensor: replay.regions[position]
        for position, view in enumerate(tiling.views)
        if view and view.store and view.buffer
    }
    for position, region, stage in leaving:
        view = tiling.views[position]
        assert view is not None
        found.append(view.stage_buffers[stage])
        late[view.tensor] = np.concatenate([late[view.tensor], region])
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


def _numbers(view: TileView, shadow: Shadow) -> Array:
    """Of the units of each element, which are a further dimension."""
    units = shadow.graph.tensors[view.tensor].element.bytes // shadow.unit
    return np.arange(int(np.prod(view.shape, dtype=np.int64)) * units).reshape(*view.shape, units)


class Moves:
    """The views of a call, from tile to tile."""

    def __init__(self, tiling: Tiling, shadow: Shadow) -> None:
        self.tiling = tiling
        self.regions: dict[int, Array] = {}  # numbers of the units, by position
        self.stages: dict[int, int] = {}
        self.numbers = [_numbers(view, shadow) if view else None for view in tiling.views]

    def _region(self, position: int, tile: Sequence[int]) -> Array:
        """Numbers of the units that a tile sees of an operand."""
        view, numbers = self.tiling.views[position], self.numbers[position]
        assert view is not None
        assert numbers is not None
        cut = [slice(None)] * len(view.shape)
        for number, span in view.spans:
            axis = self.tiling.axes[number]
            begin = tile[number] * axis.tile
            end = min(begin + axis.tile, axis.size)
            size = view.shape[span.dim]
            low = min(max(begin * span.step + span.start, 0), size - 1)
            high = min(max((end - 1) * span.step + span.start + span.extent, low + 1), size)
            cut[span.dim] = slice(low, high)
        found: Array = numbers[tuple(cut)].reshape(-1)
        return found

    def move(self, tile: Sequence[int]) -> tuple[list[int], list[tuple[int, Array, int]]]:
        """On to a tile: positions to fetch, and regions to write back, with their stages."""
        loads, stores = [], []
        for position, view in enumerate(self.tiling.views):
            if view is None:
                continue
            region, before = self._region(position, tile), self.regions.get(position)
            if before is not None and np.array_equal(region, before):
                continue
            if before is None:
                self.stages[position] = 0
            else:
                if view.buffer and view.store:
                    stores.append((position, before, self.stages[position]))
                self.stages[position] = (self.stages[position] + 1) % max(1, view.stages)
            self.regions[position] = region
            if view.buffer and view.load:
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
            used = dict(self.regions), dict(self.stages)
            if self.tiling.double_buffered and number + 1 < len(tiles):
                loads, stores = self.move(tiles[number + 1])
                yield from self._apart(loads, leaving, used)
                yield from self._compute(tile, used)
                # the stores of this tile's regions start behind it, when the next one computes
                self._copied(loads, [])
                self._copied([], stores)
                leaving = stores
            else:
                yield from self._compute(tile, used)
                if number + 1 < len(tiles):
                    loads, stores = self.move(tiles[number + 1])
                    self._copied([], stores)
                    self._copied(loads, [])
        last = [p for p, w in self._views() if w.store]
        self._copied([], [(p, self.regions[p], self.stages[p]) for p in last])

    def _views(self) -> Iterator[tuple[int, TileView]]:
        for position, view in enumerate(self.tiling.views):
            if view is not None and view.buffer:
                yield position, view

    def _released(self) -> Iterator[str]:
        """A region may only go early if nothing reads it but the first step of a kernel."""
        for position, view in self._views():
            if not view.released:
                continue
            for launch in self.tiling.launches:
                if not launch.barrier:  # beside the first step
                    continue
                first = len(operands(launch.kernel)[0])
                own = {launch.operands[first + number] for number in released(launch.kernel)}
                if position in set(launch.operands) - own:
                    yield f"'{launch.kernel.name}' reads '{view.tensor}' in more than one step"

    def _buffers(self) -> Iterator[str]:
        yield from self._released()
        for _, view in self._views():
            buffers = [self.shadow.places.get(name) for name in view.stage_buffers]
            if not all(buffer and buffer.bytes >= view.stage_bytes for buffer in buffers):
                yield f"the view on '{view.tensor}' has no room"
            elif self.tiling.double_buffered and view.axes:
                least = 1 if view.released else 3 if view.load and view.store else 2
                if view.stages < least:
                    yield f"the view on '{view.tensor}' needs {least} stages"
        yield from self._overlaps()

    def _overlaps(self) -> Iterator[str]:
        """Buffers that are in use together; a result may take an operand's place."""
        names = [name for _, w in self._views() for name in w.stage_buffers]
        inside = [w.tensor for w in self.tiling.views if w and not w.buffer]
        places = self.shadow.places
        own = [places[name] for name in (*names, self.call.scratch) if name in places]
        other = [places[name] for name in inside if name in places]
        for number, buffer in enumerate(own):
            for met in (*own[number + 1 :], *other):
                if _overlap(buffer, met):
                    yield f"'{buffer.name}' and '{met.name}' overlap"

    def _stage(self, position: int, stage: int, count: int) -> Array:
        view = self.tiling.views[position]
        assert view is not None
        buffer = self.shadow.places[view.stage_buffers[stage]]
        return self.shadow.span(buffer, buffer.bytes)[:count]

    def _home(self, view: TileView) -> Array:
        size = self.shadow.graph.tensors[view.tensor].bytes
        return self.shadow.span(self.shadow.places[view.tensor], size)

    def _copied(self, loads: Sequence[int], stores: Sequence[tuple[int, Array, int]]) -> None:
        for position, region, stage in stores:
            view = self.tiling.views[position]
            assert view is not None
            units = self._stage(position, stage, len(region))
            self._home(view)[region[: len(units)]] = units
        for position in loads:
            view = self.tiling.views[position]
            assert view is not None
            wanted = self.regions[position]
            place = self._stage(position, self.stages[position], len(wanted))
            place[:] = self._home(view)[wanted][: len(place)]

    def _apart(
        self,
        loads: Sequence[int],
        leaving: Sequence[tuple[int, Array, int]],
        used: tuple[dict[int, Array], dict[int, int]],
    ) -> Iterator[str]:
        """While a tile computes, the next regions come in and those of the tile before leave: other
        stages than it uses, and nothing of the one is of the other."""
        for position in loads:
            view = self.tiling.views[position]
            assert view is not None
            if self.stages[position] == used[1][position] and not view.released:
                yield f"the next region of '{view.tensor}' overwrites the one in use"
            for stored, region, stage in leaving:
                other = self.tiling.views[stored]
                assert other is not None
                if stored == position and stage == self.stages[position]:
                    yield f"the next region of '{view.tensor}' overwrites the one that leaves"
                places = self.shadow.places
                same = places[view.tensor] is places[other.tensor]
                if same and np.intersect1d(self.regions[position], region).size:
                    yield f"'{view.tensor}' is fetched while it is written back"

    def _compute(
        self, tile: Sequence[int], used: tuple[dict[int, Array], dict[int, int]]
    ) -> Iterator[str]:
        """Every operand of the tile is in its stage, and its results become parts of theirs."""
        reductions = [n for n, axis in enumerate(self.tiling.axes) if axis.reduction]
        added = any(tile[n] for n in reductions)
        done = all(tile[n] == self.tiling.axes[n].count - 1 for n in reductions)
        skipped = self._skipped(tile)
        parts = [
            (position, view, used[0][position], used[1][position])
            for position, view in enumerate(self.tiling.views)
            if view and position not in skipped
        ]
        cramped = [fault for _, view, region, _ in parts if (fault := self._cramped(view, region))]
        if cramped:
            yield cramped[0]
            return
        for part in parts:
            if not (part[1].once and added):
                yield from self._operand(tile, *part, added=added)
        summed_apart = len(self.tiling.views) > self.operands
        for position, view, region, stage in parts:
            result = position < self.outputs and (done or not summed_apart)
            if result or position >= self.operands:
                made = self.shadow.first(view.tensor) + region
                self._put(position, view, region, stage, made if done else made + PARTIAL)

    def _operand(
        self,
        tile: Sequence[int],
        position: int,
        view: TileView,
        region: Array,
        stage: int,
        *,
        added: bool,
    ) -> Iterator[str]:
        """Whether a tile finds what it works on. added: it goes on with a sum."""
        words = self._words(position, view, region, stage)
        read = self.outputs <= position < self.operands
        if read or (position < self.outputs and view.tensor in self.call.replaced):
            name = view.tensor if read else self.old.get(view.tensor, "")
            if not self._holds(words, name, region):
                yield f"tile {tuple(tile)} does not find its part of '{name}'"
        elif added and not self._partial(words, view.tensor, region):
            yield f"tile {tuple(tile)} has nothing to add to in '{view.tensor}'"

    def _cramped(self, view: TileView, region: Array) -> str:
        """Why a tile cannot have its region where the view says."""
        if view.buffer:
            larger = len(region) * self.shadow.unit > view.stage_bytes
            return f"a region of '{view.tensor}' is larger than its stage" if larger else ""
        if not view.fetched and (np.diff(region) != 1).any():
            return f"a region of '{view.tensor}' is used where it lies, but not in one run"
        return ""

    def _skipped(self, tile: Sequence[int]) -> set[int]:
        """The positions of a sum that is made beside, where this tile leaves it out: the first
        tiles along axes that do not move what is summed up have seen it all."""
        if self.call.fusion != BIAS_GRADIENT:
            return set()
        _, sum_beside = self.call.whole
        position = sum_beside.operands[-2]
        assert position is not None
        summed = self.tiling.views[position]
        assert summed is not None
        again = any(
            at
            for number, (axis, at) in enumerate(zip(self.tiling.axes, tile, strict=True))
            if not axis.reduction and number not in summed.axes
        )
        own = {p for p in sum_beside.operands[:-2] if p is not None}
        return own | set(range(self.operands + 1, len(self.tiling.views))) if again else set()

    def _words(self, position: int, view: TileView, region: Array, stage: int) -> Array:
        return (
            self._stage(position, stage, len(region)) if view.buffer else self._home(view)[region]
        )

    def _put(self, position: int, view: TileView, region: Array, stage: int, made: Array) -> None:
        if view.buffer:
            self._stage(position, stage, len(region))[:] = made
        else:
            self._home(view)[region] = made

    def _holds(self, words: Array, name: str, region: Array) -> bool:
        expected = self.shadow.first(self.source[name]) + region
        return len(words) == len(region) and bool((words == expected).all())

    def _partial(self, words: Array, name: str, region: Array) -> bool:
        return bool((words == self.shadow.first(name) + region + PARTIAL).all())
