"""Scaling of the loss: steps whose gradients overflow change nothing but the scale, which halves
behind them and doubles behind good ones; beside PyTorch, the module, and on the simulator."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.codegen.project import Project
from gradlet.errors import GradletError
from gradlet.ir.graph import Array
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.oracle.interpreter import run_reference
from gradlet.support import compiler
from gradlet.training import scaling
from gradlet.training.scaling import Scaling, scaling_of

STEPS = 7


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 7, 3, padding=1)
        self.norm = nn.BatchNorm2d(7)
        self.last = nn.Linear(7 * 49, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.relu(self.norm(self.first(x))).flatten(1))


def images(count: int = 2) -> torch.Tensor:
    return torch.randn(count, 3, 7, 7, generator=torch.Generator().manual_seed(1))


def project(folder: Path, inputs: torch.Tensor, target: str = "host", **settings: Any) -> Project:
    torch.manual_seed(0)
    recipe = Recipe(**{"lr": 0.01, "loss_scale": "dynamic", **settings})
    batch = 1 if recipe.accumulate > 1 else 2
    return gradlet.build(
        Network(), folder, inputs=inputs, batch=batch, target=target, recipe=recipe, force=True
    )


def scales(built: Project, steps: int = STEPS) -> list[list[float]]:
    """After each step: the scale, good steps, skipped ones."""
    with np.errstate(all="ignore"):
        states = [step.state["loss_scale"] for step in run_reference(built.plan.graph, steps)]
    return [state.tolist() for state in states]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("target", ["host", "pulp-open"])
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "f16"},
        {"dtype": "f16", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"dtype": "f16", "optimizer": "adam"},
        {"dtype": "f16", "accumulate": 2},
        {"dtype": "mixed"},
        {"dtype": "mixed", "momentum": 0.9},
        {"dtype": "mixed", "optimizer": "adamw", "clip_norm": 0.5},
        {"dtype": "mixed", "accumulate": 2, "clip_value": 0.1},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_steps_that_overflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], target: str
) -> None:
    """The first ones do, until the scale is small enough; then it grows, and they do again."""
    monkeypatch.setattr(scaling, "START", 2.0**16)
    monkeypatch.setattr(scaling, "INTERVAL", 2)
    built = project(tmp_path / "p", images(), target, **settings)
    skipped = [after[2] for after in scales(built)]
    assert skipped[0] == 1
    assert skipped[-1] < STEPS - 2, "some steps are good"
    verdict = gradlet.verify(built, steps=STEPS)
    assert verdict.passed, verdict.to_json()
    assert all(verdict.bit_identical.values())
    rows = [row.name for row in verdict.tensors]
    assert f"loss_scale.next after step {verdict.steps}" in rows
    assert verdict.steps > skipped[2] + 2, "some good steps are judged, before training is chaotic"
    assert any(name.startswith("module: last.weight after step") for name in rows)


def test_a_skipped_step_changes_no_bit(tmp_path: Path) -> None:
    """Of weights and of what an optimizer knows."""
    for settings in ({"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam"}):
        built = project(tmp_path / "p", images(), dtype="mixed", loss_scale="1e7", **settings)
        graph = built.plan.graph
        run = gradlet.run(built, steps=2, states=True)
        running = {old for old, _ in graph.updates if "running" in old}
        for old, _ in graph.updates:
            kept = np.array_equal(run.states[1][old], graph.data[old])
            assert kept == (old not in running | {"loss_scale"}), old
        assert run.states[1]["loss_scale"].tolist() == [1e7, 0.0, 2.0]


def test_a_forward_pass_that_overflows(tmp_path: Path) -> None:
    """Its loss is no number; nothing of that reaches weights or running statistics."""
    inputs = torch.cat([images(), 6e4 * images(), images()])
    built = project(tmp_path / "p", inputs, dtype="f16")
    run = gradlet.run(built, steps=3, states=True)
    assert not np.isfinite(run.loss[1])
    assert np.isfinite(run.loss[2])
    graph = built.plan.graph
    for old, _ in graph.updates:
        assert np.isfinite(run.states[1][old]).all(), old
        if old in graph.trained:
            assert np.array_equal(run.states[1][old], run.states[0][old]), old
    assert run.states[2]["loss_scale"][2] == 1
    verdict = gradlet.verify(built, steps=3)
    assert verdict.passed, verdict.to_json()
    assert verdict.diverged == 2


def test_without_scaling_it_does_harm(tmp_path: Path) -> None:
    inputs = torch.cat([images(), 6e4 * images(), images()])
    built = project(tmp_path / "p", inputs, dtype="f16", loss_scale="off")
    run = gradlet.run(built, steps=2, states=True)
    assert not all(np.isfinite(run.states[1][name]).all() for name in built.plan.graph.trained)


@pytest.mark.parametrize("wrong", ["overflow", "gate", "next", "unscale"])
def test_wrong_kernels_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Nothing that overflows is seen; a step is never skipped; the scale doubles behind a fault."""
    monkeypatch.setattr(scaling, "START", 2.0**18)
    edits = {
        "overflow": ("value - value == 0.0f ? 0.0f : 1.0f", "value == 1e9f ? 1.0f : 0.0f"),
        "gate": ("gate[1] = sum > 0.0f ? 1.0f : 0.0f", "gate[1] = 0.0f"),
        "next": ("now * 0.5f", "now * 2.0f"),
        "unscale": ("gate[1] > 0.0f ? 0.0f", "gate[1] > 0.0f ? 1.0f"),
    }
    built = project(tmp_path / "p", images(), dtype="f16", momentum=0.9)
    old, new = edits[wrong]
    changed = 0
    for path in (built.folder / "kernels").glob("*loss_scale*.c"):
        text = path.read_text()
        path.write_text(text.replace(old, new))
        changed += old in text
    assert changed
    assert not gradlet.verify(built, steps=4, edited=True).passed


