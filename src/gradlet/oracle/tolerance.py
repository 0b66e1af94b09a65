"""What to expect of a training run, and how far a correct one may be away from it.

The expected values are those of the float64 reference. How far float32 may be off is seen by
running the reference again with every node disturbed within its own rounding, which comes from its
dtype and the length of its reductions. Cancellation, depth, and decisions on the edge (a ReLU at 0)
all show up in it. docs/verification.md has the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ir.graph import Array, Graph
from gradlet.oracle.interpreter import Disturbance, Spread, Watch, evaluate, run_reference
from gradlet.oracle.noise import lost, note_moves
from gradlet.support.progress import counted

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


@dataclass(frozen=True)
class Expectation:
    """Per step: values, allowed deviations by the same names, loss and its tolerance.

    overflows names the tensors of the step, in program order, that hold what their type cannot.
    """

    values: Mapping[str, Array]
    tolerances: Mapping[str, Array]
    loss: float
    loss_tolerance: float
    overflows: tuple[str, ...] = ()


Look = Callable[[Array], Array]
"""What of a tensor is looked at."""


def whole(value: Array) -> Array:
    return value


def expect(
    graph: Graph,
    steps: int,
    *,
    overrides: Mapping[str, Array] | None = None,
    rule: Rule = QUICK,
    look: Look = whole,
    wanted: Sequence[Collection[str]] = (),
) -> list[Expectation]:
    """`steps` training steps: all that nodes make in the first, outputs and states of the others;
    or of each what is wanted, and the outputs. Who looks at little needs little memory.

    One disturbed run after the other, which takes the spreads of all steps and a single state.
    """
    looked = Looked.at(graph, steps, look, wanted)
    spreads: list[Spread] = []
    with np.errstate(all="ignore"):  # what diverges is told by the values
        exact = list(_exact(looked, spreads, overrides))
        scatters = [Scatter(rule, values) for values, _ in exact]
        for draw in counted(range(rule.draws), rule.draws, "runs with other rounding"):
            noise = Disturbance(rule.seed + draw, spreads, rule.amplitude)
            for _ in _disturbed(looked, scatters, noise, overrides):
                pass
        last = spreads[graph.accumulate - 1 :: graph.accumulate]
        return [
            _expectation(looked, scatter, spread, overflows)
            for scatter, spread, (_, overflows) in zip(scatters, last, exact, strict=True)
        ]


def expect_in_turn(graph: Graph, steps: int, *, rule: Rule = QUICK) -> Iterator[Expectation]:
    """The same, a step at a time: the disturbed runs go side by side, each with a state of its own,
    and nothing of a step is left when the next one is asked for. This is for few draws."""
    looked = Looked.at(graph, steps, whole, ())
    spreads: list[Spread] = []
    scatters: list[Scatter] = []
    exact = _exact(looked, spreads, None)
    noises = [Disturbance(rule.seed + n, spreads, rule.amplitude) for n in range(rule.draws)]
    runs = [_disturbed(looked, scatters, noise, None) for noise in noises]

    def next_step() -> Expectation:
        with np.errstate(all="ignore"):
            values, overflows = next(exact)
            scatters.append(Scatter(rule, values))
            for run in runs:
                next(run)
            found = _expectation(looked, scatters[-1], spreads[-1], overflows)
        scatters[-1].exact = {}
        spreads[:] = [{}] * len(spreads)
        return found

    for _ in counted(range(steps), steps, "steps of the reference, with other rounding"):
        yield next_step()


def decided_otherwise(
    graph: Graph, names: Collection[str], rule: Rule = EDGES
) -> Mapping[str, Array]:
    """How far tensors of the first step move if float64 rounds otherwise. Hardly, but where numbers
    are equal up to that, as sums of probabilities are, and the largest of them is asked for: which
    one that is decides where its gradient goes."""
    looked = Looked.at(graph, 1, whole, [names])
    spreads: list[Spread] = []
    with np.errstate(all="ignore"):
        ((values, _),) = _exact(looked, spreads, None)
        scatter = Scatter(rule, values)
        for draw in range(rule.draws):
            noise = Disturbance(rule.seed + draw, spreads, rule.amplitude)
            for _ in _disturbed(looked, [scatter], noise, None):
                pass
    return scatter.largest


@dataclass(frozen=True)
class Looked:
    """What of a training run is looked at: the names by step; nodes that they depend on; compared
    counts all that a verification looks at, of which this may be a part."""

    graph: Graph
    names: Sequence[Collection[str]]
    nodes: Collection[str] | None
    look: Look
    compared: int

    @staticmethod
    def at(graph: Graph, steps: int, look: Look, wanted: Sequence[Collection[str]]) -> Looked:
        after = {new for _, new in graph.updates}
        later = {*after, *graph.outputs}
        names: list[Collection[str]] = [{*graph.producer(), *later}, *[later] * (steps - 1)]
        size = {
            name: look(np.broadcast_to(np.float32(0), tensor.shape)).size
            for name, tensor in graph.tensors.items()
        }
        compared = sum(size.values()) + (steps - 1) * sum(map(size.__getitem__, later)) + steps
        nodes = None
        if wanted:
            names = [{*some, *graph.outputs} for some in wanted]
            needed = {graph.loss}.union(*names, after if steps > 1 else ())
            nodes = graph.behind(needed)
        return Looked(graph, names, nodes, look, compared)


def _exact(
    looked: Looked, measured: list[Spread], overrides: Mapping[str, Array] | None
) -> Iterator[tuple[dict[str, Array], tuple[str, ...]]]:
    """Step by step what is looked at, and which tensors hold what their type cannot."""
    values: dict[str, Array] = {}
    overflows: list[str] = []
    step = 0

    def seen(name: str, value: Array) -> None:
        if not looked.graph.tensors[name].element.fits(value):
            overflows.append(name)
        if name in looked.names[step]:
            values[name] = looked.look(value)

    run = run_reference(
        looked.graph,
        len(looked.names),
        overrides=overrides,
        measured=measured,
        watch=Watch(seen, looked.nodes),
    )
    for made in run:
        values[LOSS] = np.asarray(made.loss)
        del made
        step += 1
        yield values, tuple(overflows)
        values, overflows = {}, []


def _disturbed(
    looked: Looked,
    scatters: Sequence[Scatter],
    noise: Disturbance,
    overrides: Mapping[str, Array] | None,
) -> Iterator[None]:
    """Step by step, how far a disturbed run is off what is exact."""
    step = 0

    def seen(name: str, value: Array) -> None:
        if name in looked.names[step]:
            scatters[step].add(name, looked.look(value))

    run = run_reference(
        looked.graph,
        len(looked.names),
        overrides=overrides,
        disturbance=noise,
        watch=Watch(seen, looked.nodes),
    )
    for made in run:
        scatters[step].add(LOSS, np.asarray(made.loss))
        del made
        step += 1
        yield


def first_divergence(
    graph: Graph, losses: Sequence[float], overflows: Sequence[Sequence[str]]
) -> int | None:
    """The first step that float32 cannot follow: its loss, a gradient or what the step leaves is
    infinite, no number, or more than float32 holds.

    So is one whose activations are, unless those of the first step are already and do no harm, as
    a mask of the largest numbers does none.
    """
    lasting = {graph.loss, *(grad for _, grad in graph.grads), *(new for _, new in graph.updates)}
    own = set(overflows[0]) - lasting
    for index, (loss, names) in enumerate(zip(losses, overflows, strict=True)):
        if not F32.fits(np.asarray(loss)) or set(names) - own:
            return index
    return None


def overflowing(graph: Graph, values: Mapping[str, Array]) -> tuple[str, ...]:
    """The tensors with numbers that their element type cannot hold."""
    return tuple(
        name for name, value in values.items() if not graph.tensors[name].element.fits(value)
    )


def expect_forward(
    graph: Graph, start: Mapping[str, Array], *, rule: Rule = QUICK
) -> tuple[dict[str, Array], dict[str, Array]]:
    """What the forward pass makes of some values, and how far float32 may be off."""
    spread: Spread = {}
    exact = dict(start)
    evaluate(graph, exact, ("forward",), spread=spread, measure=True)
    scatter = Scatter(rule, {name: exact[name] for name in graph.outputs})
    for draw in range(rule.draws):
        values = dict(start)
        evaluate(
            graph,
            values,
            ("forward",),
            spread=spread,
            seed=rule.seed + draw,
            amplitude=rule.amplitude,
        )
        for name in graph.outputs:
            scatter.add(name, values[name])
    compared = sum(exact[name].size for name in graph.outputs)
    return exact, {name: scatter.tolerance(name, spread, compared) for name in graph.outputs}


def agrees_forward(
    graph: Graph, start: Mapping[str, Array], results: Mapping[str, Array], *, share: float = 1.0
) -> bool:
    """Whether these are results of the graph, up to a share of what float32 may be off. In doubt,
    many draws decide. What is infinite or no number in the graph is not looked at."""
    for rule in (QUICK, CAREFUL):
        exact, allowed = expect_forward(graph, start, rule=rule)
        wrong = (
            (np.abs(exact[name] - value) > share * allowed[name])[np.isfinite(exact[name])].any()
            for name, value in results.items()
        )
        if not any(wrong):
            return True
    return False


LOSS = " loss"
"""The mean over micro-batches, beside the tensors of the last one; no tensor is called so."""


def _expectation(
    looked: Looked, scatter: Scatter, spread: Spread, overflows: tuple[str, ...]
) -> Expectation:
    tolerances: dict[str, Array] = {}
    for name in scatter.exact:
        own = spread.get(looked.graph.loss if name == LOSS else name)
        seen = {name: own if name == LOSS else looked.look(own)} if own is not None else {}
        tolerances[name] = scatter.tolerance(name, seen, looked.compared)
    values = dict(scatter.exact)
    loss, loss_tolerance = float(values.pop(LOSS)), float(tolerances.pop(LOSS))
    return Expectation(values, tolerances, loss, loss_tolerance, overflows)


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
