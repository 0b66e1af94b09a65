"""Records what an ONNX file does in training: by the oracle's module, once it has been held against
ONNX's own evaluator."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradlet.frontends.recording import Aim, guarded, record_exactly, settings
from gradlet.frontends.recording_modes import Refused
from gradlet.frontends.recording_types import Parts
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Recipe
from gradlet.oracle.recording import Recording
from gradlet.support.extras import require_torch

if TYPE_CHECKING:
    from gradlet.frontends.onnx.model import OnnxSource

FORWARD = 1e-8
"""How far the two evaluators may be apart, of the largest value of the output. Both round to
float64; the rest is for terms that cancel."""
STEPS = (1e-5, 2e-6, 4e-7)
"""Of differences, relative to the size of a parameter. Where none of them agrees, an edge (of a
ReLU, of a maximum) would have to lie within each."""
SLOPE = 1e-5
"""How far a difference may be off from the derivative, of the sum of its terms without signs: the
truncation of the largest step is about its square."""
ROUNDING = 1e-13
"""How far an evaluation may be off from the exact value, relative to the output's terms."""
PATIENCE = 1.0
"""Seconds for differences along one parameter each; where it takes longer, one of all together."""


def record_onnx(
    source: OnnxSource, graph: Graph, recipe: Recipe, inputs: Sequence[Array], aims: Sequence[Aim]
) -> Recording:
    """Losses, gradients and parameters of the first steps, by the file's own names."""
    return guarded(lambda: _recorded(source, graph, recipe, inputs, aims))


def _recorded(
    source: OnnxSource, graph: Graph, recipe: Recipe, inputs: Sequence[Array], aims: Sequence[Aim]
) -> Recording:
    from gradlet.frontends.onnx.oracle.module import OnnxModule, weights_of

    file = source.file
    kinds = {item.name: file.kind(item.name) for item in file.model.graph.initializer}
    params = [tensor.name for tensor in graph.of_role("param")]
    trained = {origin.value for name in params for origin in source.origins.get(name, ())}
    module = OnnxModule(file.model, trained, weights_of(file.model, kinds))
    stored = {name: value.detach().numpy() for name, value in module.named_parameters()}
    stored |= {name: value.numpy() for name, value in module.named_buffers()}
    origins: dict[str, Parts] = {
        name: tuple((o.value, o.within(stored[o.value])) for o in parts)
        for name, parts in source.origins.items()
        if parts and all(origin.value in stored for origin in parts)
    }
    _check_values(graph, origins, stored)
    given = dict(zip(file.inputs, (np.asarray(value[0]) for value in inputs), strict=True))
    _check_agreement(module, file.model, given)
    return record_exactly(module, graph, recipe, inputs, aims, origins)


def _check_values(graph: Graph, origins: Mapping[str, Parts], stored: Mapping[str, Array]) -> None:
    """What the program starts from is what the file stores at these places."""
    for name, parts in origins.items():
        for value, places in parts:
            have = np.sort(np.asarray(graph.data[name], np.float64), axis=None)
            element, kept = graph.tensors[name].element, stored[value].reshape(-1)[places]
            kept = element.rounded(kept) if element.accumulate else kept
            if not np.array_equal(have, np.sort(kept)):
                raise Refused(f"'{name}' of the program is not '{value}' of the file")


