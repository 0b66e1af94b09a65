"""The tuner: what it measures is what a network costs, what it knows it does not measure again."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import distributed
import pytest

import gradlet
from gradlet.engines import sim
from gradlet.errors import GradletError
from gradlet.planner.planner import Options, Plan, plan
from gradlet.support.values import TABLE
from gradlet.targets.target import load as load_target
from gradlet.tuner import project as tuning
from gradlet.tuner import remembered, search
from gradlet.tuner import tune as tuner
from gradlet.tuner.cache import Cache
from gradlet.tuner.layer import STEPS, layer_plan, tune_layer
from gradlet.tuner.measure import NO_FIT
from gradlet.tuner.pool import Pool
from gradlet.tuner.program import build
from gradlet.tuner.project import tune_project
from gradlet.tuner.tune import ScheduleOverride, Settings, Tuned, tune
from tests.pulp.support import device_project, model_graph
from tests.test_cli import gradlet as command

START = 1500
"""Cycles that a call by itself needs for its table and its first boxes, which a network hides."""
QUICK = Settings(keep=3, rounds=1, around=2)
SCRIPT = """
from pathlib import Path
import gradlet
from gradlet.tuner.tune import Settings, tune
from gradlet.tuner.cache import Cache
from gradlet.tuner.pool import Pool
print("once")
pool = Pool(2)
calls = [call.name for call in gradlet.load("p").plan.calls if call.tiling][:3]
found = tune(
    gradlet.load("p").plan,
    Settings(keep=3),
    pool=pool,
    cache=Cache(Path("cache")),
    only=lambda call: call.name in calls,
)
pool.close()
print("measured" if found.evaluations > 4 else "nothing")
"""


@pytest.fixture(scope="module")
def small() -> Plan:
    return plan(model_graph("lenet"), load_target("pulp-open", sizes={"L1": "16k"}))


def tuned(given: Plan, cache: Path, *, pool: Pool | None = None, calls: int = 3) -> Tuned:
    """The first calls only: the others are like them."""
    some = [call.name for call in given.calls if call.tiling][:calls]
    return tune(
        given,
        QUICK,
        pool=pool or Pool(1),
        cache=Cache(cache),
        only=lambda call: not some or call.name in some,
    )


def test_a_candidate_costs_what_the_node_costs(small: Plan, tmp_path: Path) -> None:
    """The schedule of the planner, measured by itself, against the same node in the network; there
    the first boxes come in earlier, and what stays near needs no copy."""
    found = tuned(small, tmp_path / "cache", calls=8)
    run = sim.run(gradlet.emit(small, tmp_path / "p"), steps=2)
    tilings = {call.name: call.tiling for call in small.calls}
    costs = dict(zip((call.name for call in small.calls), run.nodes, strict=True))
    compared = 0
    for node in found.nodes:
        tiling = tilings[node.name]
        if node.before is None or tiling is None or costs[node.name].cycles < 5000:
            continue
        compared += 1
        here = costs[node.name].cycles
        assert 0.85 * here <= node.before <= 1.15 * here + START, node.name
    assert compared >= 2


def test_a_candidate_has_its_operands_in_l3(tmp_path: Path) -> None:
    """Where the plan has them there, beside an L2 that they do not fit into. An update with
    momentum runs in tiles; one without fetches its weights itself."""
    sizes = {"L1": "32k", "L2": "150k", "L3": "1M"}
    captured = gradlet.capture("zoo:tutorial-cnn")
    graph = gradlet.training_graph(captured, gradlet.Recipe(momentum=0.9))
    given = plan(graph, load_target("pulp-open", sizes=sizes))
    far = {name for b in given.buffers if b.level == "L3" for name in b.tensors}
    some = [c.name for c in given.calls if c.tiling and far & {*c.inputs, *c.outputs}]
    found = tune(
        given,
        Settings(keep=1, rounds=0),
        pool=Pool(1),
        cache=Cache(tmp_path / "cache"),
        only=lambda call: call.name in some,
    )
    run = sim.run(gradlet.emit(given, tmp_path / "p"), steps=2)
    costs = dict(zip((call.name for call in given.calls), run.nodes, strict=True))
    compared = [(node.before or 0, costs[node.name].cycles) for node in found.nodes]
    assert compared
    for before, here in compared:
        assert 0.85 * here <= before <= 1.15 * here + START


def test_the_result_is_quicker_and_right(small: Plan, tmp_path: Path) -> None:
    project = gradlet.emit(small, tmp_path / "p")
    result = tune_project(project, QUICK, jobs=1)
    value = result.to_json()
    assert value["after_cycles"] <= value["before_cycles"]
    assert value["evaluations"] + value["cache_hits"] > 0
    gains = sum(node["before"] - node["after"] for node in value["nodes"])
    assert abs(value["before_cycles"] - value["after_cycles"] - gains) < 200
    again = gradlet.load(tmp_path / "p")
    assert again.plan == result.project.plan
    assert sim.run(again, steps=2).cycles[-1] == value["after_cycles"]
    verdict = gradlet.verify(again, steps=2)
    assert verdict.passed
    assert all(verdict.bit_identical.values())


def test_what_is_known_is_not_measured_again(small: Plan, tmp_path: Path) -> None:
    first = tuned(small, tmp_path / "cache")
    second = tuned(small, tmp_path / "cache")
    assert first.evaluations > 0
    assert second.evaluations == 0
    assert second.cache_hits > 0
    assert second.plan == first.plan


def test_interrupted_work_goes_on(small: Plan, tmp_path: Path) -> None:
    def stop(done: int, total: int, text: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    cache = Cache(tmp_path / "cache")
    some = [call.name for call in small.calls if call.tiling][:3]
    with pytest.raises(KeyboardInterrupt):
        tune(
            small,
            QUICK,
            pool=Pool(1),
            cache=cache,
            progress=stop,
            only=lambda call: call.name in some,
        )
    cache.close()
    whole = tuned(small, tmp_path / "other")
    rest = tuned(small, tmp_path / "cache")
    assert rest.evaluations == whole.evaluations - 3
    assert rest.plan == whole.plan


@pytest.mark.thorough
def test_exhaustive_finds_nothing_worse(tmp_path: Path) -> None:
    target = load_target("pulp-open", sizes={"L1": "16k"})
    layer, shape = {"out": 8, "kernel": 3, "padding": 1}, [6, 16, 16]
    all_ = Settings(exhaustive=True, tiles=8)
    quick = tune_layer("conv2d", layer, shape, "forward", target, QUICK, jobs=1)
    every = tune_layer("conv2d", layer, shape, "forward", target, all_, jobs=1)
    assert every.tuned.nodes[0].candidates > 4 * quick.tuned.nodes[0].candidates
    assert every.ranked[0][1] <= quick.ranked[0][1]
    assert every.ranked[0][1] >= 0.9 * quick.ranked[0][1]


@pytest.mark.thorough
def test_giving_up_changes_no_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all candidates those that are stopped are slower than the limit, and nothing else."""
    layer = {"out": 4, "kernel": 3, "padding": 1}
    target = load_target("pulp-open", sizes={"L1": "12k"})
    given = layer_plan("conv2d", layer, [4, 12, 12], target)

    def every(place: str) -> Mapping[ScheduleOverride, int]:
        found = tune(
            given,
            Settings(exhaustive=True, tiles=8),
            pool=Pool(1),
            cache=Cache(tmp_path / place),
            options=Options(buffers="double"),
            only=STEPS["weight_grad"],
        )
        return found.measured[0]

    some = every("some")
    monkeypatch.setattr(search, "SLOW", 1000)
    to_the_end = every("all")
    assert len(to_the_end) > 4 * len(some)
    assert some.items() <= to_the_end.items()
    stopped = [cycles for override, cycles in to_the_end.items() if override not in some]
    assert min(stopped) > 1.2 * min(some.values())