def test_read_in_c(tmp_path: Path) -> None:
    """The scale, and how many steps were skipped."""
    built = project(tmp_path / "p", images(), dtype="f16", loss_scale="1e7")
    sources = [built.folder / name for name in ("net.c", "weights.c")]
    sources += sorted((built.folder / "kernels").glob("*.c"))
    path = compiler.build_library(sources, tmp_path / "net.so", include=[built.folder])
    library = ctypes.CDLL(str(path))
    library.net_train_step.restype = library.net_loss_scale.restype = ctypes.c_float
    values = np.ascontiguousarray(images().numpy())
    for step in range(3):
        library.net_fill_input(values.ctypes.data_as(ctypes.c_void_p))
        library.net_target.restype = ctypes.POINTER(ctypes.c_int32 * 2)
        library.net_target().contents[:] = [1, 3]
        library.net_train_step()
        assert library.net_skipped_steps() == step + 1
    assert library.net_loss_scale() == 1e7


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (Recipe(), None),
        (Recipe(dtype="f16"), None),
        (Recipe(dtype="mixed"), Scaling(1024.0, 200)),
        (Recipe(dtype="conv=mixed,*=f32"), Scaling(1024.0, 200)),
        (Recipe(dtype="mixed", loss_scale="off"), None),
        (Recipe(dtype="f16", loss_scale="128"), Scaling(128.0, 0)),
        (Recipe(dtype="f16", loss_scale=64), Scaling(64.0, 0)),  # type: ignore[arg-type]
    ],
)
def test_what_a_recipe_asks_for(recipe: Recipe, expected: Scaling | None) -> None:
    assert scaling_of(recipe) == expected


@pytest.mark.parametrize("wish", ["auto", "0", "-1", "inf", "nan"])
def test_wrong_wishes_are_told(wish: str) -> None:
    with pytest.raises(GradletError, match=f"loss scale '{wish}': it is dynamic, off or a number"):
        scaling_of(replace(Recipe(), loss_scale=wish))


def test_what_is_counted() -> None:
    def counted(*values: float) -> Array:
        return OPS["overflow"].reference({}, np.asarray(values))[0]

    assert counted(1.0, np.inf, -np.inf, np.nan).tolist() == [0.0, 1.0, 1.0, 1.0] + [0.0] * 12
    assert counted(1e300, -1e300).sum() == 0
