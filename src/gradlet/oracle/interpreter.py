"""Runs a training graph in numpy: the ops' own references, in float64, step by step.

An exact run can also measure, node by node, how much rounding in the tensors' own dtype may add to
each element. A later run disturbed by that much shows how far such errors travel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from gradlet.ir.elements import Element
from gradlet.ir.graph import Array, Graph, Site
from gradlet.ops import OPS
from gradlet.ops.base import Op
from gradlet.oracle.growth import grown
from gradlet.oracle.noise import disturbed

WHOLE_PARTS = ("floor", "ceil", "trunc", "to_index")
Spread = dict[str, Array]
"""For each tensor, the size of the error that the node which makes it may add."""


@dataclass(frozen=True)
class Step:
    """Every value of one training step: the last micro-batch's tensors, and the state after."""

    values: Mapping[str, Array]
    loss: float
    state: Mapping[str, Array]


Seen = Callable[[str, Array], None]


@dataclass(frozen=True)
class Watch:
    """Who looks at each tensor as it is made needs none of them to be kept: a tensor lives until
    its last reader has run. nodes: what is looked at depends on no others."""

    seen: Seen
    nodes: Collection[str] | None = None


class _Options(TypedDict):
    spread: Spread
    measure: bool
    seed: int | None
    amplitude: float
    watch: Watch | None


@dataclass(frozen=True)
class Disturbance:
    """What a disturbed run adds to every result: a draw by seed and value times the spread."""

    seed: int
    spreads: list[Spread]
    amplitude: float = 1.0


def run_reference(
    graph: Graph,
    steps: int,
    *,
    overrides: Mapping[str, Array] | None = None,
    measured: list[Spread] | None = None,
    disturbance: Disturbance | None = None,
    watch: Watch | None = None,
) -> Iterator[Step]:
    """Yield `steps` training steps from the initial state; samples are used round and round.

    `measured` collects the spreads of each micro-batch, which a disturbance takes. Whoever watches
    sees the tensors of the last micro-batch of each step, and finds few in the steps.
    """
    state = {name: wide(value) for name, value in {**graph.data, **(overrides or {})}.items()}
    fed = 0
    for _ in range(steps):
        losses = []
        for micro in range(graph.accumulate):
            last = micro == graph.accumulate - 1
            seen = watch if last or watch is None else replace(watch, seen=lambda *_: None)
            values, spread = _micro_batch(graph, state, fed, last, disturbance, measured, seen)
            losses.append(float(values[graph.loss]))
            if measured is not None:
                measured.append(spread)
            fed += 1
        made = [Step(values, float(np.mean(losses)), dict(state))]
        values, spread = {}, {}  # what nobody else needs must not wait here for the next step
        yield made.pop()


def _micro_batch(
    graph: Graph,
    state: dict[str, Array],
    fed: int,
    last: bool,
    disturbance: Disturbance | None,
    measured: list[Spread] | None,
    watch: Watch | None,
) -> tuple[dict[str, Array], Spread]:
    """The values of one, and the spreads; the state becomes what it leaves."""
    values = dict(state)
    for name, samples in graph.samples.items():
        values[name] = wide(samples[fed % len(samples)])
    if watch:
        for name, value in values.items():
            watch.seen(name, value)
    spread: Spread = disturbance.spreads[fed] if disturbance else {}
    options = _Options(
        spread=spread,
        measure=measured is not None,
        seed=disturbance.seed if disturbance else None,
        amplitude=disturbance.amplitude if disturbance else 1.0,
        watch=watch,
    )
    evaluate(graph, values, ("forward", "backward"), **options)
    _store_updates(graph, values, state)
    if last:
        evaluate(graph, values, ("update",), **options)
        _store_updates(graph, values, state)
    return values, spread


