"""What of a module the tensors of a graph are, and how these start where a program stores them in a
narrower type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gradlet.ir.graph import Array, Graph
from gradlet.ops.learning.loss_scale import scale_of
from gradlet.oracle.interpreter import run_reference
from gradlet.support.extras import require_torch

Parts = tuple[tuple[str, Array], ...]
"""What of a module a tensor of the graph is: a parameter, and the places of its elements there."""


def places_of(places: Array) -> Any:
    """To index a tensor with; where all stand in a row that is a slice, which copies nothing."""
    ends = bool(places.size) and places[-1] - places[0] == places.size - 1
    if ends and bool((places[1:] > places[:-1]).all()):
        return slice(int(places[0]), int(places[-1]) + 1)
    return require_torch().from_numpy(places)


def round_as_stored(
    graph: Graph,
    every: Mapping[str, Any],
    origins: Collection[str] | None,
    parts_of: Callable[[str], Parts],
) -> None:
    """Let a module begin with the numbers that the program begins with."""
    torch = require_torch()
    for name in graph.data:
        tensor = graph.tensors[name]
        known = name in (origins or ()) or graph.own_name(name) in every
        if tensor.role not in ("param", "state") or not tensor.element.accumulate or not known:
            continue
        for path, places in parts_of(name):
            flat, where = every[path].detach().reshape(-1).clone(), places_of(places.reshape(-1))
            rounded = tensor.element.rounded(flat[where].to(torch.float32).numpy())
            flat[where] = torch.from_numpy(rounded).to(flat.dtype)
            every[path].data.copy_(flat.reshape(every[path].shape))


def skipped_steps(graph: Graph, steps: int) -> set[int]:
    """Steps that a program skips as its gradients overflow, which those of a module do not."""
    scale = scale_of(graph)
    if not scale:
        return set()
    counts = [int(step.state[scale][2]) for step in run_reference(graph, steps)]
    before = (0, *counts)
    return {index for index, count in enumerate(counts) if count > before[index]}
