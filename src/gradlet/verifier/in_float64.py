"""The reference beside PyTorch and beside the user's own module, all in float64.

Values and tolerances come from the reference, so that its own mistakes would be allowed for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from gradlet.ir.graph import Array, Graph
from gradlet.oracle.recording import Recording, compared
from gradlet.oracle.scatter import EDGES, MANY_EDGES
from gradlet.oracle.tolerance import Expectation, decided_otherwise
from gradlet.verifier.judge import TensorVerdict, judge
from gradlet.verifier.torch_oracle import Oracle

AGREEMENT = 1e-3
"""How far two float64 computations may be apart, of what float32 may. Their rounding is 2**-29 of
float32's; the rest is for what they decide otherwise at an edge that is one only up to rounding."""
CONSTANTS = 2.0**-22
"""The same, of the largest value: numbers such as 1/3 are in the graph as float32 has them."""


def wrong_references(graph: Graph, oracle: Oracle, first: Expectation) -> list[TensorVerdict]:
    """Tensors of the first step of which the numpy reference is not PyTorch's value, both in
    float64. Tolerances come from the reference: one that is wrong would also be wide, and hide it.
    """
    wanted = {
        name: value
        for name, value in oracle.values.items()
        if name in first.values and name in graph.producer() and name not in oracle.overflows[0]
    }

    def judged(names: Collection[str], edges: Mapping[str, Array]) -> list[TensorVerdict]:
        allowed = ((name, _in_float64(first, name, edges)) for name in names)
        rows = (
            judge(graph, n, first.values[n], wanted[n], tol, "torch", label=f"reference: {n}")
            for n, tol in allowed
        )
        return [row for row in rows if not row.passed]

    rows = judged(wanted, {})
    for rule in (EDGES, MANY_EDGES):
        names = [row.tensor for row in rows]
        rows = judged(names, decided_otherwise(graph, names, rule)) if rows else []
    return rows


def wrong_loss(graph: Graph, oracle: Oracle, step: Expectation, index: int) -> TensorVerdict:
    """A reference that calls a step chaotic which in PyTorch is none hides what is wrong in it: the
    loss of that step has to be PyTorch's."""
    values = np.asarray([step.loss]), np.asarray([oracle.losses[index]])
    allowed, label = np.asarray([step.loss_tolerance]), f"reference: loss of step {index + 1}"
    return judge(graph, graph.loss, *values, allowed, "torch", label=label, step=index + 1)


def _in_float64(expected: Expectation, name: str, edges: Mapping[str, Array]) -> Array:
    """How far two computations in float64 may be apart."""
    largest = float(np.abs(expected.values[name]).max(initial=0.0))
    allowed = AGREEMENT * expected.tolerances[name] + CONSTANTS * largest
    return allowed + edges[name] if name in edges else allowed


def module_by_reference(
    recording: Recording, graph: Graph, expected: Expectation
) -> list[TensorVerdict]:
    """The user's own module beside the reference of its first step, where the run's float32 is
    chaotic: both are in float64, in which that step is determined."""
    if recording.single:
        return []
    after = {old: expected.values[new] for old, new in graph.updates}

    def judged(edges: Mapping[str, Array]) -> list[TensorVerdict]:
        allowed = {name: _in_float64(expected, name, edges) for name in expected.tolerances}
        of_loss = AGREEMENT * expected.loss_tolerance + CONSTANTS * abs(expected.loss)
        step = replace(expected, tolerances=allowed, loss_tolerance=of_loss)
        items = compared(recording, graph, 0, expected.loss, expected.values, after, step)
        return [
            judge(
                graph,
                item.tensor,
                *(item.computed, item.wanted, item.tolerance),
                "module",
                label=f"module: {item.name}, in float64",
            )
            for item in items
        ]

    rows = judged({})
    for rule in (EDGES, MANY_EDGES):
        if not all(row.passed for row in rows):
            rows = judged(decided_otherwise(graph, [row.tensor for row in rows], rule))
    return rows
