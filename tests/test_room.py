"""Room for the program: linked where there is a doubt, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradlet
from gradlet.engines import room
from gradlet.engines.device import build_golden, link_program
from gradlet.ir.graph import Graph
from gradlet.sim import SimConfig, simulate
from gradlet.targets.target import Target
from gradlet.targets.target import load as load_target


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Programs that were linked, with a cache that knows no kernel."""
    found: list[str] = []

    def linked(*given: Any) -> Path:
        found.append(given[2].name)
        return own(*given)

    own = link_program
    monkeypatch.setattr(room, "link_program", linked)
    monkeypatch.setenv("GRADLET_CACHE", str(tmp_path / "cache"))
    return found


@pytest.fixture(scope="module")
def graph() -> Graph:
    return gradlet.training_graph(gradlet.capture("zoo:tutorial-cnn"))


def device(**sizes: str | int) -> Target:
    """Memories of whole 256 bytes, as the simulator wants them."""
    given = {k: -(-v // 256) * 256 if isinstance(v, int) else v for k, v in sizes.items()}
    return load_target("pulp-open", sizes=given)


def test_nothing_is_linked_where_there_is_room(graph: Graph, links: list[str]) -> None:
    """From the second plan with these kernels on, and it is the same plan."""
    first = gradlet.plan(graph, device(L1="48k"))
    assert links == ["shipped.elf", "plain.elf"]
    assert gradlet.plan(graph, device(L1="48k")) == first
    assert len(links) == 2


def test_what_is_close_is_linked_and_fits(graph: Graph, links: list[str], tmp_path: Path) -> None:
    """Less is set aside for the program than it takes, and no more is there than both."""
    wide = gradlet.plan(graph, device(L1="48k"))
    taken = wide.taken(wide.target.home)
    needs = room.program_needs(wide)
    links.clear()
    tight = replace(device(L1="48k", L2=taken + needs.code + 4096), code=4096)
    found = gradlet.plan(graph, tight)
    assert links
    assert found.target.code >= 4096
    built = build_golden(gradlet.emit(found, tmp_path / "p"), tmp_path / "golden.elf", probes=True)
    assert simulate(built, SimConfig.of(found.target.machine)).exit_code == 0


def test_more_code_than_was_set_aside_is_planned_for(graph: Graph, links: list[str]) -> None:
    """The data move to make room for it: all of them and half of the program would fit."""
    wide = gradlet.plan(graph, device(L1="32k", L3="1M"))
    needs = room.program_needs(wide)
    data = wide.taken(wide.target.home)
    near, home, far = device(L1="32k", L3="1M").memories
    small = replace(home, size=data + needs.code // 2)
    short = replace(device(L1="32k", L3="1M"), code=4096, memories=(near, small, far))
    links.clear()
    found = gradlet.plan(graph, short)
    assert links
    assert found.target.code > 4096
    assert room.program_needs(found).fit(found)


def test_what_is_known_of_kernels_bounds_their_program(graph: Graph, links: list[str]) -> None:
    """The estimate is above what linking finds, and not far above."""
    found = gradlet.plan(graph, device(L1="48k"))
    needs, guess = room.program_needs(found), room.estimated(found)
    assert guess is not None
    least, most = guess
    assert needs.code <= most.code <= needs.code + 64 * 1024
    assert least.stack <= needs.stack <= most.stack
