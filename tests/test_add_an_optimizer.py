"""The example of docs/add-an-optimizer.md as it stands there: built, fused, verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradlet
from gradlet.codegen.project import Project
from gradlet.kernels import catalogue
from gradlet.oracle.interpreter import run_reference
from tests.cases.optimizer import trained
from tests.doc_examples import added, blocks
from tests.helpers import op_training_graph
from tests.pulp.support import device_project, model_graph
from tests.test_end_to_end import assert_passes, break_file, project_of

PAGE = "add-an-optimizer.md"
NAME = "mean_sgd"


@pytest.fixture
def way(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The optimizer registered and its kernels in the catalogue, for one test; its settings."""
    with added(PAGE, tmp_path / "kernels") as space:
        yield space["WAYS"][0]


def on_host(way: dict[str, Any], folder: Path, **options: Any) -> Project:
    return project_of("lenet", folder, optimizer=NAME, beta1=way["beta1"], **options)


def test_it_takes_four_files() -> None:
    assert len(blocks(PAGE)) == 4
    assert NAME not in catalogue.epilogues()


def test_fused_on_the_host(way: dict[str, Any], tmp_path: Path) -> None:
    project = on_host(way, tmp_path / "p", cores=3)
    fused = [call.kernel.family for call in project.plan.calls if call.kernel.epilogue == NAME]
    assert {"gemm", "conv2d"} <= set(fused)
    verdict = assert_passes(project, steps=20)
    assert all(row.oracle == "torch" for row in verdict.tensors if row.role == "updated")
    break_file(project, f"kernels/*gemm_tn_{NAME}*.c", "(1.0f - hyper[2])", "(1.001f - hyper[2])")
    assert not gradlet.verify(project, steps=2).passed


def test_the_fusion_changes_no_bit(way: dict[str, Any], tmp_path: Path) -> None:
    runs = []
    for fuse in (False, True):
        project = on_host(way, tmp_path / str(fuse), fuse=fuse)
        assert any(call.updates for call in project.plan.calls) == fuse
        runs.append(gradlet.run(project, steps=5, states=True).states[-1])
    for name, value in runs[0].items():
        assert np.array_equal(value, runs[1][name])


def test_on_the_cluster(way: dict[str, Any], tmp_path: Path) -> None:
    """A call of its own behind the kernels that have other stores."""
    project = device_project(model_graph("lenet", **way), tmp_path / "p")
    kernels = {call.kernel.variant for call in project.plan.calls if call.kernel.epilogue == NAME}
    assert not any("hold" in variant for variant in kernels)
    assert any(call.kernel.mode == NAME for call in project.plan.calls)
    assert gradlet.verify(project, steps=2, engine="sim").passed


def test_the_rows_of_the_example(way: dict[str, Any]) -> None:
    graph = op_training_graph(trained((3, 7), (7,), **way))
    assert NAME in {node.op for node in graph.nodes}
    assert all(np.isfinite(v).all() for v in next(iter(run_reference(graph, 1))).values.values())


def test_unknown_optimizers_are_told_with_it(way: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(gradlet.GradletError, match=f"there are sgd, adam, adamw, {NAME}"):
        project_of("lenet", tmp_path / "p", optimizer="lion")
