"""What to expect of a training run, and how far a correct one may be away from it.

The expected values are those of the float64 reference. How far float32 may be off is seen by
running the reference again with every node disturbed within its own rounding, which comes from its
dtype and the length of its reductions. Cancellation, depth, and decisions on the edge (a ReLU at 0)
all show up in it. docs/verification.md has the derivation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ir.graph import Array, Graph
from gradlet.ops.learning.loss_scale import scale_of
from gradlet.oracle.interpreter import Disturbance, Spread, Watch, evaluate, run_reference
from gradlet.oracle.scatter import CAREFUL, EDGES, QUICK, Rule, Scatter
from gradlet.support.progress import counted


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
    lasting = {graph.loss, *(new for _, new in graph.updates)}
    if scale_of(graph):  # a step whose gradients overflow is skipped
        overflows = [[name for name in names if name in lasting] for names in overflows]
    else:
        lasting |= {grad for _, grad in graph.grads}
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
