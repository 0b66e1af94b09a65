"""The example of docs/add-an-op.md as it stands there: captured, built, verified, breakable."""

from __future__ import annotations

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
from gradlet.ops import OPS
from gradlet.oracle.interpreter import run_reference
from gradlet.planner.planner import plan
from gradlet.targets.target import load as load_target
from tests import test_ops, test_tiling
from tests.doc_examples import added
from tests.helpers import op_training_graph


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[tuple[Any, ...]]:
    """The op and its kernels, for one test; its rows of the table."""
    with added("add-an-op.md", tmp_path / "kernels") as space:
        yield space["ROWS"]


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
