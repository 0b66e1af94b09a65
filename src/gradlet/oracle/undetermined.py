"""Training that float32 does not determine: rounding alone decides what comes out.

Tolerances take errors for small ones, which travel in proportion. Where rounding moves the results
of a step by a part of their own size that is not so, and what is allowed is too narrow for some
correct programs and too wide for wrong ones. Such steps are known by the tolerances themselves,
which come from the reference alone. Of the first step, each node can still be judged by itself, on
what the program computed before it: there rounding has no way to travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gradlet.ir.graph import Array, Graph
from gradlet.oracle.interpreter import Spread, before_last_micro_batch, evaluate, wide
from gradlet.oracle.scatter import Rule, Scatter
from gradlet.oracle.tolerance import Expectation

UNDETERMINED = 0.1
"""Of the values: where float32 may be off by more, it does not determine them. A choice; what is
allowed is about ten times what rounding usually does."""


def first_undetermined(graph: Graph, expected: Sequence[Expectation]) -> int | None:
    """The first step whose loss and whose outputs float32 does not determine.

    Both: a loss near 0 is nothing but rounding in a network that fits well, and so are outputs that
    are 0 in truth, as the mean behind a norm is.
    """
    return next((i for i, step in enumerate(expected) if is_undetermined(graph, step)), None)


def is_undetermined(graph: Graph, step: Expectation) -> bool:
    loss = step.loss_tolerance > UNDETERMINED * abs(step.loss)
    return loss and any(not _is_known(step, name) for name in graph.outputs)


def _is_known(step: Expectation, name: str) -> bool:
    largest, allowed = (
        float(np.abs(values[name]).max(initial=0.0)) for values in (step.values, step.tolerances)
    )
    return allowed <= UNDETERMINED * largest or allowed == 0


def determined(graph: Graph, step: Expectation) -> set[str]:
    """The tensors of a step that float32 determines, and with them all that they are made of."""
    known = {name for name in graph.tensors if name not in graph.producer()}
    for node in graph.nodes:
        if all(name in known for name in node.inputs):
            known |= {n for n in node.outputs if n in step.values and _is_known(step, n)}
    return known & set(step.values)


def expect_nodes(
    graph: Graph, computed: Mapping[str, Array], *, rule: Rule
) -> dict[str, tuple[Array, Array]]:
    """What every node of the first step makes of what the program computed before it, and how far
    float32 may be off then. What the program does not show is computed from what it does.

    With accumulation that is the last micro-batch; what the ones before have left is not known, nor
    is what is made of it.
    """
    given = {name: wide(value) for name, value in computed.items()}
    unknown = _left_by_others(graph)
    for node in graph.nodes:
        if any(name in unknown and name not in given for name in node.inputs):
            unknown |= set(node.outputs)
    names = [name for name in graph.producer() if name not in unknown]
    start = before_last_micro_batch(graph)
    spread: Spread = {}
    with np.errstate(all="ignore"):
        exact = dict(start)
        evaluate(graph, exact, spread=spread, measure=True, given=given)
        scatter = Scatter(rule, {name: exact[name] for name in names})
        for draw in range(rule.draws):
            values = dict(start)
            seed, size = rule.seed + draw, rule.amplitude
            evaluate(graph, values, spread=spread, seed=seed, amplitude=size, given=given)
            for name in names:
                scatter.add(name, values[name])
        count = sum(exact[name].size for name in names)
        return {name: (exact[name], scatter.tolerance(name, spread, count)) for name in names}


def _left_by_others(graph: Graph) -> set[str]:
    """Numbers that every micro-batch changes: sums of gradients, statistics of batches."""
    if graph.accumulate == 1:
        return set()
    made = graph.producer()
    return {
        old
        for old, new in graph.updates
        if made[new].phase != "update" and graph.tensors[old].element.is_float
    }
