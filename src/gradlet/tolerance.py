"""What to expect of a training run, and how far a correct one may be away from it.

The expected values are those of the float64 reference. The tolerance comes from running the same
reference with each node's result disturbed by what its dtype and the length of its reductions
allow (see reference.py): cancellation, depth, and decisions on the edge (a ReLU at 0, a tie in a
max-pool) all show up in it, element by element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradlet.graph import Array, Graph
from gradlet.reference import Step, run_reference

TRIALS = 4
MARGIN = 4.0
"""Real rounding errors are no uniform draws: four times the largest of four draws leaves room. A
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
    every_tensor: int = 1,
) -> list[Expectation]:
    """`steps` training steps; tensors of the first `every_tensor`, states of all."""
    exact = _kept(graph, steps, overrides, every_tensor, None)
    noisy = [_kept(graph, steps, overrides, every_tensor, trial) for trial in range(TRIALS)]
    return [
        _expectation(values, loss, [(run[i][0], run[i][1]) for run in noisy])
        for i, (values, loss) in enumerate(exact)
    ]


def _kept(
    graph: Graph,
    steps: int,
    overrides: Mapping[str, Array] | None,
    every_tensor: int,
    noise: int | None,
) -> list[tuple[dict[str, Array], float]]:
    kept = []
    run = run_reference(graph, steps, overrides=overrides, noise=noise)
    for index, step in enumerate(run):
        kept.append((_values(graph, step, full=index < every_tensor), step.loss))
    return kept


def _values(graph: Graph, step: Step, *, full: bool) -> dict[str, Array]:
    after = {new: step.state[old] for old, new in graph.updates}
    if not full:
        return {**after, **{name: step.values[name] for name in graph.outputs}}
    return {name: value for name, value in step.values.items() if value.dtype.kind == "f"}


def _expectation(
    values: Mapping[str, Array], loss: float, trials: Sequence[tuple[Mapping[str, Array], float]]
) -> Expectation:
    tolerances = {}
    for name, value in values.items():
        deviation = np.max([np.abs(trial[name] - value) for trial, _ in trials], axis=0)
        typical = float(np.sqrt(np.mean(np.square(deviation)))) if value.size else 0.0
        tolerances[name] = MARGIN * np.maximum(deviation, min(typical, _typical(deviation)))
    deviation_of_loss = max(abs(trial_loss - loss) for _, trial_loss in trials)
    # a mean over few numbers can be hit exactly by chance; its own rounding always remains
    floor = 2.0**-24 * abs(loss)
    return Expectation(values, tolerances, loss, MARGIN * max(deviation_of_loss, floor))


def _typical(deviation: Array) -> float:
    """An ordinary deviation, blind to the few elements where a decision flipped."""
    return float(np.quantile(deviation, 0.9)) if deviation.size else 0.0