def _check_agreement(module: Any, model: Any, given: Mapping[str, Array]) -> None:
    """The module computes what ONNX's evaluator does, not only where the parameters are, and its
    derivatives are those of differences."""
    from gradlet.frontends.onnx.oracle.agreement import Reference

    reference = Reference(model)
    fed = {
        n: np.asarray(v, np.float64 if v.dtype.kind == "f" else np.int64) for n, v in given.items()
    }
    chance = np.random.default_rng(0)
    start = {name: value.detach().numpy() for name, value in module.named_parameters()}
    start = {name: value for name, value in start.items() if name in reference.stored}
    draws = {name: chance.standard_normal(v.shape) * (_size(v) or 0.1) for name, v in start.items()}
    nearby = {name: value + 0.1 * draws[name] for name, value in start.items()}
    begin = time.perf_counter()
    expected = reference(fed, nearby)
    seconds = 2 * (time.perf_counter() - begin)
    if not _finite(expected):  # the root of a parameter, and the like
        nearby, expected = start, reference(fed, start)
    weights = [chance.standard_normal(output.shape) for output in expected]
    slopes = _slopes(module, fed, nearby, expected, weights)

    def value(changed: Mapping[str, Array]) -> float:
        return _weighted(reference(fed, {**nearby, **changed}), weights)

    sizes = [np.abs(output * weight) for output, weight in zip(expected, weights, strict=True)]
    floor = ROUNDING * float(sum(size.sum() for size in sizes))
    groups = [[name] for name in slopes] if len(slopes) * seconds < PATIENCE else [[*slopes]]
    for group in groups if seconds < PATIENCE else []:
        if not _agrees(value, nearby, draws, {name: slopes[name] for name in group}, floor):
            raise Refused(
                f"the derivative along '{group[0]}' by PyTorch is not that by differences of "
                f"ONNX's own evaluator"
            )


def _slopes(
    module: Any,
    given: Mapping[str, Array],
    parameters: Mapping[str, Array],
    expected: Sequence[Array],
    weights: Sequence[Array],
) -> dict[str, Array]:
    """PyTorch's gradients of the weighted sum of the outputs, which have to be as expected; none
    where they are not finite."""
    torch = require_torch()
    with settings(double=True):
        moved, outputs = _evaluated(module, given, parameters)
        for output, wanted in zip(outputs, expected, strict=True):
            _compare(output.detach().numpy(), wanted)
        pairs = zip(outputs, weights, strict=True)
        total = sum((output * torch.from_numpy(weight)).sum() for output, weight in pairs)
        leaves = [moved[name] for name in parameters]
        if not leaves or not total.requires_grad or not _finite(expected):
            return {}
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    named = zip(parameters.items(), found, strict=True)
    return {n: np.zeros(v.shape) if slope is None else slope.numpy() for (n, v), slope in named}


def _finite(outputs: Sequence[Array]) -> bool:
    return all(bool(np.isfinite(output).all()) for output in outputs)


def _weighted(outputs: Sequence[Array], weights: Sequence[Array]) -> float:
    pairs = zip(outputs, weights, strict=True)
    return float(sum((output * weight).sum() for output, weight in pairs))


def _agrees(
    value: Any,
    start: Mapping[str, Array],
    draws: Mapping[str, Array],
    slopes: Mapping[str, Array],
    floor: float,
) -> bool:
    wanted = sum(float((slope * draws[name]).sum()) for name, slope in slopes.items())
    size = sum(float(np.abs(slope * draws[name]).sum()) for name, slope in slopes.items())
    for step in STEPS:
        ends = [
            value({name: start[name] + sign * step * draws[name] for name in slopes})
            for sign in (1, -1)
        ]
        if abs((ends[0] - ends[1]) / (2 * step) - wanted) <= SLOPE * size + floor / step:
            return True
    return False


def _size(value: Array) -> float:
    return float(np.sqrt(np.mean(np.square(value)))) if value.size else 0.0


def _evaluated(
    module: Any, given: Mapping[str, Array], parameters: Mapping[str, Array]
) -> tuple[dict[str, Any], list[Any]]:
    """A pass of a copy with other parameters; those, and its outputs."""
    from gradlet.frontends.torch.check import copied

    torch = require_torch()
    module = copied(module)
    moved = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in parameters.items():
            moved[name].copy_(torch.from_numpy(value))
    for parameter in moved.values():
        parameter.requires_grad_(True)
    return moved, module(*(torch.from_numpy(value) for value in given.values()))


def _compare(computed: Array, expected: Array) -> None:
    if computed.shape != expected.shape:
        raise Refused(f"its output is {computed.shape} by PyTorch, {expected.shape} by ONNX itself")
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    if not np.allclose(computed, expected, rtol=0.0, atol=FORWARD * scale, equal_nan=True):
        raise Refused("its output by PyTorch is not that of ONNX's own evaluator")
