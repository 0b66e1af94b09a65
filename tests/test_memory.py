"""The memory report against figures made by hand, and the picture against the plan."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.ir.recipe import Recipe
from gradlet.planner.planner import plan
from gradlet.reports import MemoryReport, memory_report
from gradlet.targets.target import load as load_target
from tests.models import MODELS
from tests.test_cli import MODEL
from tests.test_cli import gradlet as command

SVG = "{http://www.w3.org/2000/svg}"


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def report_of(module: nn.Module, shape: tuple[int, ...], **recipe: Any) -> MemoryReport:
    options: dict[str, Any] = {"inputs": (torch.randn(shape),), "target": "host"}
    return gradlet.memory(module, recipe=Recipe(**recipe), **options)


def rows_of(report: MemoryReport) -> dict[tuple[str, str], dict[str, int]]:
    return {
        (row.module, row.step): {kind: size for kind, size in row.bytes.items() if size}
        for row in report.layers
    }


def test_rows_by_hand() -> None:
    """Four samples of six numbers; a ReLU works in place, Adam keeps two numbers per weight."""
    first, second = 4 * (6 * 5 + 5), 4 * (5 * 3 + 3)
    rows = rows_of(report_of(two_layers(), (4, 6), optimizer="adam"))
    hidden, out, classes = 4 * 4 * 5, 4 * 4 * 3, 4 * 4
    assert rows == {
        ("(input)", "forward"): {"activations": 4 * 4 * 6},
        ("0", "forward"): {"weights": first, "activations": hidden},
        ("0", "backward"): {"activations": 4 * 4 * 6, "gradients": first},
        ("0", "update"): {"weights": first, "gradients": first, "optimizer": 2 * first},
        ("1", "backward"): {"activations": hidden},
        ("2", "forward"): {"weights": second, "activations": out},
        ("2", "backward"): {
            "weights": 4 * 5 * 3,
            "activations": hidden,
            "gradients": second + hidden,
        },
        ("2", "update"): {"weights": second, "gradients": second, "optimizer": 2 * second},
        ("(loss)", "forward"): {"activations": classes + 4},
        ("(loss)", "backward"): {"activations": out + classes, "gradients": out},
        ("(shared)", "backward"): {"constants": 4},
        ("(shared)", "update"): {"optimizer": 4 * (5 + 2)},
    }


def test_a_fused_update_stores_no_gradient() -> None:
    rows = rows_of(report_of(two_layers(), (4, 6)))
    assert rows["0", "update"] == {"weights": 4 * (6 * 5 + 5)}
    assert "gradients" not in rows["0", "backward"]


def test_accumulated_gradients_are_gradients() -> None:
    rows = rows_of(report_of(two_layers(), (4, 6), accumulate=2))
    weights = 4 * (6 * 5 + 5)
    assert rows["0", "update"] == {"weights": weights, "gradients": weights}
    assert rows["0", "backward"]["gradients"] == 2 * weights


def test_im2col_is_told_apart() -> None:
    rows = rows_of(report_of(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten()), (1, 2, 6, 6)))
    assert rows["0", "forward"]["im2col"] == 4 * 2 * 9 * (4 * 4 + 16)
    assert rows["0", "forward"]["weights"] == 4 * (4 * 2 * 9 + 4)


def test_running_statistics_are_weights() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    rows = rows_of(report_of(module, (4, 6), momentum=0.9))
    assert rows["1", "forward"]["weights"] == 4 * 4 * 5  # scale, shift, mean and variance
    assert rows["1", "update"]["optimizer"] == 4 * 2 * 5


@pytest.mark.parametrize("name", ["lenet", "residual", "norms", "tied", "single_neuron"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_peak_is_the_lower_bound(name: str, optimizer: str) -> None:
    module, inputs = MODELS[name]()
    captured = gradlet.capture(module, inputs, name=name)
    loss = "mse" if name in ("tied", "single_neuron") else "cross_entropy"
    graph = training_graph(captured, Recipe(loss=loss, optimizer=optimizer, clip_norm=1.0))
    planned = plan(graph, load_target("pulp-open"), fit=False)
    report = memory_report(planned)
    [peak] = report.peaks
    assert peak.bytes == planned.lower_bound == sum(holding.bytes for holding in peak.buffers)
    assert peak.bytes == sum(peak.kinds.values())
    assert [h.bytes for h in peak.buffers] == sorted((h.bytes for h in peak.buffers), reverse=True)
    assert peak.call == planned.calls[peak.index].name
    assert max(moment.live[peak.level] for moment in report.timeline) == peak.bytes
    assert {row.module for row in report.layers} <= {
        *(node.module for node in graph.nodes),
        "(input)",
        "(loss)",
        "(shared)",
    }
    json.dumps(report.to_json())


def test_a_model_that_does_not_fit_is_reported_all_the_same() -> None:
    recipe = Recipe(optimizer="adam")
    report = gradlet.memory("zoo:tutorial-cnn", recipe=recipe, memories={"L2": "200k"})
    assert not report.fits
    level = next(level for level in report.levels if level.name == "L2")
    assert f"does not fit: {level.used - level.room:,} missing" in str(report)
    assert report.peaks[0].buffers[0].tensor == "3.weight"
    project_like = gradlet.memory(report.plan)
    assert project_like.layers == report.layers


def rectangles(svg: str) -> list[dict[str, Any]]:
    found = []
    for rect in ET.fromstring(svg).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None:
            sides = {key: float(rect.get(key, "")) for key in ("x", "y", "width", "height")}
            found.append({**sides, "tip": title.text or "", "fill": rect.get("fill")})
    return found


@pytest.mark.parametrize("name", ["lenet", "residual", "single_neuron"])
def test_the_picture_shows_every_buffer_once_and_none_over_another(name: str) -> None:
    module, inputs = MODELS[name]()
    report = gradlet.memory(module, inputs=inputs, recipe=Recipe(loss="mse", momentum=0.9))
    shown = rectangles(report.svg())
    assert len(shown) == len(report.plan.buffers)
    tips = [line.split(" (")[0] for rect in shown for line in rect["tip"].splitlines()[1:]]
    assert sorted(tips) == sorted(n for b in report.plan.buffers for n in b.tensors)
    for i, a in enumerate(shown):
        for b in shown[:i]:
            wide = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
            high = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
            assert wide <= 0.03 or high <= 0.03, (a["tip"], b["tip"])  # coordinates are rounded


def test_names_are_escaped_in_the_picture() -> None:
    module, inputs = MODELS["lenet"]()
    report = gradlet.memory(module, inputs=inputs, name="<&>")
    assert "&lt;&amp;&gt; on pulp-open" in report.svg()
    ET.fromstring(report.svg())


@pytest.mark.thorough
def test_command(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    options = ("--update", "last:1", "--batch", "2", "--csv", "m.csv", "--svg", "m.svg")
    done = command("memory", "model.py:net", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "peak of L1" in done.stdout
    assert "lower bound" in done.stdout
    lines = list(csv.DictReader(io.StringIO((tmp_path / "m.csv").read_text())))
    assert {(line["module"], line["step"]) for line in lines} >= {("0", "forward"), ("2", "update")}
    assert ("0", "backward") not in {(line["module"], line["step"]) for line in lines}
    assert rectangles((tmp_path / "m.svg").read_text())
    value = json.loads(command("memory", "model.py:net", "--json", folder=tmp_path).stdout)
    assert value["fits"] is True
    assert value["peaks"][0]["bytes"] == value["lower_bound"]
    assert {row["module"] for row in value["layers"]} >= {"0", "2", "(loss)"}
