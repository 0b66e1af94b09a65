"""The constants of the cost model: a target has them, and the planner goes by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradlet.errors import GradletError
from gradlet.planner.planner import Plan, plan
from gradlet.targets.cost import Cost
from gradlet.targets.target import FOLDER, Target, load
from tests.pulp.support import zoo_graph


def own_target(tmp_path: Path, cost: str) -> str:
    """A device like pulp-open but for its cost model."""
    text = (FOLDER / "pulp-open.toml").read_text()
    head, _, rest = text.partition("[cost]")
    path = tmp_path / "own.toml"
    path.write_text(head + cost + ("\n[" + rest.partition("\n[")[2] if "\n[" in rest else ""))
    return str(path)


def test_what_a_target_says_counts_and_the_rest_is_as_documented(tmp_path: Path) -> None:
    found = load(own_target(tmp_path, "[cost]\ntile = 7\n")).cost
    assert found == replace(Cost(), tile=7.0)
    assert load(own_target(tmp_path, "")).cost == Cost()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tiles = 3", r"\[cost\] has no constant 'tiles'; there are call, tile, "),
        ("tile = -1", r"\[cost\] tile = -1: cycles are a number from 0"),
        ('tile = "3"', r"\[cost\] tile = 3: cycles are a number from 0"),
        ("tile = true", r"\[cost\] tile = True: cycles are a number from 0"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(GradletError, match=told):
        load(own_target(tmp_path, f"[cost]\n{text}\n"))


def tiles(target: Target) -> int:
    found: Plan = plan(zoo_graph("tutorial-cnn"), target)
    assert Plan.loads(found.dumps()).target.cost == target.cost
    return sum(tiling.count for tiling in found.tilings)


def test_the_planner_goes_by_them() -> None:
    """Tiles that cost nothing are many; dear ones are few."""
    usual = load("pulp-open", sizes={"L1": "32k"})
    free, dear = (replace(usual, cost=replace(usual.cost, tile=t)) for t in (0.0, 1e5))
    assert tiles(free) > tiles(dear)
