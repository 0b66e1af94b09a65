"""The same layers with weights that lie far away, and are fetched in pieces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from tests.xpulp.test_recurrent import FAMILIES, check

USED = [k for k in catalogue.kernels() if k.family in FAMILIES and k.variant.startswith("stream")]


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_a_thousand_scans(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    check(kernel, tmp_path, part_of(500), level="L2")
