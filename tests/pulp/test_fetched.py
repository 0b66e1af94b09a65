"""Kernels that fetch an operand themselves: trained in tiles as PyTorch does, every transfer
watched, and stopped where one of them leaves its map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.engines import sim
from gradlet.errors import GradletError
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.planner.planner import Options, Plan, check_plan, plan, tiling_requests
from gradlet.sim import SimError
from gradlet.targets.target import load as load_target
from gradlet.tuner.search import Search, Settings
from tests.pulp.support import break_kernel, device_project

FETCHED = Options(buffers="double", variants={"conv2d": "columns_dma"})


def graph(layout: str = "chw") -> Graph:
    """Parts of maps along each axis: rows, columns, channels, groups and images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 8, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.Conv2d(16, 16, 3, padding=2, dilation=2),
        nn.Conv2d(16, 16, (1, 3), padding=(0, 1), groups=2),
    )
    captured = gradlet.capture(model, (torch.randn(2, 4, 14, 14),), name="maps")
    return training_graph(captured, Recipe(loss="mse", lr=0.01, momentum=0.5), layout=layout)


def fetching(planned: Plan) -> dict[str, tuple[str, ...]]:
    """The axes that are split, by call."""
    return {
        call.name: tuple(axis.name for axis in call.tiling.axes)
        for call in planned.calls
        if call.tiling and any(w and w.fetched for w in call.tiling.views)
    }


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("l1", ["24k", "40k"])
def test_they_train_as_pytorch_does(layout: str, l1: str, tmp_path: Path) -> None:
    project = device_project(graph(layout), tmp_path / "p", options=FETCHED, L1=l1)
    found = fetching(project.plan)
    assert len(found) > 6
    assert len({axis for axes in found.values() for axis in axes}) > 2
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert all(verdict.bit_identical.values())


def test_a_transfer_that_leaves_its_map(tmp_path: Path) -> None:
    project = device_project(graph(), tmp_path / "p", options=FETCHED, L1="40k")
    line = "fetch(to, at, width, given, far->channel);"
    break_kernel(project, "*forward__columns_dma.c", line, line.replace("given", "given + 1"))
    with pytest.raises(SimError) as caught:
        sim.run(project, sanitize=True)
    assert "(kernel gl_f32_conv2d_forward__columns_dma)" in str(caught.value)
    assert "(fetch+" in str(caught.value)


def test_the_checker_wants_it_in_backing_memory() -> None:
    good = plan(graph(), load_target("pulp-open", sizes={"L1": "40k"}), options=FETCHED)
    fetched = next(w for c in good.calls if c.tiling for w in c.tiling.views if w and w.fetched)
    moved = tuple(
        replace(b, level="L1", region="l1_arena") if fetched.tensor in b.tensors else b
        for b in good.buffers
    )
    with pytest.raises(GradletError, match="does not lie in backing memory"):
        check_plan(replace(good, buffers=moved))


def test_it_is_never_taken_where_all_data_are_near() -> None:
    target = load_target("pulp-open", sizes={"L1": "1M"})
    roomy = plan(graph(), target, options=Options(variants={"conv2d": "columns_dma"}))
    assert not any(call.kernel.variant == "columns_dma" for call in roomy.calls)


def test_the_tuner_has_it_among_its_candidates() -> None:
    target, given = load_target("pulp-open", sizes={"L1": "24k"}), graph()
    found = tiling_requests(given, target, Options(buffers="double"))
    assert found
    tiler, known = found
    search = Search(known["conv2d_2"].call, tiler, known["conv2d_2"], Settings(keep=200), given)
    search.wanted()
    overrides = [override for override in search.wanted() if override.variant == "columns_dma"]
    assert overrides
    for override in overrides:
        (fetched,) = [w for w in search.jobs[override].tiling.views if w and w.fetched]
        assert fetched.tensor == "conv2d_1"
        assert not fetched.buffer
