"""Lookups, writes by index and sorting: what PyTorch computes, and its gradients, by the module
itself; then in C, on the host and on the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto
from torch import Tensor, nn

import gradlet
from gradlet.engines import host, sim
from gradlet.frontends.passes.guard import guarded
from gradlet.frontends.torch.program import capture_module
from gradlet.ops import OPS
from tests.capture.onnx_models import build_model, capture, make, random
from tests.capture.test_torch_gradients import Calls, assert_module_gradients

Function = Callable[[Tensor, Tensor], Tensor]
INDEX = torch.tensor([[2, 0, 1, 2], [1, 1, 0, 0], [2, 2, 2, 2]])
WAYS: dict[str, Function] = {
    # x is [batch, 3, 5], w is [5]
    "gather_const": lambda x, w: (x * w).gather(2, INDEX.expand(len(x), 3, 4)),
    "gather_fewer": lambda x, w: (x * w).gather(1, torch.tensor([[[2, 0]]]).expand(len(x), 1, 2)),
    "gather_computed": lambda x, w: (x * w).gather(2, x.argsort(2)[:, :, :3]),
    "gather_negative": lambda x, w: (x * w)[:, torch.tensor([-1, 0, -1])],
    "take_along": lambda x, w: torch.take_along_dim(x * w, x.argmax(1, keepdim=True), 1),
    "take_along_wide": lambda x, w: torch.take_along_dim(x * w, torch.tensor([[[4, 0, 0]]]), 2),
    "index_select": lambda x, w: (x * w).index_select(2, torch.tensor([4, 4, 1, 0])),
    "index_two": lambda x, w: (x * w)[:, torch.tensor([0, 2, 2]), torch.tensor([4, 0, -1])],
    "index_apart": lambda x, w: (x * w)[torch.tensor([0, 0]), :, torch.tensor([1, 3])],
    "index_outer": lambda x, w: (x * w)[:, torch.tensor([[0], [2]]), torch.tensor([[4, 0]])],
    "index_computed": lambda x, w: (x * w)[torch.arange(len(x)), x.argmax(1)[:, 0]],
    "index_three": lambda x, w: (x * w)[
        torch.arange(len(x))[:, None], torch.tensor([[0, 2]]), x.argmax(2)[:, :2]
    ],
    "index_arithmetic": lambda x, w: (x * w)[torch.arange(len(x)), x.argmax(1)[:, 0] - 3],
    "scatter": lambda x, w: (x * 2).scatter(
        1, torch.tensor([[[2], [0]]]).expand(len(x), 2, 4), (x * w)[:, :2, :4]
    ),
    "scatter_value": lambda x, w: (x * w).scatter(2, x.argmax(2, keepdim=True), 0.5),
    "scatter_add": lambda x, w: (x * w).scatter_add(
        2, INDEX[:, :3].expand(len(x), 3, 3), (x * x)[:, :, 1:4]
    ),
    "scatter_sum": lambda x, w: (x * w).scatter_reduce(2, x.argsort(2), x, "sum"),
    "index_add": lambda x, w: (x * w).index_add(1, torch.tensor([2, 2]), x[:, :2], alpha=3),
    "index_copy": lambda x, w: (x * w).index_copy(2, torch.tensor([4, 1]), x[:, :, :2]),
    "index_fill": lambda x, w: (x * w).index_fill(1, torch.tensor([1]), 0.25),
    "index_put": lambda x, w: (x * w).index_put((torch.arange(len(x)), x.argmax(1)[:, 0]), w[:5]),
    "index_put_add": lambda x, w: (x * w).index_put(
        (torch.zeros(len(x), dtype=torch.long), torch.tensor(1)), w, accumulate=True
    ),
    "one_hot": lambda x, w: x * F.one_hot(x.argmax(2), 5) * w,
    "sort": lambda x, w: (x * w).sort(2)[0] * w,
    "sort_descending": lambda x, w: (x * w).sort(1, descending=True)[0],
    "sort_both": lambda x, w: (x * w).sort(2)[0] * x.gather(2, (x * w).sort(2)[1]),
    "msort": lambda x, w: torch.msort(x * w),
    "topk": lambda x, w: (x * w).topk(2, dim=2)[0],
    "topk_smallest": lambda x, w: (x * w).topk(3, dim=1, largest=False)[0],
    "topk_places": lambda x, w: x.gather(2, (x * w).topk(2)[1]) * w[:2],
    "max_places": lambda x, w: x.gather(2, (x * w).max(2, keepdim=True)[1]) * w[0],
    "max_both": lambda x, w: (x * w).max(2)[0] + (x * w).min(2)[1],
    "argmax_number": lambda x, w: x * w * (x.argmax(2, keepdim=True) + 1),
    "argmin_all": lambda x, w: x * w + x.argmin(),
    "kthvalue": lambda x, w: (x * w).kthvalue(4, 2)[0],
    "median": lambda x, w: (x * w).median(1, keepdim=True)[0],
    "median_all": lambda x, w: (x * w).median() * w,
    "amax": lambda x, w: (x * w).amax((1, 2)) + (x * w).amin(2, keepdim=True).sum((1, 2)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", [1, 2])
def test_values_and_gradients(way: str, batch: int) -> None:
    torch.manual_seed(3)
    assert_module_gradients(Calls(WAYS[way], (3, 5)), (torch.randn(batch, 6),))


class Everything(nn.Module):
    """One of each kind, small enough for the memory near the cores, or tiled in a smaller one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 15)
        self.out = nn.Linear(15, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).reshape(-1, 3, 5)
        best, places = y.topk(2, dim=2)
        y = y.scatter(2, places, best * 0.5).scatter_add(1, y.argsort(1), y)
        y = y[:, torch.tensor([2, 0, 2])] + y.gather(2, y.argmax(1, keepdim=True).expand(-1, 3, -1))
        y = y + F.one_hot(y.argmin(2), 5) * y.sort(2)[0]
        return self.out(y.flatten(1))


