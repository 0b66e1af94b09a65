"""A row of the case table for every op, with its gradients and an update, in narrow types: the same
bits on the simulated cluster, sanitizer on, and on the host, and right by PyTorch."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

import gradlet
from gradlet.errors import InternalError
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.check import check_graph
from gradlet.ir.elements import ELEMENTS, F32
from gradlet.kernels.catalogue import dtype_of
from gradlet.ops import OPS
from tests.cases import CASES, Case
from tests.helpers import fed, op_graph, op_training_graph
from tests.test_elements import project

NARROW = [element.name for element in ELEMENTS.values() if element.accumulate]
BY_OP: dict[str, list[Case]] = defaultdict(list)
for _case in CASES:
    if _case.dtype == F32.name and not _case.op.startswith("to_") and _case.op != "dropout":
        BY_OP[_case.op].append(_case)


def drawn(op: str, dtype: str) -> Case:
    return replace(random.Random(f"{op} {dtype}").choice(BY_OP[op]), dtype=dtype)


@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    "case", [drawn(op, dtype) for op in BY_OP for dtype in NARROW], ids=lambda case: case.id
)
def test_every_op_trains_in_narrow_types(case: Case, tmp_path: Path) -> None:
    graph = fed(op_training_graph(case, amid=False))
    check_graph(graph)
    built = project(graph, tmp_path / "row")
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.to_json()
    assert verdict.bit_identical == {"host": True, "sim": True}


def test_an_operand_of_another_type_than_the_kernels_is_told() -> None:
    """Statistics are in single precision, whatever the maps are."""
    case = next(case for case in BY_OP["frozen_norm"] if len(case.shapes) > 2)
    graph = op_graph(replace(case, dtype="f16"))
    (site,) = [site for site in graph.sites() if site.node.op == case.op]
    assert [tensor.dtype for tensor in site.ins[:3]] == ["f16", "f32", "f32"]
    lowering = OPS[case.op].lower(site)
    assert dtype_of(lowering.family, lowering.mode, site) == "f16"
    wrong = replace(site, ins=tuple(replace(tensor, dtype="f16") for tensor in site.ins))
    with pytest.raises(InternalError, match=r"needs .* in f32"):
        dtype_of(lowering.family, lowering.mode, wrong)


def test_a_loss_of_narrow_numbers_is_in_single_precision() -> None:
    builder = GraphBuilder("loss")
    x = builder.external("x", (2, 3), "input", "f16")
    target = builder.external("t", (2, 3), "target")
    assert builder.tensors[builder.add("mse", [x, target])].dtype == F32.name
