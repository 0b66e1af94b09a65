"""Dropout in training: the masks themselves, the same everywhere, new in every step, and off when
predicting."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradlet
from gradlet.api import training_graph
from gradlet.codegen.project import Project
from gradlet.engines import host
from gradlet.errors import GradletError
from gradlet.frontends.capture import Captured
from gradlet.frontends.torch.program import capture_module
from gradlet.ir.graph import Array
from gradlet.ir.recipe import Recipe
from gradlet.ops import dropout
from gradlet.ops.dropout import kept
from gradlet.oracle.interpreter import run_reference
from gradlet.planner.planner import plan
from gradlet.support import compiler
from gradlet.targets.target import load as load_target


def mask(p: float, count: int, *, seed: int = 0, step: int = 0, salt: int = 0) -> Array:
    return kept({"p": p, "group": 1, "salt": salt}, np.array([seed, step, 1], np.int32), count)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_mask_keeps_its_share(p: float) -> None:
    """The number that is kept, and that of kept neighbours, within 5 standard deviations."""
    count = 1 << 16
    for other in ({}, {"seed": -5}, {"step": 1}, {"salt": 7}, {"seed": 2**31 - 1, "step": 12345}):
        stays = mask(p, count, **other)
        assert abs(stays.sum() - count * (1 - p)) <= 5 * np.sqrt(count * p * (1 - p))
        for distance in (1, 2, 3, 8, 64, 1000):
            both = (stays[:-distance] & stays[distance:]).sum()
            share = (1 - p) ** 2
            spread = np.sqrt(count * share * (1 - share) + 2 * count * share * (1 - p) * p)
            assert abs(both - (count - distance) * share) <= 5 * spread, (other, distance)


def test_masks_of_other_steps_seeds_and_layers_are_independent() -> None:
    count = 1 << 14
    masks = [mask(0.5, count, step=step) for step in range(6)]
    masks += [mask(0.5, count, seed=seed) for seed in range(1, 6)]
    masks += [mask(0.5, count, salt=salt) for salt in range(1, 6)]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert abs((one == other).mean() - 0.5) <= 5 * 0.5 / np.sqrt(count)


def test_p_0_and_1() -> None:
    assert mask(0.0, 1000).all()
    assert not mask(1.0, 1000).any()


def net(p: float = 0.5) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 50), nn.Dropout(p), nn.Linear(50, 2)), torch.randn(3, 4)


def project_of(folder: Path, **recipe: Any) -> Project:
    module, x = net()
    graph = training_graph(gradlet.capture(module, x), Recipe(lr=0.0, loss="mse", **recipe))
    return gradlet.emit(plan(graph, load_target("host", cores=2)), folder)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_micro_batch_has_a_mask_of_its_own(accumulate: int, tmp_path: Path) -> None:
    """Nothing learns at a rate of 0, so that losses differ by the masks alone."""
    project = project_of(tmp_path / "p", accumulate=accumulate)
    run = host.run(project, steps=4, states=True)
    assert len(set(run.loss)) == 4
    steps = [int(state["dropout_state"][1]) for state in run.states]
    assert steps == [accumulate * n for n in (1, 2, 3, 4)]
    verdict = gradlet.verify(project, steps=4)
    assert verdict.passed, verdict.first_wrong
    assert "dropout_state.next after step 4" in {row.name for row in verdict.tensors}


def test_predicting_drops_nothing(tmp_path: Path) -> None:
    project = project_of(tmp_path / "p")
    module, x = net()
    (outputs,) = host.run(project, steps=3, predict=True).outputs
    expected = module.eval()(x).detach().numpy()
    np.testing.assert_allclose(outputs["matmul_1"][0], expected, rtol=0, atol=1e-5)


MAIN = """
#include <stdio.h>
#include <string.h>
#include "net.h"
#include "golden.h"

static float predicted(void)
{
    memcpy(net_input(), golden_input[0], sizeof golden_input[0]);
    net_predict();
    return net_output()[0];
}

static float trained(void)
{
    memcpy(net_input(), golden_input[0], sizeof golden_input[0]);
    memcpy(net_target(), golden_target[0], sizeof golden_target[0]);
    return net_train_step();
}