@pytest.mark.parametrize("target", ["host", "pulp-open"])
def test_in_c(target: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    project = gradlet.build(
        Everything(), tmp_path / "p", inputs=torch.randn(2, 6), batch=2, target=target
    )
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, str(verdict)


class Rows(nn.Module):
    """Rows of a weight by integers that come at run time, and what becomes of them as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 5, 3))
        self.out = nn.Linear(3, 2)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        y = self.table[first, second] * (first + 1).unsqueeze(1)
        return self.out(y)


def test_indices_at_run_time(tmp_path: Path) -> None:
    """Negative ones count from the end; one that leads out makes the loss NaN, and no weight."""
    torch.manual_seed(5)
    inputs = (torch.tensor([0, 3]), torch.tensor([-1, 2]))
    project = gradlet.build(Rows(), tmp_path / "p", inputs=inputs, batch=2)
    assert gradlet.verify(project).passed
    first, second = project.plan.graph.inputs
    for bad in (5, -6, 2**31 - 1, -(2**31)):
        samples = {first: np.array([[1, 2]], np.int32), second: np.array([[0, bad]], np.int32)}
        runs = [
            host.run(project, samples=samples, states=True),
            sim.run(project, samples=samples, states=True, sanitize=True),
        ]
        for run in runs:
            assert np.isnan(run.loss[0])
            weights = project.plan.graph.trained
            assert all(np.isfinite(run.states[0][name]).all() for name in weights)


def test_only_what_comes_at_run_time_is_guarded() -> None:
    torch.manual_seed(3)
    known = capture_module(Calls(WAYS["index_two"], (3, 5)), torch.randn(2, 6), name="m")
    sorted_out = capture_module(Calls(WAYS["topk_places"], (3, 5)), torch.randn(2, 6), name="m")
    for graph in (known, sorted_out):
        assert guarded(graph) is graph


@pytest.mark.parametrize("op", ["GatherElements", "GatherND", "ScatterElements", "ScatterND"])
def test_onnx_with_indices_as_input(op: str, tmp_path: Path) -> None:
    new = {"new": random(2, 2)} if op == "ScatterElements" else {"new": random(2)}
    operands = ["x", "ids", *(new if "Scatter" in op else ())]
    nodes = [make("Mul", ["a", "w"], ["x"]), make(op, operands, ["y"])]
    weights: dict[str, Any] = {"w": random(2, 2), **(new if "Scatter" in op else {})}
    model = build_model(nodes, {"a": [2, 2], "ids": [2, 2]}, weights)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    graph = capture(model, tmp_path)  # which compares with ONNX's own evaluator
    assert graph.samples["ids"].dtype == np.int32


def test_the_reference_reads_zeros_outside_of_a_table() -> None:
    """As the kernels do; in a disturbed run a computed index may be another one."""
    table, index = np.arange(6.0).reshape(3, 2), np.array([2, 3, -1], np.int32)
    (rows,) = OPS["gather"].reference({"skip": -1}, table, index)
    assert rows.tolist() == [[4, 5], [0, 0], [0, 0]]
    (sums,) = OPS["gather_grad"].reference({"rows": 3, "skip": -1}, np.ones((3, 2)), index)
    assert sums.tolist() == [[0, 0], [0, 0], [1, 1]]


class Hashed(nn.Module):
    """Rows by an index that is computed from ids."""

    def __init__(self, index: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.index = index
        self.rows = nn.Embedding(64, 3)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.rows(self.index(ids)).mean(1)
        return found


def far_ids() -> Tensor:
    """Whole numbers that float32 does not have, none near a multiple of 2^20."""
    return torch.tensor([[21222529, 50789087, 10200950, 54012717]])


def test_ids_beyond_float32_may_lead_to_the_same_rows(tmp_path: Path) -> None:
    """What rounds them moves no index, and is no mistake of the program."""
    torch.manual_seed(0)
    ids = far_ids()
    assert not torch.equal(ids, ids.float().long())
    project = gradlet.build(
        Hashed(lambda x: x // 2**20), tmp_path / "p", inputs=(ids,), target="host"
    )
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed
    assert verdict.steps == 2


@pytest.mark.parametrize("index", [lambda x: x % 64, lambda x: (x - 1) % 64, lambda x: x % 7 * 2])
def test_indices_that_float32_cannot_compute_are_refused(index: Any) -> None:
    with pytest.raises(gradlet.GradletError, match=r"'rows'.*whole numbers up to 5\d,\d+,\d+"):
        gradlet.capture(Hashed(index), (far_ids(),))
