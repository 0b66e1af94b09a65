"""Every node of every row of the case table in tiles: put together, or added up along reductions,
they are what the node makes of its whole operands."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from gradlet.ir.graph import Array, Site
from gradlet.kernels.catalogue import families
from gradlet.ops import OPS
from gradlet.ops.base import Axis, Op, Size
from gradlet.ops.lib.tiling import Ranges, Region, regions
from gradlet.ops.lib.window import Window
from gradlet.oracle.interpreter import run_reference
from tests.cases import CASES, Case, random_cases
from tests.helpers import op_training_graph, place_of, tile_operands

ROWS = [*CASES, *random_cases(60)]
every_row = pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)
SAME_IN_EVERY_ROW = ("mse", "mse_grad", "sgd")  # its own rows are enough

MAY_REFUSE = {
    # views that lie beside the input, where padding is as wide as the kernel; and in pairs, a
    # depthwise channel that is left alone with a place beside it, as if it read two inputs
    "conv2d": ("rows", "columns", "groups"),
    "conv2d_weight_grad": ("rows", "columns", "groups"),
    "conv2d_input_grad": ("rows", "columns", "groups"),
    # means over unequally many elements, at the edge of a plane
    "avg_pool2d_grad": ("rows", "columns"),
    # elements that are no neighbours, where the whole is one line of them
    "dropout": ("dim0", "dim1", "dim2", "dim3"),
    # a part that is nothing but padding
    "pad": ("dim0", "dim1", "dim2", "dim3"),
}
"""Axes that have tiles in most cases, but not in all."""


@pytest.mark.sampled(40)
@every_row
def test_tiles_make_the_whole(case: Case) -> None:
    for site, operands in sites(case):
        check_spans(site)
        for tiling in tilings(OPS[site.node.op].axes(site), random.Random(case.id)):
            check_tiling(site, operands, tiling)


def check_spans(site: Site) -> None:
    """They are of operands that are there, and no result has a dimension along a reduction, whose
    tiles a kernel can add."""
    op = OPS[site.node.op]
    tensors, made = dict(op.slots(site)), {stage.rstrip("?") for stage in op.outputs}
    assert set(op.adds_once) <= {stage.rstrip("?") for stage in op.inputs if stage.endswith("?")}
    axes = op.axes(site)
    assert len({axis.name for axis in axes}) == len(axes)
    for axis in axes:
        for span in axis.spans:
            assert span.dim < len(tensors[span.operand].shape), (op.name, axis)
        assert any(span.operand in made for span in axis.spans) != axis.reduction, (op.name, axis)
    if any(axis.reduction for axis in axes):
        lowering = op.lower(site)
        assert "sum" in families()[lowering.family].modes[lowering.mode].epilogues, op.name


def sites(case: Case) -> Iterator[tuple[Site, list[Array]]]:
    """The nodes of a row with the values of their operands."""
    graph = op_training_graph(case)
    values = next(iter(run_reference(graph, 1))).values
    for site in graph.sites():
        if case.op == "mse" or site.node.op not in SAME_IN_EVERY_ROW:
            yield site, [values[name] for name in site.node.inputs]


def tilings(axes: tuple[Axis, ...], chance: random.Random) -> Iterator[dict[str, int]]:
    """Steps per tile of some axes: each alone in ones and in some other size, then several."""
    long = [axis for axis in axes if axis.size > 1]
    for axis in long:
        yield {axis.name: -(-axis.size // 9)}
        yield {axis.name: chance.randint(2, max(2, axis.size - 1))}
    for _ in range(3 if len(long) > 1 else 0):
        chosen = chance.sample(long, chance.randint(2, min(3, len(long))))
        yield {axis.name: max(chance.choice((1, 2, 3)), -(-axis.size // 3)) for axis in chosen}


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
    axes = op.axes(site)
    wholes = op.reference(site.attrs, *operands)
    totals = [np.zeros(whole.shape) for whole in wholes]
    written = [np.zeros(whole.shape, int) for whole in wholes]
    by_kind: dict[object, Mapping[str, Size]] = {}
    alone = classes(site, tiling)
    for ranges in tiles_of(axes, tiling):
        tile = op.tile(site, ranges)
        if tile is None:
            assert set(tiling) & set(MAY_REFUSE.get(op.name, ())), (op.name, tiling)
            return
        if len(ranges) > 1:
            tile_class, sizes = tuple(alone[item] for item in ranges.items()), op.lower(tile).sizes
            assert by_kind.setdefault(tile_class, sizes) == sizes, (op.name, ranges)
        parts = regions(site, op, ranges)
        for index, result in enumerate(results_of(op, site, tile, parts, operands)):
            place = place_of(parts[op.outputs[index].rstrip("?")])
            totals[index][place] += result
            written[index][place] += 1
    sums = [axis for axis in axes if axis.reduction and axis.name in tiling]
    times = np.prod([-(-axis.size // tiling[axis.name]) for axis in sums], dtype=int)
    for whole, total, count in zip(wholes, totals, written, strict=True):
        assert (count == times).all(), (op.name, tiling)
        same(total, whole, (op.name, tiling))


def classes(site: Site, tiling: dict[str, int]) -> dict[object, str]:
    """What every range of each axis makes of the node by itself. Tiles that are alike in that are
    alike, so that a planner need not look at all combinations; it takes no axis that is refused
    alone, where every tile is a tile_class of its own."""
    op = OPS[site.node.op]
    found: dict[object, str] = {}
    for axis in op.axes(site) if len(tiling) > 1 else ():
        for ranges in tiles_of((axis,), {axis.name: tiling.get(axis.name, axis.size)}):
            tile = op.tile(site, ranges)
            found[axis.name, ranges[axis.name]] = (
                repr((tile.attrs, tile.ins, tile.outs)) if tile else str(ranges)
            )
    return found


def results_of(
    op: Op, site: Site, tile: Site, parts: dict[str, Region], operands: list[Array]
) -> tuple[Array, ...]:
    """What a tile makes of its parts of the operands, which have the shapes that it says."""
    cut = tile_operands(op, site, parts, operands)
    assert [value.shape for value in cut] == [tensor.shape for tensor in tile.ins]
    assert len(tile.node.inputs) == len(cut)
    results = op.reference(tile.attrs, *cut)
    assert [value.shape for value in results] == [tensor.shape for tensor in tile.outs]
    sane(op, site, tile)
    return results


def sane(op: Op, site: Site, tile: Site) -> None:
    """The same kernel as often with the same fields, and none of them negative or 0."""
    whole, part = op.lower(site), op.lower(tile)
    assert (whole.family, whole.mode, whole.repeat) == (part.family, part.mode, part.repeat)
    assert whole.sizes.keys() == part.sizes.keys()
    for name, size in part.sizes.items():
        assert type(size) is type(whole.sizes[name])
        if name in ("batch", "count", "planes", "in_h", "out_h", "pad_top", "m", "n", "k"):
            assert isinstance(size, int)
            assert size >= (0 if name == "pad_top" else 1)


def same(actual: Array, expected: Array, label: object) -> None:
    """But for the order of summation in float64."""
    scale = np.abs(expected).max(initial=0.0)
    assert np.abs(actual - expected).max(initial=0.0) <= 1e-12 * scale, label


def test_tiles_of_ordinary_layers_are_never_refused() -> None:
    """Along every axis, in single steps and in pairs of them."""
    maps: dict[str, Any] = {"stride": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    pool: dict[str, Any] = {**maps, "padding": (0, 0, 0, 0), "kernel": (2, 2)}
    rows = (
        Case("conv2d", ((2, 3, 9, 8), (4, 3, 3, 3), (4,)), {**maps, "groups": 1}),
        Case("conv2d", ((2, 4, 7, 8), (4, 1, 3, 3)), {**maps, "stride": (1, 1), "groups": 4}),
        Case("max_pool2d", ((2, 3, 9, 8),), pool),
        Case("avg_pool2d", ((2, 3, 9, 8),), {**pool, "count_include_pad": True}),
        Case("avg_pool2d", ((2, 3, 6, 5),), {**pool, "kernel": (6, 5), "count_include_pad": True}),
        Case("resample2d", ((2, 3, 3, 4),), {"size": (6, 8), "method": "nearest"}),
    )
    for site, _ in (found for row in rows for found in sites(row)):
        op = OPS[site.node.op]
        for axis in op.axes(site):
            for step in (1, 2):
                tiles = list(tiles_of((axis,), {axis.name: step}))
                assert all(op.tile(site, ranges) for ranges in tiles), (op.name, axis)
        if op.name.startswith("max_pool2d"):
            assert {"rows", "columns"} <= {axis.name for axis in op.axes(site)}


def test_only_the_first_tile_of_a_reduction_adds_the_bias() -> None:
    site, _ = next(sites(Case("matmul", ((4, 6), (5, 6), (5,)), {"layout": "nt"})))
    op = OPS["matmul"]
    first, second = (op.tile(site, {"inner": part}) for part in ((0, 3), (3, 6)))
    assert first is not None
    assert second is not None
    assert [len(first.ins), len(second.ins)] == [3, 2]
    assert second.node.inputs == site.node.inputs[:2]


def test_a_halo_is_no_wider_than_it_has_to_be() -> None:
    maps: dict[str, Any] = {"stride": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    row = Case("conv2d", ((1, 1, 8, 8), (1, 1, 3, 3)), {**maps, "groups": 1})
    found = {site.node.op: site for site, _ in sites(row)}
    parts = regions(found["conv2d"], OPS["conv2d"], {"rows": (1, 3), "columns": (0, 1)})
    assert parts["x"] == ((0, 1), (0, 1), (1, 6), (0, 2))
    back = regions(found["conv2d_input_grad"], OPS["conv2d_input_grad"], {"rows": (1, 2)})
    assert (back["dx"][2], back["dy"][2]) == ((2, 4), (1, 3))


@pytest.mark.parametrize("mistake", ["padding", "bias", "mean"])
def test_a_wrong_tile_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    maps: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    row = Case("conv2d", ((1, 2, 5, 5), (3, 2, 3, 3), (3,)), {**maps, "groups": 1})
    tiling = {"rows": 2}
    if mistake == "padding":
        right = Window.forward_tile

        def turned(*given: Any) -> Any:
            top, left, bottom, beside = right(*given) or (0, 0, 0, 0)
            return bottom, left, top, beside

        monkeypatch.setattr(Window, "forward_tile", turned)
    elif mistake == "bias":
        tiling = {"in_channels": 1}
        monkeypatch.setattr(type(OPS["conv2d"]), "adds_once", ())
    else:
        row, tiling = Case("mse", ((3, 5), (3, 5))), {"dim1": 2}
        monkeypatch.setattr(type(OPS["mse"]), "tile_attrs", lambda _, site, parts: site.attrs)
    site, operands = next(found for found in sites(row) if found[0].node.op == row.op)
    with pytest.raises(AssertionError, match=row.op):
        check_tiling(site, operands, tiling)


def report() -> None:
    """Which axes of each op have tiles: + those that add up, ? those that are refused somewhere."""
    found: dict[str, dict[str, str]] = {name: {} for name in sorted(OPS)}
    for case in ROWS:
        for site in op_training_graph(case).sites():
            op = OPS[site.node.op]
            for axis in op.axes(site):
                tiles = tiles_of((axis,), {axis.name: 1})
                refused = "" if all(op.tile(site, ranges) for ranges in tiles) else "?"
                known = found[op.name].get(axis.name, "")
                marks = "".join(sorted({*known, *("+" if axis.reduction else ""), *refused}))
                found[op.name][axis.name] = marks
    for name, axes in found.items():
        print(f"{name:24}", " ".join(sorted(axis + marks for axis, marks in axes.items())) or "-")


if __name__ == "__main__":
    report()
