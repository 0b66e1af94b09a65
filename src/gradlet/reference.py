"""Runs a training graph in numpy: the ops' own references, in float64, step by step.

With `noise` each node's result is disturbed as rounding in a lower precision would disturb it.
How far that drives a tensor is the error that the precision itself allows; verify takes its
tolerances from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gradlet.dtypes import DTYPES
from gradlet.graph import Array, Graph, Site
from gradlet.ops import OPS


@dataclass(frozen=True)
class Step:
    """Every value of one training step: the last micro-batch's tensors, and the state after."""

    values: Mapping[str, Array]
    loss: float
    state: Mapping[str, Array]


def run_reference(
    graph: Graph,
    steps: int,
    *,
    overrides: Mapping[str, Array] | None = None,
    noise: np.random.Generator | None = None,
) -> Iterator[Step]:
    """Yield `steps` training steps from the initial state; samples are used round and round."""
    state = {name: _wide(value) for name, value in {**graph.data, **(overrides or {})}.items()}
    fed = 0
    for _ in range(steps):
        losses = []
        for _ in range(graph.accumulate):
            values = dict(state)
            for name, samples in graph.samples.items():
                values[name] = _wide(samples[fed % len(samples)])
            fed += 1
            evaluate(graph, values, ("forward", "backward"), noise)
            losses.append(float(values[graph.loss]))
            _store_updates(graph, values, state)
        evaluate(graph, values, ("update",), noise)
        _store_updates(graph, values, state)
        yield Step(values, float(np.mean(losses)), dict(state))


def evaluate(
    graph: Graph,
    values: dict[str, Array],
    phases: tuple[str, ...] = (),
    noise: np.random.Generator | None = None,
) -> None:
    """Fill in what the nodes of some phases compute from the values that are there."""
    for site in graph.sites(*phases):
        operands = [values[name] for name in site.node.inputs]
        results = OPS[site.node.op].reference(site.attrs, *operands)
        if noise is not None:
            results = _disturbed(site, operands, results, noise)
        values.update(zip(site.node.outputs, results, strict=True))


def _wide(value: Array) -> Array:
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def _store_updates(graph: Graph, values: Mapping[str, Array], state: dict[str, Array]) -> None:
    for old, new in graph.updates:
        if new in values:
            state[old] = values[new]


def _disturbed(
    site: Site, operands: list[Array], results: tuple[Array, ...], noise: np.random.Generator
) -> tuple[Array, ...]:
    """Add what rounding may add: sqrt(roundings per element) * unit roundoff * magnitude.

    The magnitude of a sum is that of its terms, not of the result, or cancellation would hide
    what was lost; for ops that are sums it is the same op over absolute values.
    """
    op = OPS[site.node.op]
    if op.view or site.node.op == "transpose":
        return results
    magnitudes: tuple[Array, ...] = results
    if op.linear:
        magnitudes = op.reference(site.attrs, *(np.abs(operand) for operand in operands))
    disturbed = []
    for tensor, result, magnitude in zip(site.outs, results, magnitudes, strict=True):
        roundings = 1 + op.work(site).macs / max(tensor.elements, 1)
        scale = DTYPES[tensor.dtype].unit_roundoff * np.sqrt(roundings)
        draw = noise.uniform(-1.0, 1.0, size=result.shape)
        disturbed.append(result + draw * scale * np.abs(magnitude))
    return tuple(disturbed)
