"""Random networks in little memory, some in the least that tiles can do with: bits of the cluster
are those of the host, values those of PyTorch, and no access leaves its region."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradlet
from gradlet.engines import host
from gradlet.planner.planner import Plan, check_plan
from tests.launches import at, partial_sums
from tests.tight import tight

PLANNED = range(0, 60, 2)
RUN = (*range(2, 26, 3), 13)  # 13: a gradient adds up over tiles in L1, and an update ends it


@pytest.fixture(scope="module")
def plans() -> dict[int, Plan]:
    """Those that run have room for their stacks as well."""
    planned = {seed: tight(seed) for seed in PLANNED}
    return {**planned, **{seed: tight(seed, plan=gradlet.plan) for seed in RUN}}


@pytest.mark.thorough
def test_they_differ_in_all_respects(plans: dict[int, Plan]) -> None:
    """What is drawn below is worth the name."""
    found = plans.values()
    assert sum(bool(p.tilings) for p in found) > len(plans) / 2
    tilings = [t for p in found for t in p.tilings]
    assert {t.double_buffered for t in tilings} == {True, False}
    assert any(map(partial_sums, tilings))
    assert any(any(map(at("later"), t.launches)) and not partial_sums(t) for t in tilings)
    assert any(w.prefetched for t in tilings for w in t.views if w)
    assert {len(p.target.memories) for p in found} == {2, 3}
    assert {p.graph.layout for p in found} == {"chw", "hwc"}
    assert {p.target.cores for p in found} == {1, 2, 8}
    assert {p.graph.accumulate for p in found} == {1, 2}
    assert any(b.level == "L3" for p in found for b in p.buffers)


@pytest.mark.drawn(10)
@pytest.mark.parametrize("seed", sorted({*PLANNED, *RUN}))
def test_plans_are_sound_and_fit(seed: int) -> None:
    planned = tight(seed, plan=gradlet.plan) if seed in RUN else tight(seed)
    check_plan(planned)
    for memory in planned.target.memories:
        assert planned.taken(memory) <= planned.target.room(memory)
    assert Plan.loads(planned.dumps()) == planned


@pytest.mark.thorough
@pytest.mark.parametrize("seed", RUN)
def test_they_train_as_pytorch_does(seed: int, plans: dict[int, Plan], tmp_path: Path) -> None:
    project = gradlet.emit(plans[seed], tmp_path / "p")
    verdict = gradlet.verify(project, steps=2)  # on the cluster, watched
    assert verdict.passed, (seed, verdict.first_wrong)
    assert all(verdict.bit_identical.values()), seed
    host.run(project, steps=2, sanitize=True)
