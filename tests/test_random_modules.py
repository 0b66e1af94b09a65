"""Random PyTorch modules whose weights have every form, on the host and in little memory: a sample
of what `bench/random_networks.py` does by the hundred."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gradlet
from gradlet.api import Request
from gradlet.planner.planner import Options
from tests.module_base import MAPS, ROWS
from tests.module_inputs import USES
from tests.module_weights import FORMS
from tests.modules import draw
from tests.test_random_networks import assert_gradients

PLANNED = range(24)
HOME = {id(FORMS): "module_weights.FORMS", id(MAPS): "modules.MAPS", id(ROWS): "modules.ROWS"}
HOME[id(USES)] = "modules.USES"
RUN = (1, 3, 5, 13, 21, 25)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("seed", PLANNED)
def test_gradients_and_plans(seed: int) -> None:
    """In float64 every gradient is PyTorch's, and the plan passes the checker."""
    drawn = draw(seed)
    options = dict(drawn.options)
    request = Request(
        drawn.module,
        options.get("target", "pulp-open"),
        memories=options.get("memories", {}),
        layout=options.get("layout", "chw"),
        recipe=drawn.recipe,
        capture_options={"inputs": drawn.inputs, "batch": options["batch"]},
        planning=Options(buffers=options.get("buffers", "auto")),
    )
    assert_gradients(request.plan().graph, seed)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", RUN)
def test_in_c(seed: int, tmp_path: Path) -> None:
    drawn = draw(seed)
    project = gradlet.build(
        drawn.module, tmp_path / "p", inputs=drawn.inputs, recipe=drawn.recipe, **drawn.options
    )
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, f"{drawn.label}: {verdict.first_wrong}"
    assert all(verdict.bit_identical.values()), drawn.label


def test_a_seed_makes_one_network() -> None:
    one, other = draw(7), draw(7)
    assert (one.recipe, one.options) == (other.recipe, other.options)
    for mine, theirs in zip(one.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_every_form_and_layer_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the campaign would not try what it is meant to."""
    wanted = {make.__name__ for kinds in (FORMS, MAPS, ROWS, USES) for make in kinds}
    seen: set[str] = set()

    def noting(make: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: object) -> Any:
            seen.add(make.__name__)
            return make(*given)

        return noted

    for kinds in (FORMS, MAPS, ROWS, USES):
        monkeypatch.setattr(f"tests.{HOME[id(kinds)]}", [noting(make) for make in kinds])
    for seed in range(60):
        draw(seed)
    assert seen == wanted