def test_a_limit_is_part_of_what_is_known(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.add({"whole": 700, "stopped": -500, "large": NO_FIT})
    limits = {"whole": 400, "stopped": 400, "large": 400, "new": 400}
    assert cache.known(limits) == {"whole": 700, "stopped": -500, "large": NO_FIT}
    assert cache.known({"stopped": 600}) == {}


def test_a_script_may_tune_at_its_top_level(small: Plan, tmp_path: Path) -> None:
    """Whatever measures does not import the program that started it."""
    gradlet.emit(small, tmp_path / "p")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "once\nmeasured\n"
    assert done.stderr == ""


def test_several_at_a_time_find_the_same(small: Plan, tmp_path: Path) -> None:
    pool = Pool(2)
    try:
        assert tuned(small, tmp_path / "two", pool=pool).plan == tuned(small, tmp_path / "one").plan
    finally:
        pool.close()


def test_a_local_dask_cluster(small: Plan, tmp_path: Path) -> None:
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        pool = Pool(dask=cluster.scheduler_address)
        try:
            found = tuned(small, tmp_path / "dask", pool=pool)
        finally:
            pool.close()
    assert found.plan == tuned(small, tmp_path / "here").plan


@contextmanager
def scheduler(folder: Path) -> Iterator[str]:
    """A scheduler and a worker, each in a process of its own."""
    described = folder / "scheduler.json"
    base = [sys.executable, "-m", "dask", "scheduler", "--port", "0", "--no-dashboard"]
    started = [subprocess.Popen([*base, "--scheduler-file", str(described)], cwd=folder)]
    try:
        worker = [sys.executable, "-m", "dask", "worker", "--nthreads", "1", "--no-dashboard"]
        end = time.monotonic() + 60
        while not described.exists() and time.monotonic() < end:
            time.sleep(0.2)
        started.append(subprocess.Popen([*worker, "--scheduler-file", str(described)], cwd=folder))
        address = json.loads(described.read_text())["address"]
        with distributed.Client(address, timeout=60) as client:
            client.wait_for_workers(1, timeout=60)
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=30)


