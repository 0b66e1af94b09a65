"""Labels and indices that are none: refused where they are known, and harmless where they are not.

On a device they come at run time. Then nothing outside of the scores is touched, the loss is NaN,
and the weights learn from the other labels only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.codegen.project import Project
from gradlet.engines import host, sim
from gradlet.errors import GradletError
from gradlet.ir.recipe import Recipe

BAD = (4, -1, 2**31 - 1, -(2**31), 1000, -99)


def build(folder: Path, batch: int, target: str = "pulp-open", **recipe: Any) -> Project:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4), *([nn.LogSoftmax(1)] if "loss" in recipe else []))
    return gradlet.build(
        module,
        folder,
        inputs=torch.randn(batch, 6),
        targets=torch.arange(batch) % 4,
        batch=batch,
        target=target,
        recipe=Recipe(**recipe),
    )


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "several": (3, {}),
    "sum": (3, {"reduction": "sum"}),
    "weights": (3, {"class_weights": (1.0, 2.0, 3.0, 0.5)}),
    "smoothing": (3, {"label_smoothing": 0.1}),
    "nll": (3, {"loss": "nll"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_label_that_is_no_class(case: str, tmp_path: Path) -> None:
    batch, recipe = CASES[case]
    project = build(tmp_path / "p", batch, **recipe)
    labels = np.tile(np.arange(batch, dtype=np.int32) % 4, (len(BAD), 1))
    labels[np.arange(len(BAD)), np.arange(len(BAD)) % batch] = BAD
    samples = {
        "target": labels,
        "input": np.resize(project.plan.graph.samples["input"], (6, batch, 6)),
    }
    runs = [
        host.run(project, steps=6, states=True, samples=samples, sanitize=False),
        sim.run(project, steps=6, states=True, samples=samples, sanitize=True),
    ]
    for run in runs:
        assert np.isnan(run.loss).all()
        assert all(np.isfinite(value).all() for state in run.states for value in state.values())
    for one, other in zip(runs[0].states, runs[1].states, strict=True):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_the_others_count_as_if_it_were_ignored(tmp_path: Path) -> None:
    project = build(tmp_path / "p", 3, target="host")
    states = []
    for label in (-100, 77):
        samples = {"target": np.array([[0, label, 2]], np.int32)}
        run = host.run(project, states=True, samples=samples)
        assert np.isnan(run.loss[0]) == (label == 77)
        states.append(run.states[0])
    assert all(states[0][name].tobytes() == states[1][name].tobytes() for name in states[0])


def test_an_index_outside_of_the_table(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    project = gradlet.build(module, tmp_path / "p", inputs=torch.tensor([[1, 4]]), batch=1)
    for index in (5, -1, 2**31 - 1, -(2**31)):
        samples = {project.plan.graph.inputs[0]: np.array([[[2, index]]], np.int32)}
        runs = [
            host.run(project, samples=samples, states=True),
            sim.run(project, samples=samples, states=True, sanitize=True),
        ]
        for run in runs:
            assert np.isnan(run.loss[0])
            assert np.isnan(run.states[0][project.plan.graph.outputs[0]]).all()
            for name in project.plan.graph.trained:
                np.testing.assert_array_equal(run.states[0][name], project.plan.graph.data[name])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([0, 4], "labels run from 0 to 4, but the model has 4 classes"),
        ([0, -3], "labels run from -3 to 0"),
        ([0.0, 1.5], "whole numbers"),
        (["cat", "dog"], "class labels are whole numbers"),
        (3, "one entry per sample"),
        ([0, float("nan")], "NaN|whole|finite"),
        ([0, 2**40], "labels run from 0 to 1099511627776"),
        ([0, 1, 2], "3 .*'targets'|different numbers of samples"),
        ([], "no samples|different numbers"),
        ([[0], [1]], r"targets have shape \(1, 1\) per batch"),
        ([None, 1], "numbers"),
    ],
)
def test_targets_are_looked_at_when_they_are_known(
    targets: Any, message: str, tmp_path: Path
) -> None:
    inputs = torch.randn(2, 6)
    with pytest.raises(GradletError, match=message):
        gradlet.build(
            nn.Linear(6, 4), tmp_path / "p", inputs=inputs, targets=targets, batch=1, target="host"
        )
    array = np.asarray(targets, dtype=object if None in np.ravel(targets).tolist() else None)
    if array.dtype == object:
        return  # not without pickle
    np.savez(tmp_path / "d.npz", inputs=inputs.numpy(), targets=array)
    with pytest.raises(GradletError, match=message):
        gradlet.build(
            nn.Linear(6, 4), tmp_path / "p", inputs=inputs, data=tmp_path / "d.npz", batch=1
        )
    assert not (tmp_path / "p").exists()
