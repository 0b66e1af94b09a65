"""Transformers end to end: broken kernels are caught, lookups are safe, and updates are fused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.engines import host
from gradlet.ir.recipe import Recipe
from gradlet.planner.planner import plan
from gradlet.targets.target import load as load_target
from tests.test_end_to_end import assert_passes, break_file, project_of


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("model", "pattern", "old", "new"),
    [
        ("language_model", "kernels/*mask_fill*.c", "> 0.0f ?", "< 0.0f ?"),
        ("hand_made_attention", "kernels/*mask_fill*.c", "i * mask_step", "i / 2 * mask_step"),
        ("language_model", "kernels/*gather_rows*.c", "at % width", "0"),
        ("language_model", "kernels/*gather_grad*.c", "row == s->skip", "0"),
        ("language_model", "kernels/*gather_grad*.c", "int i = 0; i", "int i = 1; i"),
        ("dropout_net", "kernels/*dropout_apply*.c", "(uint32_t)s->group", "1u"),
        ("dropout_net", "kernels/*dropout_step*.c", "+ 1u", "+ 2u"),
        ("dropout_net", "kernels/*dropout_apply*.c", "(uint32_t)s->salt", "0u"),
    ],
)
def test_a_broken_kernel_is_caught(
    model: str, pattern: str, old: str, new: str, tmp_path: Path
) -> None:
    project = project_of(model, tmp_path / "p")
    break_file(project, pattern, old, new)
    assert not gradlet.verify(project, steps=1).passed


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["language_model", "dropout_transformer"])
@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_accumulation_and_other_optimizers(name: str, optimizer: str, tmp_path: Path) -> None:
    options = {"momentum": 0.9} if optimizer == "momentum" else {"optimizer": "adam"}
    assert_passes(project_of(name, tmp_path / "p", accumulate=2, batch=1, **options), steps=3)


@pytest.mark.parametrize("name", ["language_model", "attention_heads", "dropout_transformer"])
def test_nothing_is_touched_that_is_not_there(name: str, tmp_path: Path) -> None:
    host.run(project_of(name, tmp_path / "p", cores=3), steps=2, sanitize=True)


@pytest.mark.parametrize("name", ["language_model", "dropout_transformer"])
def test_bits_do_not_depend_on_the_cores(name: str, tmp_path: Path) -> None:
    runs = [
        host.run(project_of(name, tmp_path / str(cores), cores=cores), steps=3, states=True)
        for cores in (1, 5)
    ]
    assert runs[0].loss == runs[1].loss
    for key, value in runs[0].states[-1].items():
        np.testing.assert_array_equal(value, runs[1].states[-1][key])


def _table() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(6, 3, padding_idx=1), nn.Flatten(), nn.Linear(6, 2))


def test_the_table_is_updated_in_place_and_its_padding_stays(tmp_path: Path) -> None:
    """No memory for the gradient of a table, which has many rows."""
    ids = torch.tensor([[1, 3], [3, 5]])
    graph = training_graph(gradlet.capture(_table(), ids), Recipe(lr=0.5, loss="mse"))
    project = gradlet.emit(plan(graph, load_target("host", cores=2)), tmp_path / "p")
    fused = [call.kernel.name for call in project.plan.calls if len(call.nodes) > 1]
    assert "gl_f32_gather_grad_sgd__ref" in fused
    assert_passes(project)
    before = graph.data["0.weight"]
    after = host.run(project, steps=2, states=True).states[-1]["0.weight"]
    changed = (before != after).any(axis=1)
    np.testing.assert_array_equal(changed, [False, False, False, True, False, True])


def test_an_index_outside_the_table_reads_nan(tmp_path: Path) -> None:
    """On the device nobody checks what a user feeds; it must not read foreign memory."""
    ids = torch.tensor([[1, 3]])
    graph = training_graph(gradlet.capture(_table(), ids), Recipe(lr=0.0, loss="mse"))
    project = gradlet.emit(plan(graph, load_target("host")), tmp_path / "p")
    fed = {"input": np.array([[[-1, 2**31 - 1]]], np.int32)}
    run = host.run(project, steps=1, samples=fed, predict=True, sanitize=True)
    assert np.isnan(run.outputs[0][graph.outputs[0]]).all()