@pytest.mark.thorough
def test_a_scheduler_in_another_process(small: Plan, tmp_path: Path) -> None:
    gradlet.emit(small, tmp_path / "p")
    with scheduler(tmp_path) as address:
        done = command("tune", "p", "--keep", "2", "--dask", address, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"after_cycles"' in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune"], "name a project or a layer"),
        (["tune", "p", "--layer", "conv2d"], "name a project or a layer"),
        (["tune", "--layer", "pool"], "there is conv2d"),
        (["tune", "--layer", "conv2d"], "needs --in"),
        (["tune", "nowhere"], "is not a Gradlet project"),
        (["tune", "zoo:ds-cnn"], "gradlet build zoo:ds-cnn -o DIR"),
        (["tune", "p", "--keep", "0"], "at least one candidate"),
        pytest.param(
            *(["tune", "p", "--dask", "tcp://127.0.0.1:1"], "no Dask scheduler"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_mistakes_get_one_message(
    arguments: list[str], message: str, small: Plan, tmp_path: Path
) -> None:
    gradlet.emit(small, tmp_path / "p")
    done = command(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_target_without_a_simulator() -> None:
    given = plan(model_graph("lenet"), load_target("host"))
    with pytest.raises(GradletError, match="no simulator for 'host'"):
        tune(given)


def test_a_layer_on_the_command_line(tmp_path: Path) -> None:
    shape = ("--in", "4x8x8", "--out-channels", "4", "--kernel", "3", "--pad", "1")
    done = command(
        "tune", "--layer", "conv2d", *shape, "--step", "weight_grad", "--keep", "3", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "MAC/cycle" in done.stdout


def test_a_project_all_in_l1(tmp_path: Path) -> None:
    """Only kernels are to be chosen."""
    project = device_project(model_graph("lenet"), tmp_path / "p")
    found = tuned(project.plan, tmp_path / "cache")
    assert not found.plan.tilings
    assert all(node.override is None or node.override.split == () for node in found.nodes)


@pytest.mark.thorough
def test_a_second_tune_is_an_answer_from_memory(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuned project stays as it is, and one that is built anew becomes the same, without a
    search; other settings, or another state of this package, are searched for."""
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path / "cache"))
    first = tune_project(gradlet.emit(small, tmp_path / "p"), QUICK, jobs=1)
    monkeypatch.setattr(tuning, "_search", lambda *_: pytest.fail("searched again"))
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "p").rglob("*")}
    again = tune_project(tmp_path / "p", QUICK).to_json()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "p").rglob("*")} == written
    assert again["before_cycles"] == again["after_cycles"] == first.report["after_cycles"]
    assert all(node["before"] == node["after"] for node in again["nodes"])
    assert (again["evaluations"], again["cache_hits"]) == (0, first.report["evaluations"])
    anew = tune_project(gradlet.emit(small, tmp_path / "q"), QUICK)
    assert anew.project.plan == first.project.plan
    assert anew.report["nodes"] == first.report["nodes"]
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        tune_project(tmp_path / "p", replace(QUICK, keep=4))
    monkeypatch.setattr(remembered, "_package", lambda: "another")
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        tune_project(tmp_path / "p", QUICK)


def test_a_damaged_answer_is_searched_for_again(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path / "cache"))
    report = {"evaluations": 1, "cache_hits": 0, "after_cycles": 1, "nodes": []}
    remembered.keep(small.dumps(), QUICK, remembered.Answer(report, "plan"))
    assert remembered.recall(small.dumps(), QUICK) is not None
    with sqlite3.connect(tmp_path / "cache" / "values.sqlite") as base:
        base.execute(f"UPDATE {TABLE} SET value = '{{\"report\": 3}}'")
    base.close()
    assert remembered.recall(small.dumps(), QUICK) is None


def test_one_program_has_all_that_is_called(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Mock(wraps=build)
    monkeypatch.setattr(tuner, "build", built)
    tuned(small, tmp_path / "cache")
    assert built.call_count == 1


@pytest.mark.thorough
def test_a_whole_step_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the simulator is another."""
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path / "cache"))
    given = plan(model_graph("lenet"), load_target("pulp-open"))
    measured = tuning.whole_step(given, tmp_path / "p")
    monkeypatch.setattr(sim, "run", lambda *_, **__: pytest.fail("measured again"))
    assert tuning.whole_step(given, tmp_path / "p") == measured
    monkeypatch.setattr(tuning, "library", lambda: Path("another.so"))
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        tuning.whole_step(given, tmp_path / "p")
