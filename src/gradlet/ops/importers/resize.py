"""Interpolation by matrices: one constant matrix per dimension, whatever the rule that fills it.

The common rules have a kernel of their own (`resample.py`). The others (bicubic, odd scales, other
roundings, antialiasing) are products with what this file computes beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradlet.ir.graph import Array
from gradlet.ops.importer import Importer
from gradlet.ops.shape import reshaped, transposed


@dataclass(frozen=True)
class Rule:
    """How a place in the result becomes a place in the operand, and what is read around it."""

    mode: str = "linear"  # nearest, linear, cubic
    place: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def matrix(rule: Rule, size: int, result: int, scale: float) -> Array:
    """[result, size]: the weights of the elements that make each element of the result."""
    weights = np.zeros((result, size))
    for index in range(result):
        at = _source(rule.place, index, size, result, scale)
        base = math.floor(at)
        if at == base:  # the right one of two neighbours, at no distance
            base -= 1
        first, parts = _parts(rule, at - base, min(scale, 1.0) if rule.antialias else 1.0)
        places = np.arange(len(parts)) + base + first
        if rule.exclude_outside:
            parts = np.where((places >= 0) & (places < size), parts, 0.0)
            parts = parts / parts.sum()
        np.add.at(weights[index], np.clip(places, 0, size - 1), parts)
    return weights


def _source(place: str, index: int, size: int, result: int, scale: float) -> float:
    match place:
        case "align_corners":
            return 0.0 if result == 1 else index * (size - 1) / (scale * size - 1)
        case "asymmetric":
            return index / scale
    at = (index + 0.5) / scale - 0.5
    if place == "half_pixel_symmetric":
        at += size / 2 * (1 - result / (scale * size))
    return at


def _parts(rule: Rule, ratio: float, scale: float) -> tuple[int, Array]:
    """The first neighbour, counted from the one on the left, and the weights from there on."""
    if rule.mode == "nearest":
        right = {
            "floor": ratio == 1,
            "ceil": True,
            "round_prefer_floor": ratio > 0.5,
            "round_prefer_ceil": ratio >= 0.5,
        }[rule.rounding]
        return int(right), np.ones(1)
    reach = {"linear": 1, "cubic": 2}[rule.mode]
    first = math.floor(-reach / scale) + 1
    # in the precision of the scale: ONNX's evaluator, whose is single, is what a file is held to
    away = np.abs(np.arange(first, 2 - first, dtype=np.asarray(ratio).dtype) - ratio) * scale
    parts = np.clip(1 - away, 0, 1) if rule.mode == "linear" else _cubic(away, rule.cubic)
    return first, parts / parts.sum() if rule.antialias else parts


def _cubic(x: Array, a: float) -> Array:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def resized(
    imp: Importer, x: str, rule: Rule, sizes: Sequence[int], scales: Sequence[float]
) -> str:
    """Every dimension to its size; one that keeps it is left alone."""
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        if size < 1:
            raise imp.unsupported(f"a result of {list(sizes)}")
        if (size, scale) != (imp.shape(x)[axis], 1.0):
            x = _along(imp, x, axis, matrix(rule, imp.shape(x)[axis], size, scale))
    return x


def _along(imp: Importer, x: str, axis: int, weights: Array) -> str:
    """A product along one dimension, which is put last for it and back again."""
    shape = imp.shape(x)
    order = [dim for dim in range(len(shape)) if dim != axis]
    turned = transposed(imp, x, [*order, axis])
    rows = reshaped(imp, turned, (-1, shape[axis]))
    factor = imp.constant(weights)
    y = imp.add("matmul", [rows, factor], {"layout": "nt"})
    y = reshaped(imp, y, (*(shape[dim] for dim in order), len(weights)))
    return transposed(imp, y, [int(dim) for dim in np.argsort([*order, axis])])
