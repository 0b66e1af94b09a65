"""The third memory as a target, a plan and a user see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gradlet
from gradlet.cli.commands import app
from gradlet.engines import device, gvsoc, host, sim
from gradlet.errors import GradletError
from gradlet.sim import SimConfig, simulate
from gradlet.targets import target as targets
from gradlet.targets.target import Target
from tests.pulp.support import device_project, model_graph, zoo_graph

TIGHT: dict[str, Any] = {"L1": "32k", "L2": "150k"}


def test_it_is_there_if_asked_for() -> None:
    names = [memory.name for memory in targets.load("pulp-open").memories]
    assert names == ["L1", "L2"]
    assert dict(targets.load("pulp-open").machine)["l3_bytes"] == 0
    assert targets.load("pulp-open", sizes={"L3": 0}) == targets.load("pulp-open")
    target = targets.load("pulp-open", sizes={"L3": "8M"})
    assert [memory.name for memory in target.memories] == ["L1", "L2", "L3"]
    assert (target.memories[2].base, target.memories[2].size) == (0x80000000, 8 << 20)
    assert dict(target.machine)["l3_bytes"] == 8 << 20
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target


def test_the_program_stays_in_l2() -> None:
    plain, with_l3 = (targets.load("pulp-open", sizes=s) for s in ({}, {"L3": "8M"}))
    assert plain.home == with_l3.home == plain.memories[1]
    for memory in plain.memories:
        assert plain.room(memory) == with_l3.room(memory)
    assert with_l3.room(with_l3.memories[2]) == 8 << 20
    only = targets.load("host")
    assert only.home == only.memories[0]


@pytest.mark.parametrize("size", ["100", "128M"])
def test_sizes_that_it_cannot_have(size: str) -> None:
    with pytest.raises(GradletError, match=r"l3_bytes = \d+: it must be 0 to 67108864"):
        targets.load("pulp-open", sizes={"L3": size})


def test_other_memories_cannot_be_left_out() -> None:
    with pytest.raises(GradletError, match="l1_bytes = 0"):
        targets.load("pulp-open", sizes={"L1": 0})
    with pytest.raises(GradletError, match="'host' has no memory L3"):
        targets.load("host", sizes={"L3": "8M"})


def test_a_model_that_fits_only_there(tmp_path: Path) -> None:
    graph = zoo_graph("tutorial-cnn")
    with pytest.raises(GradletError, match="does not fit"):
        device_project(graph, tmp_path / "none", cores=4, **TIGHT)
    project = device_project(graph, tmp_path / "p", cores=4, **TIGHT, L3="1M")
    assert project.plan.memory()["L3"]["used"] > 10_000
    assert gradlet.load(project.folder).plan == project.plan
    run = sim.run(project, steps=2, sanitize=True)
    assert run.loss == host.run(project, steps=2).loss
    elf = device.build_golden(project, tmp_path / "golden.elf")
    result = simulate(elf, SimConfig.of(project.plan.target.machine))
    assert (result.exit_code, "PASS" in result.stdout) == (0, True)
    assert "--set l3_bytes=1048576" in (project.folder / "README.md").read_text()
    with pytest.raises(GradletError, match="GVSoC's pulp-open has 0 bytes of L3"):
        gvsoc.run(project, gvsoc=tmp_path)


def test_nothing_changes_where_it_is_not_needed(tmp_path: Path) -> None:
    graph = model_graph("lenet")
    plain = device_project(graph, tmp_path / "a", cores=2)
    larger = device_project(graph, tmp_path / "b", cores=2, L3="8M")
    assert plain.plan.buffers == larger.plan.buffers
    assert sim.run(plain).cycles == sim.run(larger).cycles
    assert "L3" not in (plain.folder / "pulp" / "link.ld").read_text().replace(".sizes.L3", "")


def test_command_line(tmp_path: Path) -> None:
    model, out = "zoo:tutorial-cnn", str(tmp_path / "p")
    given = ["--l1", "32k", "--l2", "150k", "--l3", "2M"]
    built = CliRunner().invoke(app, ["build", model, "-o", out, *given, "--json"])
    assert built.exit_code == 0, built.output
    assert json.loads(built.stdout)["memory"]["L3"]["size"] == 2 << 20
    shown = CliRunner().invoke(app, ["memory", model, *given])
    assert shown.exit_code == 0, shown.output
    assert "L3" in shown.stdout


def test_a_project_of_another_version() -> None:
    values = targets.load("pulp-open").machine
    with pytest.raises(GradletError, match="build the project again"):
        SimConfig.of([pair for pair in values if pair[0] != "l3_bytes"])
