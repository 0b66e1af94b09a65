"""Every way to update against torch.optim over many steps, and proof that a wrong one is caught."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gradlet
from gradlet.cli.commands import app
from gradlet.engines import host
from gradlet.errors import GradletError
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import Graph
from gradlet.ir.recipe import Recipe
from gradlet.ops.learning.optimizer import clip_of
from gradlet.runtime import includes
from gradlet.support import compiler
from gradlet.training.autodiff import train
from tests.test_end_to_end import assert_passes, break_file, project_of

WAYS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "beta1": 0.8, "beta2": 0.99, "eps": 1e-6},
    "clipped by norm": {"clip_norm": 0.5},
    "clipped by value": {"momentum": 0.9, "clip_value": 0.02},
    "adam, accumulated, clipped": {"optimizer": "adam", "clip_norm": 0.5, "accumulate": 2},
    "momentum, accumulated": {"momentum": 0.9, "accumulate": 2},
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("way", WAYS)
def test_fifty_steps_follow_torch(way: str, tmp_path: Path) -> None:
    project = project_of("lenet", tmp_path / "p", cores=3, **WAYS[way])
    verdict = assert_passes(project, steps=50)
    assert all(row.oracle == "torch" for row in verdict.tensors if row.role != "partial")
    graph = project.plan.graph
    compared = {row.name for row in verdict.tensors}
    for old, new in graph.updates:
        if not old.startswith("acc_"):
            assert {new, f"{new} after step 50"} <= compared


@pytest.mark.parametrize("name", ["tied", "residual"])
@pytest.mark.parametrize("way", ["nesterov", "adamw"])
def test_shared_weights_and_branches(name: str, way: str, tmp_path: Path) -> None:
    loss = "mse" if name == "tied" else "cross_entropy"
    assert_passes(project_of(name, tmp_path / "p", loss=loss, **WAYS[way]), steps=5)


def test_momentum_is_fused_and_the_fusion_changes_no_bit(tmp_path: Path) -> None:
    projects = [
        project_of("lenet", tmp_path / str(fuse), fuse=fuse, **WAYS["nesterov"])
        for fuse in (True, False)
    ]
    fused = sum(n["op"].count("+momentum") for n in projects[0].manifest["nodes"])
    assert fused == len(projects[0].plan.graph.trained)
    runs = [host.run(project, steps=4, states=True) for project in projects]
    assert runs[0].loss == runs[1].loss
    for name, value in runs[0].states[-1].items():
        assert np.array_equal(value, runs[1].states[-1][name])


@pytest.mark.parametrize("way", ["clipped by norm", "clipped by value", "adam"])
def test_what_must_see_the_gradient_first_is_not_fused(way: str, tmp_path: Path) -> None:
    calls = project_of("lenet", tmp_path / "p", **WAYS[way]).plan.calls
    assert not any(call.updates for call in calls)


FAULTS = {
    "momentum too small": ("momentum", "gl.h", "gl_fma(hyper[2], *moment, slope)", "slope"),
    "nesterov forgotten": ("nesterov", "gl.h", "hyper[3] != 0.0f", "hyper[3] > 1.0f"),
    "no correction of the mean": (
        "adam",
        "kernels/*adam_adam__ref.c",
        "hyper[0] / c[0]",
        "hyper[0]",
    ),
    "no correction of the square": (
        "adam",
        "kernels/*adam_adam__ref.c",
        "1.0f / gl_sqrt(c[1])",
        "1.0f",
    ),
    "correction not advanced": (
        "adam",
        "kernels/*correction__ref.c",
        "gl_fma(hyper[2 + i], c[i], 1.0f - hyper[2 + i])",
        "gl_fma(0.0f, c[i], 1.0f - hyper[2 + i])",
    ),
    "decay inside adamw": ("adamw", "kernels/*adamw__ref.c", "-(hyper[0] * hyper[1])", "0.0f"),
    "epsilon forgotten": ("adamw", "kernels/*adamw__ref.c", "epsilon)", "0.0f * epsilon + 1e-3f)"),
    "norm of one part": ("clipped by norm", "kernels/*clip_factor*.c", "sum += ", "sum = "),
    "scale forgotten": (
        "clipped by norm",
        "kernels/*clip_scale*.c",
        "* factor[0]",
        "+ 0.0f * factor[0]",
    ),
    "one side not clipped": (
        "clipped by value",
        "kernels/*clip_value*.c",
        "< -clip",
        "< -9 - clip",
    ),
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_optimizer_is_caught(fault: str, tmp_path: Path) -> None:
    way, pattern, old, new = FAULTS[fault]
    project = project_of("lenet", tmp_path / "p", **WAYS[way])
    break_file(project, pattern, old, new)
    verdict = gradlet.verify(project, steps=3)
    assert not verdict.passed
    assert verdict.first_wrong is not None
    assert verdict.first_wrong.role in ("updated", "partial")


def test_a_broken_gradient_is_seen_through_the_fused_momentum(tmp_path: Path) -> None:
    project = project_of("lenet", tmp_path / "p", **WAYS["nesterov"])
    break_file(
        project,
        "kernels/*conv2d_weight_grad_momentum*.c",
        "sum[r][q] = total",
        "sum[r][q] = 1e-3f + total",
    )
    verdict = gradlet.verify(project, steps=1)
    assert verdict.first_wrong is not None
    assert verdict.first_wrong.node == "d_3.weight"


def test_every_setting_has_a_setter(tmp_path: Path) -> None:
    project = project_of("lenet", tmp_path / "p", **WAYS["adam, accumulated, clipped"])
    text = (project.folder / "net.h").read_text()
    for name in ("learning_rate", "weight_decay", "beta1", "beta2", "epsilon", "clip"):
        assert f"void net_set_{name}(float value);" in text
    text = (project_of("lenet", tmp_path / "q", momentum=0.9).folder / "net.h").read_text()
    assert "void net_set_nesterov(float value);" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; there are sgd, adam, adamw"),
        ({"momentum": -1.0}, "momentum of -1.0 makes no sense"),
        ({"nesterov": True}, "nesterov needs a momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "are SGD's; adam has betas"),
        ({"optimizer": "adam", "beta2": 1.0}, "beta2 is between 0 and 1, not 1.0"),
        ({"optimizer": "adam", "eps": 0.0}, "it cannot be 0.0"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "by norm or by value, not both"),
        ({"clip_norm": float("inf")}, "clip norm of inf"),
    ],
)
def test_refusals(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(GradletError, match=message):
        project_of("lenet", tmp_path / "p", **options)


def test_a_weight_with_the_name_of_a_state_stays_apart_from_it() -> None:
    builder = GraphBuilder("g")
    builder.value("clip", np.ones(3, np.float32), "param")
    builder.value("other", np.ones(3, np.float32), "const")
    y = builder.add("add", ["clip", "other"])
    graph = Graph("g", builder.tensors, tuple(builder.nodes), (), (y,), builder.data)
    trained = train(graph, Recipe(loss="mse", clip_norm=1.0), np.zeros((1, 3), np.float32))
    assert trained.trained == ("clip",)
    limit = clip_of(trained)
    assert limit != "clip"
    assert trained.tensors[limit].role == "state"


def test_the_command_line_knows_all_of_it(tmp_path: Path) -> None:
    options = ["--optimizer", "adamw", "--betas", "0.8,0.95", "--eps", "1e-6", "--lr", "0.002"]
    options += ["--weight-decay", "0.1", "--clip-norm", "2", "-o", str(tmp_path / "p")]
    done = CliRunner().invoke(app, ["build", "zoo:tutorial-cnn", *options])
    assert done.exit_code == 0, done.output
    data = gradlet.load(tmp_path / "p").plan.graph.data
    expected = np.array([0.002, 0.1, 0.8, 0.95, 1e-6], np.float32)
    np.testing.assert_array_equal(data["hyper"], expected)
    np.testing.assert_array_equal(data["clip"], np.array([2], np.float32))
    done = CliRunner().invoke(app, ["build", "zoo:tutorial-cnn", *options, "--betas", "0.9"])
    assert done.exit_code == 2


SCHEDULES = """
#include "gl_schedule.h"
float constant(float rate, int step) { return gl_rate_constant(rate, step); }
float steps(float rate, float f, int step, int n) { return gl_rate_steps(rate, f, step, n); }
float cosine(float rate, float low, int step, int n) { return gl_rate_cosine(rate, low, step, n); }
float warmup(float rate, int step, int n) { return gl_rate_warmup(rate, step, n); }
"""


@pytest.fixture(scope="module")
def schedules(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("schedule")
    (folder / "schedule.c").write_text(SCHEDULES)
    path = compiler.build_library(
        [folder / "schedule.c"], folder / "s.so", include=includes("host")
    )
    return ctypes.CDLL(str(path))


def rates(schedules: Any, name: str, *arguments: Any) -> list[float]:
    function = getattr(schedules, name)
    function.restype = ctypes.c_float
    given = [ctypes.c_float(a) if isinstance(a, float) else a for a in arguments]
    return [function(*(step if a is STEP else a for a in given)) for step in range(60)]


STEP: Any = object()


def torch_rates(make: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedule = make(optimizer)
    found = []
    for _ in range(60):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_schedules_are_those_of_torch(schedules: Any) -> None:
    lr = torch.optim.lr_scheduler
    pairs = [
        (rates(schedules, "constant", 0.1, STEP), [0.1] * 60),
        (
            rates(schedules, "steps", 0.1, 0.5, STEP, 7),
            torch_rates(lambda o: lr.StepLR(o, 7, gamma=0.5)),
        ),
        (
            rates(schedules, "cosine", 0.1, 0.01, STEP, 60),
            torch_rates(lambda o: lr.CosineAnnealingLR(o, 60, eta_min=0.01)),
        ),
        (
            rates(schedules, "warmup", 0.1, STEP, 10),
            torch_rates(lambda o: lr.LinearLR(o, 0.1, total_iters=9)),
        ),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=0)
    assert rates(schedules, "cosine", 0.1, 0.01, STEP, 30)[30:] == [np.float32(0.01)] * 30


def test_a_schedule_drives_a_project_without_a_rebuild(tmp_path: Path) -> None:
    """The user's loop: a rate for each step, by the setter, as torch's scheduler sets its own."""
    project = project_of("single_neuron", tmp_path / "p", loss="mse", momentum=0.9)
    text = "".join(p.read_text() for p in project.folder.glob("*.h"))
    assert "gl_rate_cosine" in text
    assert "net_set_learning_rate" in text
    names = ["net.c", "weights.c"]
    sources = [project.folder / name for name in names]
    sources += sorted((project.folder / "kernels").glob("*.c"))
    path = compiler.build_library(sources, tmp_path / "net.so", include=[project.folder])
    library = ctypes.CDLL(str(path))
    graph = project.plan.graph
    data = {name: torch.from_numpy(value.copy()) for name, value in graph.data.items()}
    weights = {name: data[name].requires_grad_(True) for name in graph.trained}
    optimizer = torch.optim.SGD(weights.values(), lr=0.05, weight_decay=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, gamma=0.5)
    x, target = (torch.from_numpy(graph.samples[n][0]) for n in (graph.inputs[0], "target"))
    library.net_train_step.restype = ctypes.c_float
    for name in ("input", "target"):
        pointer = getattr(library, f"net_{name}")
        pointer.restype = ctypes.POINTER(ctypes.c_float)
    for step in range(20):
        for name, value in (("input", x), ("target", target)):
            place = getattr(library, f"net_{name}")()
            np.ctypeslib.as_array(place, (value.numel(),))[...] = value.numpy().reshape(-1)
        library.net_set_learning_rate(ctypes.c_float(0.05 * 0.5 ** (step // 4)))
        loss = library.net_train_step()
        optimizer.zero_grad()
        y = torch.nn.functional.linear(x, *weights.values())
        expected = torch.nn.functional.mse_loss(y, target)
        expected.backward()
        optimizer.step()
        schedule.step()
        assert abs(loss - expected.item()) <= 1e-6 * max(1.0, expected.item())
