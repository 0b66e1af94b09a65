"""Loops that were unrolled: what every round has alike is there once, and long steps are cut."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import gradlet
from gradlet.api import training_graph
from gradlet.codegen.view import PIECE
from gradlet.engines import host, sim
from gradlet.ir.recipe import Recipe
from gradlet.planner.model import Plan
from gradlet.planner.planner import plan
from gradlet.targets.target import load


class Rounds(nn.Module):
    """The same few operations again and again."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.slope, self.shift = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.rounds):
            x = torch.tanh(x * self.slope + self.shift) / (1.5 + x * x)
        out: Tensor = self.head(x)
        return out


def planned(rounds: int, target: str = "host") -> Plan:
    torch.manual_seed(0)
    captured = gradlet.capture(Rounds(rounds), (torch.randn(1, 6),))
    return plan(training_graph(captured, Recipe()), load(target))


def test_rounds_share_their_sizes(tmp_path: Path) -> None:
    few, many = planned(3), planned(30)
    assert len(many.calls) > 5 * len(few.calls)
    assert len(many.distinct_sizes) <= len(few.distinct_sizes) + 2
    project = gradlet.emit(many, tmp_path / "p")
    lines = re.findall(r"^static const (\w+) sizes_\d+ .*?= (.*);$", _network(project.folder), re.M)
    assert len(lines) == len(many.distinct_sizes) == len(set(lines))


def test_zeros_of_either_sign_are_not_the_same() -> None:
    launch = planned(1).calls[0].whole[0]
    plus, minus = (replace(launch, sizes=({"count": 6, "a": zero},)) for zero in (0.0, -0.0))
    assert plus.sizes == minus.sizes
    assert plus.sizes_key != minus.sizes_key


def test_a_long_step_is_cut_into_functions(tmp_path: Path) -> None:
    unrolled = planned(60)
    text = _network(gradlet.emit(unrolled, tmp_path / "p").folder)
    bodies = dict(re.findall(r"^static [^\n]*?(\w+)\(void\)\n\{\n(.*?)^\}", text, re.M | re.S))
    calls = {name: re.findall(r"^    /\* (.*): ", body, re.M) for name, body in bodies.items()}
    assert max(map(len, calls.values())) == PIECE
    assert calls["learn"] == [], "it only calls its pieces"
    assert "learn_1();\n    learn_2();" in bodies["learn"]
    order = [node for name in calls for node in calls[name]]
    assert order == [" and ".join(call.nodes) for call in unrolled.calls]
    assert gradlet.verify(tmp_path / "p").passed


def test_on_a_cluster_it_computes_the_same(tmp_path: Path) -> None:
    unrolled = planned(40, "pulp-open")
    assert len(unrolled.calls) > PIECE
    project = gradlet.emit(unrolled, tmp_path / "p")
    assert sim.run(project, sanitize=True).loss == host.run(project).loss


def _network(folder: Path) -> str:
    return (folder / "net.c").read_text()
