"""How disturbed runs scatter around the exact one, and how far a correct program may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gradlet.ir.graph import Array
from gradlet.oracle.interpreter import Spread
from gradlet.oracle.noise import lost, note_moves

FALSE_ALARM = 1e-6
"""How likely a correct program may fail a verification, over all elements that it compares."""
MARGIN = 4.0
"""Over the largest of a few draws, or over a node's own rounding where nothing else is known."""
FEWEST = 8
"""Draws that give a number, or there is no bound."""


@dataclass(frozen=True)
class Rule:
    """How many disturbed runs there are, and how many times its rounding disturbs a node.

    Many draws tell the deviation that one element has to expect: what they allow holds with
    FALSE_ALARM. They are disturbed more than by rounding, so that decisions which float32 might
    take otherwise are taken otherwise in some of them. A few draws take MARGIN times the largest:
    most correct programs stay below that, too, but not all of them with all of their elements.
    """

    draws: int
    amplitude: float = 1.0
    seed: int = 0


QUICK = Rule(3)
CAREFUL = Rule(32, 4.0, seed=100)
GOLDEN = Rule(16, 4.0, seed=200)
"""Golden data are compared where nobody can draw again; with sixteen they are less than twice as
wide, and a build takes half the time."""


EDGES = Rule(16, 4 * 2.0**-29, seed=300)
"""By what float64 rounds, which is 2**-29 of float32."""
MANY_EDGES = Rule(128, 4 * 2.0**-29, seed=400)
"""Of eight equal numbers, one is the largest in none of 16 draws in one of eight cases; in none of
128 in one of 25 million."""


class Scatter:
    """How disturbed runs deviate from the exact one: largest and sum of squares, per element.

    A draw that makes NaN of a number, as where a root or an index leaves its range, does not tell
    how far the number moves: the bound is that of the other draws. Of too few there is none. Three
    draws decide nothing but what is within a narrow bound: there it stays narrow.
    """

    def __init__(self, rule: Rule, exact: Mapping[str, Array]) -> None:
        self.rule = rule
        self.exact = exact
        self.largest = {name: np.zeros(np.shape(value)) for name, value in exact.items()}
        self._squares: dict[str, Array] = {}
        if rule is not QUICK:  # which needs none
            self._squares = {name: np.zeros(np.shape(value)) for name, value in exact.items()}
        self._lost: dict[str, Array] = {}

    def add(self, name: str, moved: Array) -> None:
        value = self.exact[name]
        if note_moves(self.largest[name], self._squares.get(name), moved, value):
            before = self._lost.get(name, np.zeros(np.shape(value), np.uint8))
            self._lost[name] = before + lost(moved, value)

    def tolerance(self, name: str, spread: Spread, compared: int) -> Array:
        """Once for each tensor: it takes the memory of what was noted of it."""
        largest = self.largest.pop(name)
        own = spread.get(name, np.zeros_like(largest))
        if self.rule is QUICK:
            for more in (_typical(largest), own):
                np.maximum(largest, more, out=largest)
            largest *= MARGIN
            return largest
        probability = FALSE_ALARM / compared
        drawn = self._drawn(name, probability)
        rounded = normal_bound(probability) * own / math.sqrt(3)  # own: a uniform draw within it
        result: Array = np.maximum(np.maximum(drawn, largest), rounded)
        return result

    def _drawn(self, name: str, probability: float) -> Array:
        draws, squares = self.rule.draws, self._squares.pop(name)
        deviation: Array
        if name not in self._lost:
            deviation = np.sqrt(squares / draws) / self.rule.amplitude
            deviation = np.maximum(deviation, _typical(deviation))
            return student_bound(draws, probability) * deviation
        left = draws - self._lost[name].astype(np.int64)
        deviation = np.sqrt(squares / np.maximum(left, 1)) / self.rule.amplitude
        enough = left >= FEWEST
        if enough.any():
            deviation = np.maximum(deviation, _typical(deviation[enough]))
        bounds = [student_bound(n, probability) if n >= FEWEST else 0.0 for n in range(draws + 1)]
        return np.where(enough, np.asarray(bounds)[left] * deviation, np.inf)


def _typical(deviation: Array) -> float:
    """An ordinary deviation, blind to the few elements where a decision flipped."""
    return float(np.quantile(deviation, 0.9))


@lru_cache
def student_bound(freedom: int, probability: float) -> float:
    """What a normal error, over the root of the mean of `freedom` squares of others of its kind,
    exceeds on either side with at most this probability."""

    def log_tail(x: float) -> float:  # t times the density, integrated: more than the tail
        scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
        scale += math.log(2 / x * freedom / (freedom - 1)) - 0.5 * math.log(freedom * math.pi)
        return scale - (freedom - 1) / 2 * math.log1p(x * x / freedom)

    return _where(log_tail, math.log(probability))


@lru_cache
def normal_bound(probability: float) -> float:
    """The same if the deviation is known."""
    return _where(
        lambda x: math.log(2 / x / math.sqrt(2 * math.pi)) - x * x / 2, math.log(probability)
    )


def _where(log_tail: Callable[[float], float], wanted: float) -> float:
    """From where on a falling function is below a value."""
    low, high = 0.0, 1.0
    while log_tail(high) > wanted:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if log_tail(middle) > wanted else (low, middle)
    return high
