"""Runs a training graph in numpy: the ops' own references, in float64, step by step.

With `noise` (a seed) each node's result is disturbed as rounding in a lower precision would
disturb it. How far that drives a tensor is the error that the precision itself allows; tolerances
are taken from it.
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
    noise: int | None = None,
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
    noise: int | None = None,
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
    site: Site, operands: list[Array], results: tuple[Array, ...], noise: int
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
        disturbed.append(result + _draws(result, noise) * scale * np.abs(magnitude))
    return tuple(disturbed)


def _draws(result: Array, seed: int) -> Array:
    """A number in [-1, 1) for each element, by its value: equal values are rounded alike, and
    their errors add up where independent ones would cancel."""
    bits = np.asarray(result).astype(np.float32).view(np.uint32).astype(np.uint64)
    mixed = bits + np.uint64(0x9E3779B97F4A7C15 * (seed + 1) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
