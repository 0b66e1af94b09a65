"""The verb tune: a project becomes quicker, and is told by how much, node by node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradlet.codegen.install import refuse_foreign
from gradlet.codegen.project import Project, emit, load
from gradlet.engines import sim
from gradlet.engines.costs import run_json
from gradlet.engines.device import build_steps
from gradlet.engines.room import fitted
from gradlet.errors import DoesNotFit
from gradlet.planner.planner import Plan
from gradlet.sim.build import library
from gradlet.support.cache import scratch_folder
from gradlet.support.values import kept, key_of, recalled
from gradlet.tuner import remembered
from gradlet.tuner import tune as tuner
from gradlet.tuner.pool import Pool
from gradlet.tuner.remembered import Answer
from gradlet.tuner.tune import ScheduleOverride, Settings, Tuned, plan_with

Progress = Callable[[int, int, str], None]


def quiet(done: int, total: int, text: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True)
class Tuning:
    """A project as it is now, and the report: cycles of a whole training step before and after, and
    what was found node by node."""

    project: Project
    report: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"project": str(self.project.folder), **self.report}


def tune_project(
    project: Project | Path | str,
    settings: Settings | None = None,
    *,
    jobs: int = 0,
    dask: str = "",
    progress: Progress = quiet,
    force: bool = False,
    exact: bool = False,
) -> Tuning:
    """Tune a project and write it anew, unless nothing quicker was found. force: also over files
    that were edited. exact: from now on without kernels whose errors are larger than those of plain
    sums."""
    begin = time.perf_counter()
    project = project if isinstance(project, Project) else load(Path(project))
    refuse_foreign(project.folder, force=force)
    settings, plan = settings or Settings(), project.plan
    if exact and plan.target != plan.target.exact():
        plan = _fitted(replace(plan, target=plan.target.exact()), {}) or plan
    given = plan.dumps()
    answer = remembered.recall(given, settings)
    if answer is None:
        answer = _search(plan, settings, Pool(jobs, dask), progress)
        remembered.keep(given, settings, answer)
    if answer.plan != project.plan.dumps():
        project = emit(Plan.loads(answer.plan), project.folder, project.recording, force=force)
    return Tuning(project, {**answer.report, "seconds": time.perf_counter() - begin})


def _search(given: Plan, settings: Settings, pool: Pool, progress: Progress) -> Answer:
    """The quickest plan that is found call by call, if it pays in the whole step."""
    try:
        tuned = tuner.tune(given, settings, pool=pool, progress=progress)
    finally:
        pool.close()
    with scratch_folder() as folder:
        progress(0, 0, "a whole training step")
        before = whole_step(given, folder)
        best, after = given, before
        for candidate, found in _wholes(given, tuned, before, folder):
            if found["cycles"][-1] < after["cycles"][-1]:
                best, after = candidate, found
    return Answer(_report(tuned, before, after), best.dumps())


def _report(tuned: Tuned, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    old, new = before["cycles"][-1], after["cycles"][-1]
    return {
        "before_cycles": old,
        "after_cycles": new,
        "gain": old / new,
        "mac_per_cycle": after["mac_per_cycle"],
        "transfers": after["transfers"],
        "evaluations": tuned.evaluations,
        "cache_hits": tuned.cache_hits,
        "search_seconds": tuned.seconds,
        "model_error": tuned.model_error,
        "nodes": list(_nodes(tuned, before, after)),
    }


def _nodes(
    tuned: Tuned, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Cycles of every node in the whole step."""
    candidates = {node.name: node.candidates for node in tuned.nodes}
    for old, new in zip(before["nodes"], after["nodes"], strict=True):
        yield {
            "name": new["name"],
            "kernel": new["kernel"],
            "tile": new["tile"],
            "before": old["cycles"],
            "after": new["cycles"],
            "candidates": candidates.get(new["name"], 0),
        }


def _wholes(
    given: Plan, tuned: Tuned, before: Mapping[str, Any], folder: Path
) -> Iterator[tuple[Plan, Mapping[str, Any]]]:
    """With all overrides; and without those of nodes that are no quicker in the whole."""
    whole = _fitted(given, tuned.overrides)
    if tuned.plan == given or whole is None:
        return
    after = whole_step(whole, folder)
    yield whole, after
    old = {node["name"]: node["cycles"] for node in before["nodes"]}
    gained = {n["name"] for n in after["nodes"] if n["cycles"] < old[n["name"]]}
    overrides = {name: override for name, override in tuned.overrides.items() if name in gained}
    some = _fitted(given, overrides)
    if some is not None and some not in (given, whole):
        yield some, whole_step(some, folder)


def _fitted(given: Plan, overrides: Mapping[str, ScheduleOverride]) -> Plan | None:
    """With these overrides, and room for the program that they make; None if there is none."""
    try:
        return fitted(
            lambda device: plan_with(replace(given, target=device), overrides), given.target
        )
    except DoesNotFit:
        return None


def whole_step(plan: Plan, folder: Path) -> Mapping[str, Any]:
    """A whole step on the simulator, or what is known from before of the same program on the same
    data and the same simulator."""
    project = emit(plan, folder / "project")
    program = build_steps(project, folder / "steps.elf").read_bytes()
    key = key_of("steps", program, plan.dumps(), library().name)
    found: Mapping[str, Any] | None = recalled(key)
    if found is None:
        found = run_json(project, sim.run(project, steps=2, program=program))
        kept(key, found)
    return found
