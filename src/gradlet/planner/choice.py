"""Which kernels are worth looking at where some round more than plain sums do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradlet.kernels.catalogue import Kernel, modelled_cost
from gradlet.kernels.traits import is_exact
from gradlet.ops.base import Size
from gradlet.targets.target import Target


def worthwhile(
    found: Sequence[Kernel], sizes: Mapping[str, Size], macs: int, target: Target
) -> list[Kernel]:
    """Without those that round more than plain sums, and are not thought to be quicker."""
    cost, cores = target.cost, target.cores
    plain = macs * cost.mac / cores + cost.mac_start
    return [k for k in found if is_exact(k) or modelled_cost(k, sizes, cores, cost) < plain]


def rivals(found: Sequence[Kernel]) -> list[Kernel]:
    """Of candidates, the last one being the first choice, those that a tiling of their own may
    make the better one: each that is not exact, and the best that is."""
    exact = [kernel for kernel in found if is_exact(kernel)]
    others = [kernel for kernel in found if not is_exact(kernel)]
    return [*others[::-1], *exact[-1:]] if others else []
