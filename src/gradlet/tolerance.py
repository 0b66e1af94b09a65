"""What to expect of a training run, and how far a correct one may be away from it.

The expected values are those of the float64 reference. The tolerance has two parts, element by
element: what the node itself may add by rounding, from its dtype and the length of its reductions;
and what comes in from before, seen by running the reference again with every node disturbed by
that much. Cancellation, depth, and decisions on the edge (a ReLU at 0) all show up in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradlet.graph import Array, Graph
from gradlet.reference import Disturbance, Spread, Step, evaluate, run_reference

TRIALS = 3
MARGIN = 4.0
"""Real rounding errors are no uniform draws: four times the largest of a few draws leaves room. A
wrong kernel exceeds it all the same, being wrong by the size of values, not of their last bits."""


@dataclass(frozen=True)
class Expectation:
    """Per step: values, allowed deviations by the same names, loss and its tolerance."""

    values: Mapping[str, Array]
    tolerances: Mapping[str, Array]
    loss: float
    loss_tolerance: float


def expect(
    graph: Graph,
    steps: int,
    *,
    overrides: Mapping[str, Array] | None = None,
) -> list[Expectation]:
    """`steps` training steps: all tensors of the first, outputs and states of the others."""
    spreads: list[Spread] = []
    exact = _kept(graph, run_reference(graph, steps, overrides=overrides, measured=spreads))
    trials = []
    for seed in range(TRIALS):
        noise = Disturbance(seed, spreads)
        trials.append(
            _kept(graph, run_reference(graph, steps, overrides=overrides, disturbance=noise))
        )
    last = spreads[graph.accumulate - 1 :: graph.accumulate]
    return [
        _expectation(graph, exact[i], [trial[i] for trial in trials], last[i]) for i in range(steps)
    ]


def expect_forward(
    graph: Graph, start: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """What the forward pass makes of some values, and how far float32 may be off."""
    spread: Spread = {}
    exact = dict(start)
    evaluate(graph, exact, ("forward",), spread=spread, measure=True)
    trials = []
    for seed in range(TRIALS):
        trials.append(dict(start))
        evaluate(graph, trials[-1], ("forward",), spread=spread, seed=seed)
    return exact, {name: _tolerance(exact, trials, spread, name) for name in graph.outputs}


Kept = tuple[dict[str, Array], float]


def _kept(graph: Graph, run: Iterator[Step]) -> list[Kept]:
    """Values and loss of each step; all tensors of the first, outputs and states of the others."""
    return [(_values(graph, step, full=index == 0), step.loss) for index, step in enumerate(run)]


def _values(graph: Graph, step: Step, *, full: bool) -> dict[str, Array]:
    after = {new: step.state[old] for old, new in graph.updates}
    if not full:
        return {**after, **{name: step.values[name] for name in graph.outputs}}
    return dict(step.values)


def _expectation(graph: Graph, exact: Kept, trials: Sequence[Kept], spread: Spread) -> Expectation:
    values, loss = exact
    others = [trial for trial, _ in trials]
    tolerances = {name: _tolerance(values, others, spread, name) for name in values}
    deviation_of_loss = max(abs(trial_loss - loss) for _, trial_loss in trials)
    own_of_loss = float(spread[graph.loss])
    return Expectation(values, tolerances, loss, MARGIN * max(deviation_of_loss, own_of_loss))


def _tolerance(
    exact: Mapping[str, Array], trials: Sequence[Mapping[str, Array]], spread: Spread, name: str
) -> Array:
    deviation = np.max([np.abs(trial[name] - exact[name]) for trial in trials], axis=0)
    deviation = np.nan_to_num(deviation, nan=0.0)  # where the result itself is no number
    own = spread.get(name, np.zeros_like(exact[name]))
    result: Array = MARGIN * np.maximum(np.maximum(deviation, _typical(deviation)), own)
    return result


def _typical(deviation: Array) -> float:
    """An ordinary deviation, blind to the few elements where a decision flipped."""
    return float(np.quantile(deviation, 0.9))
