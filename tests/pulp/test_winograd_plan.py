"""Convolutions by Winograd's algorithm in training: in tiles, with what comes behind them, verified
by a bound of their own; and left out of plans that ask for plain sums."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.engines import host, sim
from gradlet.errors import InternalError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.kernels.traits import is_exact, kept
from gradlet.oracle.scatter import QUICK
from gradlet.oracle.tolerance import expect
from gradlet.planner.planner import Options, Plan, ScheduleOverride, check_plan, plan
from gradlet.planner.tile.table import kept_along
from gradlet.planner.tiling import Tiling
from gradlet.targets.target import load as load_target
from gradlet.verifier.shipped import same_bits
from tests.pulp.support import device_project


class Block(nn.Module):
    """Two convolutions and a way around them, as in a ResNet; sizes that are no multiples."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, 12, 3, padding=1, bias=bias)
        self.one = nn.Conv2d(12, 12, 3, padding=1, bias=bias)
        self.other = nn.Conv2d(12, 12, 3, padding=1, bias=bias)
        self.last = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.start(x))
        y = torch.relu(self.other(torch.relu(self.one(x))) + x)
        return self.last(y.mean(dim=(2, 3)))


@cache
def graph(bias: bool = True) -> Graph:
    torch.manual_seed(3)
    captured = gradlet.capture(Block(bias), (torch.randn(1, 3, 19, 18),), name="block")
    return training_graph(captured, Recipe(loss="cross_entropy", lr=0.05))


def inexact(found: Plan) -> set[str]:
    return {k.variant for call in found.calls for k in call.kernels if not is_exact(k)}


def planned(l1: str, **options: object) -> Plan:
    target = load_target("pulp-open", sizes={"L1": l1})
    return plan(graph(), target, options=Options(**options))  # type: ignore[arg-type]


SPLITS = {
    "rows": ((("rows", 8),), 2),
    "channels inside": ((("rows", 7), ("out_channels", 4)), 3),
    "rows inside": ((("out_channels", 6), ("rows", 8)), 2),
    "channels that differ": ((("rows", 7), ("out_channels", 5)), 0),
    "sums": ((("columns", 8), ("in_channels", 6)), 0),
}
"""How a call is cut, and which step those tiles begin with that find something kept."""


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("variant", ["winograd_2", "winograd_4"])
def test_any_cut(
    variant: str, split: tuple[tuple[tuple[str, int], ...], int], tmp_path: Path
) -> None:
    """The same bits on the device as on the host, every access checked."""
    axes, step = split
    turned = {"in_channels": "out_channels", "out_channels": "in_channels"}
    back = tuple((turned.get(name, name), size) for name, size in axes)
    own = in_tiles({"forward": axes, "input_grad": back}, variant, tmp_path)
    assert step in {kept_along(tiling)[1] for tiling in own}


@pytest.mark.parametrize(
    "split",
    [
        (("rows", 8),),
        (("out_channels", 5), ("in_channels", 4)),
        (("in_channels", 6), ("rows", 7), ("columns", 12)),
    ],
    ids=["rows", "channels", "all"],
)
@pytest.mark.parametrize("variant", ["winograd_2", "winograd_4"])
def test_any_cut_of_weights(
    variant: str, split: tuple[tuple[str, int], ...], tmp_path: Path
) -> None:
    """Gradients of weights and, beside them, of biases."""
    in_tiles({"weight_grad": split}, variant, tmp_path)


@pytest.mark.parametrize(
    ("split", "step"),
    [
        ((("in_channels", 6), ("out_channels", 5)), 2),
        ((("out_channels", 5), ("in_channels", 6)), 3),
        ((("out_channels", 6), ("in_channels", 5)), 0),
    ],
    ids=["map", "gradient", "neither"],
)
def test_what_gradients_of_weights_keep(
    split: tuple[tuple[str, int], ...], step: int, tmp_path: Path
) -> None:
    """Without a bias, nothing is beside them."""
    own = in_tiles({"weight_grad": split}, "winograd_4", tmp_path, graph(bias=False))
    assert step in {kept_along(tiling)[1] for tiling in own}


def in_tiles(
    splits: dict[str, tuple[tuple[str, int], ...]],
    variant: str,
    folder: Path,
    trained: Graph | None = None,
) -> list[Tiling]:
    """Runs a plan with tiles of these sizes, by the mode of the kernel."""
    modes = {c.name: c.kernel.mode for c in planned("64k").calls if c.kernel.family == "conv2d"}
    overrides = {
        name: ScheduleOverride(splits[mode], True, variant)
        for name, mode in modes.items()
        if mode in splits
    }
    options = Options(overrides=overrides)
    project = device_project(trained or graph(), folder / "p", options=options, L1="64k")
    own = [
        call.tiling
        for call in project.plan.calls
        if call.tiling
        and call.kernel.variant == variant
        and splits.get(call.kernel.mode) == tuple((a.name, a.tile) for a in call.tiling.axes)
    ]
    assert own, "no call is cut so"
    device = sim.run(project, watch=True, states=True, sanitize=True)
    assert same_bits(device, host.run(project, watch=True, states=True))
    return own


@pytest.mark.parametrize("l1", ["64k", "256k"])
def test_it_is_verified_by_its_own_bound(l1: str, tmp_path: Path) -> None:
    project = device_project(graph(), tmp_path / "p", L1=l1)
    assert inexact(project.plan)
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())


def test_the_bound_is_wider_where_it_is_used_and_nowhere_else() -> None:
    found, tight = planned("64k"), planned("64k", exact=True)
    assert inexact(found)
    assert not inexact(tight)
    assert not tight.judged.grown
    first = next(c for c in found.calls if not is_exact(c.kernel))
    made = {node.name: node.outputs[0] for node in graph().nodes}[first.nodes[0]]
    assert made in found.judged.grown
    wide, narrow = (
        expect(judged, 1, rule=QUICK, wanted=[{made}])[0].tolerances[made]
        for judged in (found.judged, tight.judged)
    )
    assert np.median(wide / narrow) > 2


def test_kernels_that_read_later_are_not_released() -> None:
    """A plan is refused whose regions come in while they are still read."""
    found = planned("48k", exact=True)
    index, call = next(
        (i, c)
        for i, c in enumerate(found.calls)
        if c.tiling and any(w and w.load and w.axes for w in c.tiling.views)
    )
    assert call.tiling
    views = [replace(w, released=True) if w and w.load and w.axes else w for w in call.tiling.views]
    wrong = replace(call, tiling=replace(call.tiling, views=tuple(views)))
    calls = (*found.calls[:index], wrong, *found.calls[index + 1 :])
    with pytest.raises(InternalError, match="in more than one step"):
        check_plan(replace(found, calls=calls))


def test_what_is_kept_is_known_by_name() -> None:
    call = next(c for c in planned("64k").calls if not is_exact(c.kernel))
    assert list(kept(call.kernel).values()) == [2, 3]