def before_last_micro_batch(graph: Graph) -> dict[str, Array]:
    """What the last micro-batch of the first step finds: its samples, and the states."""
    state = {name: wide(value) for name, value in graph.data.items()}
    for micro in range(graph.accumulate):
        values = dict(state)
        values |= {name: wide(item[micro % len(item)]) for name, item in graph.samples.items()}
        if micro < graph.accumulate - 1:
            evaluate(graph, values, ("forward", "backward"))
            _store_updates(graph, values, state)
    return values


@np.errstate(over="ignore", invalid="ignore")  # what overflows is told by the values
def evaluate(
    graph: Graph,
    values: dict[str, Array],
    phases: tuple[str, ...] = (),
    *,
    spread: Spread | None = None,
    measure: bool = False,
    seed: int | None = None,
    amplitude: float = 1.0,
    given: Mapping[str, Array] | None = None,
    watch: Watch | None = None,
) -> None:
    """Fill in what the nodes of some phases compute from the values that are there.

    The spread is filled in if it is to be measured, and disturbs the results if there is a seed.
    What is `given` nodes take as it is, instead of what the nodes before them made.
    """
    spread = {} if spread is None else spread
    given = given or {}
    wholes = _made_whole(graph) if seed is not None else set()
    ends = graph.ends if watch else {}
    for site in graph.sites(*phases):
        if watch and watch.nodes is not None and site.node.name not in watch.nodes:
            continue
        op = OPS[site.node.op]
        operands = [given[n] if n in given else values[n] for n in site.node.inputs]
        results = op.reference(site.attrs, *operands)
        if measure:
            own = _spread(site, operands, results)
            for name in graph.grown.keys() & own.keys():
                own[name] = grown(own[name], *graph.grown[name])
            spread.update(own)
        for tensor, result in zip(site.outs, results, strict=True):
            name = tensor.name
            if tensor.element.accumulate:
                result = _as_far_as_held(result, tensor.element)
            if seed is not None and not _is_exact(
                op, operands, result, spread[name], name in wholes
            ):
                result = _with_rounding(tensor.element, result, seed, amplitude, spread[name])
            values[name] = result
            if watch:
                watch.seen(name, result)
        del operands, results, result
        for name in ends.get(site.node.name, ()):
            values.pop(name, None)


def _is_exact(op: Op, operands: list[Array], result: Array, spread: Array, whole: bool) -> bool:
    """Whether rounding has no part in a result: an undisturbed copy, or whole numbers."""
    copied = op.exact and not np.any(spread)
    return copied or result.dtype.kind != "f" or (whole and all(map(_whole, operands)))


def _with_rounding(
    element: Element, result: Array, seed: int, amplitude: float, spread: Array
) -> Array:
    """A result as a machine might have it: of the type it is stored in, and disturbed."""
    if element.accumulate and amplitude >= 1:
        result = np.where(spread > 0, element.rounded(result), result)
    return disturbed(result, seed, amplitude, spread)


def wide(value: Array) -> Array:
    """In double precision, if it is a number with a fraction."""
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def _store_updates(graph: Graph, values: Mapping[str, Array], state: dict[str, Array]) -> None:
    for old, new in graph.updates:
        if new in values:
            state[old] = values[new]


