"""What is told of long work: how far it is, how long the rest takes, and not too often."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import gradlet
from gradlet.cli.progress import PATIENCE, Line
from gradlet.support.progress import counted, watched


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_tells_what_is_left() -> None:
    clock = Clock()
    line = Line("building", clock)
    assert line.told("compiling", 0, 8) == "building: compiling, 0 of 8"
    clock.now = 30.0
    assert line.told("compiling", 2, 8) == "building: compiling, 2 of 8, about 2 min left"
    assert line.told("compiling", 6, 8).endswith("about 10 s left")
    assert line.told("steps", 1, 2) == "building: steps, 1 of 2"  # another work, which began now


def test_a_log_gets_few_lines() -> None:
    clock = Clock()
    line = Line("building", clock)
    due = []
    for _ in range(100):
        clock.now += PATIENCE / 10
        due.append(line.is_due())
    assert sum(due) == 10


def test_nobody_watches_by_default() -> None:
    assert list(counted("abc", 3, "letters")) == ["a", "b", "c"]


def test_build_and_verify_tell_how_far_they_are(tmp_path: Path) -> None:
    heard: set[str] = set()

    def watcher(what: str, done: int, total: int) -> None:
        assert 0 <= done < total
        heard.add(what)

    memories = {"L1": "16k"}
    net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8))
    with watched(watcher):
        project = gradlet.build(
            net, tmp_path / "p", inputs=(torch.randn(2, 64),), memories=memories, buffers="double"
        )
        gradlet.verify(project, steps=2)
    assert heard == {
        *("tiles of calls", "compiling", "runs with other rounding", "steps in PyTorch"),
        "steps of the reference, with other rounding",
    }
