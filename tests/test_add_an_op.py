"""The example of docs/add-an-op.md as it stands there: captured, built, verified, breakable."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.frontends.onnx.model import capture_onnx
from gradlet.ir.recipe import Recipe
from gradlet.kernels import catalogue
from gradlet.ops import ONNX, OPS, TORCH
from gradlet.oracle.interpreter import run_reference
from gradlet.planner.planner import plan
from gradlet.targets.target import load as load_target
from tests import test_ops, test_tiling
from tests.helpers import op_training_graph

PAGE = Path(__file__).parent.parent / "docs" / "add-an-op.md"


def blocks() -> dict[str, str]:
    """The text of each file that the page shows."""
    return dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE.read_text(), re.S | re.M))


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ...]]:
    """The op registered and its kernels in the catalogue, for one test; its rows of the table."""
    files = blocks()
    folder = tmp_path / "kernels"
    shutil.copytree(catalogue.FAMILIES, folder)
    for path, text in files.items():
        if path.startswith("kernels/families/"):
            place = folder / Path(path).relative_to("kernels/families")
            place.parent.mkdir(exist_ok=True)
            place.write_text(text)
    tables: tuple[dict[str, Any], ...] = (OPS, TORCH, ONNX)
    known = [set(table) for table in tables]
    monkeypatch.setattr(catalogue, "FAMILIES", folder)
    _forget()
    exec(compile(files["ops/asinh.py"], "ops/asinh.py", "exec"), {"__name__": "asinh"})
    space: dict[str, Any] = {}
    exec(files["tests/cases/asinh.py"], space)
    yield space["ROWS"]
    for table, names in zip(tables, known, strict=True):
        for name in set(table) - names:
            del table[name]
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    catalogue.families.cache_clear()
    catalogue._environment.cache_clear()


def test_the_example_from_pytorch_to_c(rows: tuple[Any, ...], tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.b(torch.asinh(3 * self.a(x)).asinh_())
            return logits

    graph = training_graph(gradlet.capture(Model(), (torch.randn(4, 5),)), Recipe(lr=0.05))
    assert [node.op for node in graph.nodes].count("asinh_grad") == 2
    project = gradlet.emit(plan(graph, load_target("host", cores=3)), tmp_path / "p")
    verdict = gradlet.verify(project, steps=5)
    assert verdict.passed, verdict.first_wrong
    (path,) = (tmp_path / "p").glob("**/*asinh_grad*.c")
    path.write_text(
        path.read_text().replace("/ gl_sqrt(", "/ (1e-3f + gl_sqrt(").replace("1.0f));", "1.0f)));")
    )
    assert not gradlet.verify(project, steps=1).passed


def test_the_example_from_onnx(rows: tuple[Any, ...], tmp_path: Path) -> None:
    node = onnx.helper.make_node("Asinh", ["x"], ["y"])
    infos = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", infos[:1], infos[1:]))
    onnx.save(model, tmp_path / "m.onnx")
    assert [node.op for node in capture_onnx(tmp_path / "m.onnx").nodes] == ["asinh"]


def test_the_rows_of_the_example(rows: tuple[Any, ...]) -> None:
    """As the table's own rows are tested: values, gradients, axes, tiles."""
    for case in rows:
        test_ops.test_reference_matches_torch(case)
        test_ops.test_gradients_match_autograd(case)
        test_ops.test_gradients_match_finite_differences(case)
        test_ops.test_axes_say_what_a_tile_reads(case)
        test_tiling.test_tiles_make_the_whole(case)
        values = next(iter(run_reference(op_training_graph(case), 1))).values
        assert all(np.isfinite(value).all() for value in values.values())


def test_nothing_of_the_example_stays_behind() -> None:
    assert "asinh" not in OPS
    assert "asinh" not in catalogue.families()
