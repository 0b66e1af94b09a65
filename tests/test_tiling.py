"""Every node of every row of the case table in tiles: put together, or added up along reductions,
they are what the node makes of its whole operands."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from gradlet.graph import Array, Site
from gradlet.ops import OPS
from gradlet.ops.base import Axis, Op
from gradlet.ops.tiling import Box, Ranges, boxes
from gradlet.reference import run_reference
from tests.cases import CASES, Case, random_cases
from tests.helpers import op_training_graph

ROWS = [*CASES, *random_cases(60)]
every_row = pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)
MOST_TILES = 60  # of one tiling: enough for every border and inside, and quick


@every_row
def test_tiles_make_the_whole(case: Case) -> None:
    graph = op_training_graph(case)
    values = next(iter(run_reference(graph, 1))).values
    for site in graph.sites():
        operands = [values[name] for name in site.node.inputs]
        for tiling in tilings(OPS[site.node.op].axes(site), random.Random(case.id)):
            check_tiling(site, operands, tiling)


def tilings(axes: tuple[Axis, ...], chance: random.Random) -> Iterator[dict[str, int]]:
    """Steps per tile of some axes: each alone in ones and in some other size, then all together."""
    long = [axis for axis in axes if axis.size > 1]
    for axis in long:
        yield {axis.name: 1}
        yield {axis.name: chance.randint(2, max(2, axis.size - 1))}
    for _ in range(2 if len(long) > 1 else 0):
        chosen = chance.sample(long, chance.randint(2, len(long)))
        yield {axis.name: chance.choice((1, 2, 3, max(1, axis.size // 2))) for axis in chosen}


def tiles_of(axes: tuple[Axis, ...], tiling: dict[str, int]) -> Iterator[Ranges]:
    sizes = {axis.name: axis.size for axis in axes}
    cuts = [
        [(name, (at, min(at + step, sizes[name]))) for at in range(0, sizes[name], step)]
        for name, step in tiling.items()
    ]
    for chosen in product(*cuts):
        yield dict(chosen)


def check_tiling(site: Site, operands: list[Array], tiling: dict[str, int]) -> None:
    op = OPS[site.node.op]
    wholes = op.reference(site.attrs, *operands)
    totals = [np.zeros(whole.shape) for whole in wholes]
    written = [np.zeros(whole.shape, int) for whole in wholes]
    axes = op.axes(site)
    all_ranges = list(tiles_of(axes, tiling))
    if len(all_ranges) > MOST_TILES:
        return
    for ranges in all_ranges:
        tile = op.tile(site, ranges)
        if tile is None:
            return
        parts = boxes(site, op, ranges)
        for index, result in enumerate(results_of(op, site, tile, parts, operands)):
            place = at(parts[op.outputs[index].rstrip("?")])
            totals[index][place] += result
            written[index][place] += 1
    reductions = [axis for axis in axes if axis.reduction and axis.name in tiling]
    times = np.prod([-(-axis.size // tiling[axis.name]) for axis in reductions], dtype=int)
    for whole, total, count in zip(wholes, totals, written, strict=True):
        assert (count == times).all(), (site.node.op, tiling)
        same(total, whole, (site.node.op, tiling))


def results_of(
    op: Op, site: Site, tile: Site, parts: dict[str, Box], operands: list[Array]
) -> tuple[Array, ...]:
    """What a tile makes of its parts of the operands, which have the shapes that it says."""
    slots = [slot for slot, _ in op.slots(site)][: len(operands)]
    cut = [v[at(parts[slot])] for slot, v in zip(slots, operands, strict=True) if slot in parts]
    assert [value.shape for value in cut] == [tensor.shape for tensor in tile.ins]
    assert len(tile.node.inputs) == len(cut)
    results = op.reference(tile.attrs, *cut)
    assert [value.shape for value in results] == [tensor.shape for tensor in tile.outs]
    sane(op, site, tile)
    return results


def sane(op: Op, site: Site, tile: Site) -> None:
    """The same kernel family with the same fields, and none of them negative that was not."""
    whole, part = op.lower(site), op.lower(tile)
    assert (whole.family, whole.sizes.keys()) == (part.family, part.sizes.keys())
    for name, size in part.sizes.items():
        assert type(size) is type(whole.sizes[name])
        if name in ("batch", "count", "planes", "in_h", "out_h", "pad_top", "m", "n", "k"):
            assert isinstance(size, int)
            assert size >= (0 if name == "pad_top" else 1)


def at(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)


def same(actual: Array, expected: Array, label: object) -> None:
    """But for the order of summation in float64."""
    scale = np.abs(expected).max(initial=0.0)
    assert np.abs(actual - expected).max(initial=0.0) <= 1e-12 * scale, label
