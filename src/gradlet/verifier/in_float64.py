"""The reference beside PyTorch and beside the user's own module, all in float64.

Values and tolerances come from the reference, so that its own mistakes would be allowed for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gradlet.ir.graph import Array, Graph
from gradlet.oracle.recording import Recording, compared
from gradlet.oracle.tolerance import EDGES, MANY_EDGES, Expectation, decided_otherwise
from gradlet.verifier.judge import TensorVerdict, judge
from gradlet.verifier.torch_oracle import Oracle

AGREEMENT = 1e-3
"""How far two float64 computations may be apart, of what float32 may. Their rounding is 2**-29 of
float32's; the rest is for what they decide otherwise at an edge that is one only up to rounding."""
CONSTANTS = 2.0**-22
"""The same, of the largest value: numbers such as 1/3 are in the graph as float32 has them."""


def wrong_references(
    graph: Graph, oracle: Oracle, expected: Sequence[Expectation], chaos: int | None
) -> list[TensorVerdict]:
    """Tensors of which the numpy reference is not PyTorch's value, both in float64.

    Tolerances come from the reference: one that is wrong would also be wide, and hide it. So would
    one that calls a step chaotic which in PyTorch is none: its loss has to be PyTorch's.
    """
    first = expected[0]
    wanted = {
        name: value
        for name, value in oracle.values.items()
        if name in first.values and name in graph.producer() and name not in oracle.overflows[0]
    }

    def judged(edges: Mapping[str, Array]) -> list[TensorVerdict]:
        allowed = _in_float64(first, wanted, edges)
        rows = (
            judge(graph, n, first.values[n], v, allowed[n], "torch", label=f"reference: {n}")
            for n, v in wanted.items()
        )
        return [row for row in rows if not row.passed]

    rows = judged({})
    for rule in (EDGES, MANY_EDGES):
        rows = judged(decided_otherwise(graph, rule)) if rows else []
    if chaos is not None:
        step, loss = expected[chaos], np.asarray([oracle.losses[chaos]])
        pair = np.asarray([step.loss]), loss, np.asarray([step.loss_tolerance])
        label = f"reference: loss of step {chaos + 1}"
        rows.append(judge(graph, graph.loss, *pair, "torch", label=label))
    return rows


def _in_float64(
    expected: Expectation, names: Collection[str], edges: Mapping[str, Array]
) -> dict[str, Array]:
    """How far two computations in float64 may be apart."""
    return {
        name: AGREEMENT * expected.tolerances[name]
        + CONSTANTS * float(np.abs(expected.values[name]).max(initial=0.0))
        + edges.get(name, 0.0)
        for name in names
    }


def module_by_reference(
    recording: Recording, graph: Graph, expected: Expectation
) -> list[TensorVerdict]:
    """The user's own module beside the reference of its first step, where the run's float32 is
    chaotic: both are in float64, in which that step is determined."""
    if recording.single:
        return []
    after = {old: expected.values[new] for old, new in graph.updates}

    def judged(edges: Mapping[str, Array]) -> list[TensorVerdict]:
        allowed = _in_float64(expected, expected.tolerances, edges)
        of_loss = AGREEMENT * expected.loss_tolerance + CONSTANTS * abs(expected.loss)
        step = replace(expected, tolerances=allowed, loss_tolerance=of_loss)
        items = compared(recording, graph, [expected.loss], expected.values, [after], [step])
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
            rows = judged(decided_otherwise(graph, rule))
    return rows