def _spread(site: Site, operands: list[Array], results: tuple[Array, ...]) -> Spread:
    """Rounding error that a node may add: unit roundoff * magnitude * growth over its roundings.

    The magnitude of a sum is that of its terms, not of the result, or cancellation would hide what
    was lost; for ops that are sums it is the same op over absolute values. Errors of k roundings
    grow as sqrt(k) when they are independent; when equal terms are added up they are not, and a
    chain then loses up to k/3 units: the growth has a share of both.
    """
    op = OPS[site.node.op]
    if op.exact:
        return {
            t.name: _copied(site, t.element, operands, r)
            for t, r in zip(site.outs, results, strict=True)
        }
    spread: Spread = {}
    magnitudes = op.magnitude(site.attrs, operands, results)
    for tensor, magnitude, result in zip(site.outs, magnitudes, results, strict=True):
        roundings = op.roundings(site, tensor)
        growth, count = _growth(roundings), op.stores(site)
        error = np.abs(np.atleast_1d(magnitude)).astype(np.float64, copy=False)
        # below the normal numbers it is the smallest step that counts; an exact 0 stays one
        nonzero = error > 0
        element = tensor.element
        carried = error * (element.unit_roundoff * _growth(count)) if count > 1 else None
        error *= element.sums.unit_roundoff
        np.add(error, element.sums.smallest, out=error, where=nonzero)
        error *= growth
        if element.accumulate:  # what was computed is rounded when it is stored
            stored = np.abs(np.atleast_1d(result)) * element.unit_roundoff
            stored = stored if carried is None else carried  # and the next number is made of that
            error += np.where(nonzero, stored + element.smallest, 0.0)
        # of two numbers there is no part result
        reach = result if len(operands) == 2 else magnitude
        if op.counts and _short((*operands, *_numbers(site)), reach, element):
            error[_is_held(np.atleast_1d(result), element)] = 0.0
        with np.errstate(over="ignore"):  # what float32 cannot hold is told by the values
            spread[tensor.name] = error.astype(np.float32).reshape(np.shape(magnitude))
    return spread


def _as_far_as_held(result: Array, element: Element) -> Array:
    """What is beyond the largest number of a narrow type is infinite there."""
    edge = element.largest * (1 + element.unit_roundoff / 2)
    beyond = np.abs(result) >= edge
    return np.where(beyond, np.copysign(np.inf, result), result) if beyond.any() else result


def _growth(roundings: float) -> float:
    return float(np.sqrt(roundings)) + roundings / 12


def _copied(site: Site, element: Element, operands: list[Array], result: Array) -> Array:
    """The spread of a copy. There is none, but where a number is put in that is no number of the
    type: an attribute, or an operand of a wider type."""
    if element.accumulate and result.dtype.kind == "f":
        wide = [v for v, t in zip(operands, site.ins, strict=True) if t.element == element.sums]
        given = np.concatenate([_numbers(site), *(value.reshape(-1) for value in wide)])
        foreign = np.abs(given[~_is_held(given, element)])
        if foreign.size:
            put_in = np.isin(np.abs(result), foreign)
            return np.where(put_in, np.abs(result) * element.unit_roundoff, 0.0).astype(np.float32)
    return np.broadcast_to(np.float32(0), np.shape(result))


def _made_whole(graph: Graph) -> set[str]:
    """Quotients of which nothing but the whole part is used. Of whole numbers float32 has it: x / y
    is whole or at least 1 / y off, which is more than half a unit in the last place."""
    found = {node.outputs[0] for node in graph.nodes if node.op == "div"}
    found -= {*graph.outputs, *(new for _, new in graph.updates)}
    return found - {n for node in graph.nodes if node.op not in WHOLE_PARTS for n in node.inputs}


def _whole(value: Array) -> bool:
    """Whether these are whole numbers that float32 tells apart."""
    return bool((np.abs(value) < 2.0**24).all() and (np.rint(value) == value).all())


def _numbers(site: Site) -> list[float]:
    return [value for value in site.attrs.values() if isinstance(value, float)]


def _short(operands: Sequence[Array | float], reach: Array, element: Element) -> bool:
    """Whether these are whole numbers, or short fractions of them, and small enough that no sum
    or product of them is rounded: those that become an index or a remainder are."""
    return any(
        bool((np.abs(reach) < element.whole / parts).all())
        and all(_whole(np.asarray(value * parts)) for value in operands)
        for parts in (1.0, 2.0**8)
    )


def _is_held(result: Array, element: Element) -> Array:
    """Where it is a number that the element has: a quotient of whole numbers may be one, or not."""
    held: Array = element.rounded(result) == result
    return held
