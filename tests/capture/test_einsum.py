"""Sums over letters of any kind, and products that are such sums: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.capture.onnx_models import build_model, capture, make, random
from tests.capture.test_products import check

SUMS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij,jk": ((2, 3), (3, 4)),
    "ba,ac": ((2, 3), (3, 4)),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "bhid,bhjd->bhij": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "bi,bj->bji": ((2, 3), (2, 4)),
    "ij->ji": ((2, 3),),
    "ij->": ((2, 3),),
    "ij->j": ((2, 3),),
    "ii->": ((3, 3),),
    "ii->i": ((3, 3),),
    "bii->bi": ((2, 3, 3),),
    "iji->j": ((3, 2, 3),),
    "iii->i": ((3, 3, 3),),
    "ii,ij->j": ((3, 3), (3, 4)),
    "i,j->ij": ((2,), (3,)),
    "i,i->": ((3,), (3,)),
    "i,i->i": ((3,), (3,)),
    "ij,kl->": ((2, 3), (4, 5)),
    "ij,kl->ki": ((2, 3), (4, 5)),
    "ij,j->ij": ((2, 3), (3,)),
    "...ij,...jk->...ik": ((2, 3, 4, 5), (5, 2)),
    "...i,...i->...": ((2, 3, 4), (3, 4)),
    "i...->...": ((2, 3, 4),),
    "...ij": ((2, 3, 4),),
    "ij,...->...i": ((2, 3), (4, 5)),
    "bij,bjk->bik ": ((1, 3, 4), (2, 4, 5)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
    "ij,ij,ij->i": ((2, 3), (2, 3), (2, 3)),
    "i,ij,j->": ((2,), (2, 3), (3,)),
    "a,b,c,d->dcba": ((2,), (3,), (1,), (2,)),
    "ij,ik->jk": ((1, 1), (1, 1)),
    "Aa,aA->A": ((2, 3), (3, 2)),
}


@pytest.mark.parametrize("equation", SUMS)
def test_sums(equation: str) -> None:
    check(lambda *operands: torch.einsum(equation, *operands), *SUMS[equation])


WAYS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "outer": (torch.outer, ((3,), (4,))),
    "vdot": (torch.vdot, ((5,), (5,))),
    "kron": (torch.kron, ((2, 3), (4,))),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), ((2, 3, 4), (3, 4, 5))),
    "tensordot of none": (lambda a, b: torch.tensordot(a, b, 0), ((2,), (3, 2))),
    "tensordot by dims": (
        lambda a, b: torch.tensordot(a, b, ([0, 2], [1, -1])),
        ((2, 3, 4), (5, 2, 4)),
    ),
    "addr": (lambda c, a, b: torch.addr(c, a, b, beta=0.5, alpha=2), ((3, 4), (3,), (4,))),
    "addbmm": (torch.addbmm, ((3, 2), (4, 3, 5), (4, 5, 2))),
    "multi_dot": (lambda *m: torch.linalg.multi_dot(m), ((3,), (3, 4), (4, 2))),
    "trace": (torch.trace, ((3, 4),)),
    "diagonal": (lambda a: torch.diagonal(a, 1, 0, 2), ((3, 2, 5),)),
    "diagonal below": (lambda a: torch.diagonal(a, -2), ((4, 3),)),
    "cdist": (torch.cdist, ((2, 3, 4), (2, 5, 4))),
    "cdist by sizes": (lambda a, b: torch.cdist(a, b, p=1.0), ((3, 4), (5, 4))),
}


@pytest.mark.parametrize("way", WAYS)
def test_products_that_are_sums(way: str) -> None:
    compute, shapes = WAYS[way]
    check(compute, *shapes)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "...i,...i->...", "ii->i", "ij->"])
def test_onnx(equation: str, tmp_path: Path) -> None:
    weights = {f"w{n}": random(3, 3) for n in range(equation.count(",") + 1)}
    nodes = [
        make("Einsum", list(weights), ["s"], equation=equation),
        make("Add", ["x", "s"], ["y"]),
    ]
    graph = capture(build_model(nodes, {"x": [1, 3, 3]}, weights), tmp_path)
    assert {name for name in weights if graph.tensors[name].role == "param"} == set(weights)
