"""Kernels in assembler against their C twins: the same bits on the simulated cluster and here."""

from __future__ import annotations

from functools import cache

from gradlet.target import Target
from gradlet.target import load as load_target
from gradlet.twins import Twins, same_bits

__all__ = ["Twins", "cluster", "same_bits"]


@cache
def cluster(cores: int = 8) -> Target:
    return load_target("pulp-open", cores=cores, sizes={"L1": "256k"})
