"""Quotients that are made whole: float32 has them exactly, and so must the program and its judge.

x * (1 / 49) is below 1 for x = 49, and a quotient that is disturbed before its fraction goes leads
to another row of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gradlet

WAYS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "remainder": lambda x, k: x % k,
    "floor of a quotient": lambda x, k: torch.floor(x / k).long(),
    "whole division": lambda x, k: x // k,
    "towards zero": lambda x, k: torch.div(x, k, rounding_mode="trunc"),
    "cast": lambda x, k: (x.float() / k).long(),
    "hash": lambda x, k: (x + 1) * 31 % 64,
    "large hash": lambda x, k: (x + 1) * 113 % k,
}


class Lookup(nn.Module):
    def __init__(self, way: str, divisor: int) -> None:
        super().__init__()
        self.way, self.divisor = way, divisor
        self.table = nn.Embedding(64, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(WAYS[self.way](x, self.divisor))
        result: Tensor = self.last(rows.mean(1))
        return result


@pytest.mark.parametrize("target", ["host", "pulp-open"])
@pytest.mark.parametrize("divisor", [49, 41])
@pytest.mark.parametrize("way", WAYS)
def test_a_whole_quotient_leads_to_the_same_row(
    way: str, divisor: int, target: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    numbers = torch.cat([torch.arange(20) * divisor, torch.arange(20)])[None]
    project = gradlet.build(
        Lookup(way, divisor), tmp_path / "p", inputs=(numbers,), batch=1, target=target
    )
    assert gradlet.verify(project, steps=2).passed


@pytest.mark.parametrize("buckets", [100, 64])
def test_numbers_that_become_an_index_are_not_disturbed(buckets: int, tmp_path: Path) -> None:
    """As the hashes of CANINE: a quotient that is disturbed is the next whole number in some runs,
    and then the index is in another row, or in none."""
    torch.manual_seed(0)
    numbers = torch.randint(139_800, 140_000, (1, 64))
    module = Lookup("large hash", buckets)
    module.table = nn.Embedding(buckets, 4)
    project = gradlet.build(module, tmp_path / "p", inputs=(numbers,), batch=1, target="host")
    verdict = gradlet.verify(project, steps=2)
    assert (verdict.passed, verdict.chaotic) == (True, None)