int main(void)
{
    const float before = predicted();
    const float first = trained(), second = trained();
    const float after = predicted();
    net_set_seed(5);
    const float other = trained();
    net_set_seed(0);
    const float again = trained();
    predicted();
    const float next = trained();
    printf("%d %d %d %d %d\\n", before == after, first != second, first != other, first == again,
           second == next);
    return 0;
}
"""


def test_in_c(tmp_path: Path) -> None:
    """At a rate of 0: predictions stay, masks change, a seed starts anew, predict takes none."""
    project = project_of(tmp_path / "p")
    (tmp_path / "p" / "try.c").write_text(MAIN)
    tool = compiler.system() or compiler.zig()
    assert tool is not None
    sources = [tmp_path / "p" / name for name in ("try.c", "net.c", "weights.c")]
    sources += sorted((project.folder / "kernels").glob("*.c"))
    program = tmp_path / "try"
    command = [*tool.command, "-w", "-I", str(project.folder), *map(str, sources)]
    subprocess.run([*command, "-o", str(program), "-lm"], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"] * 5


def test_another_mask_is_caught(tmp_path: Path) -> None:
    """A kernel that hashes otherwise fails to verify."""
    project = project_of(tmp_path / "p")
    (path,) = (project.folder / "kernels").glob("*dropout_apply*.c")
    text = path.read_text()
    path.write_text(text.replace(">> 13", ">> 12"))
    assert path.read_text() != text
    verdict = gradlet.verify(project, steps=2)
    assert not verdict.passed
    assert verdict.first_wrong is not None
    assert verdict.first_wrong.node == "dropout_0"


def test_whole_channels_go_together() -> None:
    module = nn.Sequential(nn.Conv2d(1, 8, 1), nn.Dropout2d(0.5))
    graph = capture_module(module, torch.randn(2, 1, 3, 4) + 5, name="m")
    training = training_graph(Captured(graph), Recipe(loss="mse"))
    y = next(iter(run_reference(training, 1))).values["dropout_0"]
    dropped = (y == 0).reshape(16, 12)
    assert (dropped.all(axis=1) == dropped.any(axis=1)).all()
    assert 0 < dropped.all(axis=1).sum() < 16


def test_backward_uses_the_mask_of_the_forward_pass() -> None:
    module, x = net()
    graph = training_graph(gradlet.capture(module, x), Recipe(loss="mse"))
    for step in run_reference(graph, 3):
        zero = step.values["dropout_0"] == 0
        assert (step.values["d_matmul_0"][zero] == 0).all()
        assert zero.any()
        assert not zero.all()


class Selus(nn.Module):
    """Alpha dropout by element and by channel, as a layer and as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.channels = nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.4)
        self.layer, self.head = nn.Conv1d(2, 6, 3), nn.Linear(30, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.channels(nn.functional.selu(self.layer(self.drop(x))))
        y = nn.functional.alpha_dropout(y, 0.2, training=True)
        y = nn.functional.dropout(y, 0.1)  # its mask comes after theirs
        return self.head(y.flatten(1))


def test_alpha_dropout(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Selus(), torch.randn(4, 2, 7)
    recipe = Recipe(loss="mse")
    project = gradlet.build(
        module, tmp_path / "p", inputs=x, batch=2, target="host", layout="hwc", recipe=recipe
    )
    assert not project.recording.absent
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong


def test_other_kinds_are_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.RReLU())
    with pytest.raises(GradletError, match="random slopes"):
        capture_module(module, torch.randn(2, 3), name="m")


def test_a_probability_that_is_another_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Program and reference share it; the module has its own."""
    threshold = dropout._threshold
    monkeypatch.setattr(dropout, "_threshold", lambda attrs: round(0.8 * threshold(attrs)))
    module = nn.Sequential(nn.Linear(4, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    project = gradlet.build(module, tmp_path / "p", inputs=(torch.randn(2, 4),), target="host")
    verdict = gradlet.verify(project, steps=1)
    assert not verdict.passed
    assert verdict.first_wrong is not None
    assert verdict.first_wrong.oracle == "module"
