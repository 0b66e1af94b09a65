"""Kernels in assembler against their C natives: the same bits on the simulated cluster and here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TypeVar

from gradlet.kernels.lab.native import NativeReference, same_bits
from gradlet.ops.base import Size
from gradlet.targets.target import Target
from gradlet.targets.target import load as load_target

__all__ = ["NativeReference", "cluster", "distinct", "same_bits"]

Job = TypeVar("Job")


@cache
def cluster(cores: int = 8) -> Target:
    return load_target("pulp-open", cores=cores, sizes={"L1": "256k"})


def distinct(
    jobs: Iterable[Job], count: int, sizes: Callable[[Job], Mapping[str, Size]]
) -> Iterator[Job]:
    """Of jobs without an end the first `count` with sizes that none before them has."""
    seen: set[tuple[tuple[str, Size], ...]] = set()
    for job in jobs:
        key = tuple(sorted(sizes(job).items()))
        if key not in seen:
            seen.add(key)
            yield job
        if len(seen) == count:
            return
