"""What a training graph minimises: losses of the model's outputs, each with its target, and their
weighted sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import EXTERNAL_ROLES, Array, Graph, Shape
from gradlet.ir.recipe import LOSS_OPTIONS, USUAL, Loss, Recipe
from gradlet.ops.learning.labels import (
    LABELLED,
    LOSSES,
    REDUCTIONS,
    WEIGHTED_BY,
    options_of,
    target_of,
)
from gradlet.training.update import LARGEST

Targets = Array | Mapping[str, Array] | None
"""Of the only target, or of each by its name; with one leading index per micro-batch."""


@dataclass(frozen=True)
class Objective:
    """loss: the sum. seeds: of each loss, the constant that its gradient begins with. samples and
    stored: those of the graph, with what there is of the targets."""

    loss: str
    seeds: Mapping[str, str]
    samples: Mapping[str, Array]
    stored: Mapping[str, tuple[Shape, Shape]]


def check_losses(losses: Sequence[Loss]) -> None:
    """Raise if one of them does not exist, or makes no sense."""
    for loss in losses:
        if loss.loss not in LOSSES:
            raise GradletError(f"unknown loss '{loss.loss}'; there are {', '.join(LOSSES)}")
        if loss.reduction not in REDUCTIONS:
            raise GradletError(f"a loss is a {' or a '.join(REDUCTIONS)}, not '{loss.reduction}'")
        if not 0 <= loss.label_smoothing <= 1:
            raise GradletError(
                f"label smoothing is a share from 0 to 1, not {loss.label_smoothing}"
            )
        if not 0 <= loss.delta <= LARGEST:
            raise GradletError(f"a delta of {loss.delta} makes no sense")
        if not abs(loss.weight) <= LARGEST:
            raise GradletError(f"{loss}: a weight of {loss.weight} makes no sense")
        _check_options(loss)


def _check_options(loss: Loss) -> None:
    """An option that the loss does not have would be forgotten in silence."""
    known = {*options_of(loss.loss), WEIGHTED_BY.get(loss.loss, "")}
    for option in LOSS_OPTIONS:
        if option not in known and getattr(loss, option) != getattr(Loss(), option):
            raise GradletError(f"{loss.loss} has no option '{option}'")
    if loss.loss == "huber" and loss.delta == 0:
        raise GradletError("a delta of 0 makes Huber's loss 0 everywhere")
    for option in ("class_weights", "pos_weight"):
        if not all(0 <= value <= LARGEST for value in getattr(loss, option)):
            given = ", ".join(map(str, getattr(loss, option)))
            raise GradletError(f"{option} are numbers from 0 up, not {given}")
    if not -(2**31) <= loss.ignore_index < 2**31:
        raise GradletError(f"ignore_index {loss.ignore_index} is no label: labels have 32 bits")


def output_of(graph: Graph, loss: Loss) -> int:
    """Which of the outputs a loss sees."""
    wanted, known = str(loss.output), graph.results or ("",) * len(graph.outputs)
    if not wanted and len(graph.outputs) == 1:
        return 0
    if (wanted or USUAL) in known:
        return known.index(wanted or USUAL)
    listed = ", ".join(str(graph.tensors[name]) for name in graph.outputs)
    if not wanted:
        named = ", ".join(filter(None, known))
        raise GradletError(
            f"the model returns {len(graph.outputs)} tensors ({named or listed}); {loss.loss} "
            f"needs one: choose it with --output INDEX (in Python, output=...), or for each of "
            f"several losses by gradlet.Loss(..., output=...)"
        )
    have = ", ".join(f"'{name}'" for name in known if name) or f"only {listed}"
    raise GradletError(
        f"{loss}: that output was not captured, {have} was; capture all that the losses see: "
        f"gradlet.frontends.capture(..., output=[..., '{wanted}'])"
    )


def check_outputs(graph: Graph) -> None:
    """Outputs that a loss can see."""
    for name in graph.outputs:
        output = graph.tensors[name]
        if output.role in EXTERNAL_ROLES:
            raise GradletError(
                f"the model returns its {output.role} '{graph.own_name(name)}' as it is; a loss "
                f"needs something that is computed from it"
            )
        if not output.element.is_float:
            raise GradletError(
                f"the model's result '{graph.own_name(name)}' holds whole numbers; a loss needs "
                f"floats: choose another result with --output (in Python, output=...)"
            )


def target_kinds(graph: Graph, losses: Sequence[Loss]) -> dict[str, tuple[Shape, str, Loss]]:
    """Shape and dtype of every target, as the model would have it, and the first loss with it."""
    found: dict[str, tuple[Shape, str, Loss]] = {}
    for loss in losses:
        name = graph.outputs[output_of(graph, loss)]
        output = graph.stored.get(name, (graph.tensors[name].shape, ()))[0]
        if loss.loss in LABELLED and len(output) < 2:
            called = str(loss.output) or graph.own_name(name)
            raise GradletError(
                f"{loss.loss} needs an output of [batch, classes]; the model's, '{called}', is "
                f"{list(output)}. For that there are "
                f"{', '.join(loss for loss in LOSSES if loss not in LABELLED)} (--loss mse; in "
                f"Python, Recipe(loss='mse')), or let the model return scores of the classes"
            )
        shape, dtype = target_of(loss.loss, output)
        first = found.setdefault(loss.target_name, (shape, dtype, loss))
        if first[:2] != (shape, dtype):
            kinds = [
                f"{dtype}{list(shape)} for {loss}"
                for shape, dtype, loss in (first, (shape, dtype, loss))
            ]
            raise GradletError(
                f"target '{loss.target_name}' would be {' and '.join(kinds)}; give each a target "
                f"of its own: gradlet.Loss('{loss.loss}', ..., target='another')"
            )
    return found


def append_objective(
    builder: GraphBuilder, graph: Graph, recipe: Recipe, targets: Targets
) -> Objective:
    losses = recipe.all_losses()
    kinds = target_kinds(graph, losses)
    given = _by_name(targets, kinds)
    targets_made = _Targets(builder, graph, several=len(kinds) > 1)
    parts: list[str] = []
    for loss in losses:
        values = given.get(loss.target_name)
        if values is not None:
            values = _checked_targets(values, *kinds[loss.target_name][:2], graph, loss)
        scores, target = targets_made.operands(loss, values)
        parts.append(_append_loss(builder, loss, scores, target, len(losses) > 1))
    total = _sum(builder, parts, losses)
    seeds = {
        part: builder.value(
            builder.unique(f"d_{part}"),
            np.asarray(float(np.float32(loss.weight)) / recipe.accumulate),
            "const",
        )
        for part, loss in zip(parts, losses, strict=True)
    }
    return Objective(total, seeds, targets_made.samples, targets_made.stored)


def _sum(builder: GraphBuilder, parts: Sequence[str], losses: Sequence[Loss]) -> str:
    """The one loss, or its weighted sum with the others."""
    terms = []
    for part, loss in zip(parts, losses, strict=True):
        if loss.weight != 1:
            weight = builder.value(builder.unique("weight"), np.asarray(loss.weight), "const")
            part = builder.add("mul", [part, weight], role="loss", name=f"{part}.weighted")
        terms.append(part)
    total = terms[0]
    for number, term in enumerate(terms[1:], start=2):
        name = "loss" if number == len(terms) else f"loss.sum{number}"
        total = builder.add("add", [total, term], role="loss", name=name)
    return total


def _by_name(targets: Targets, kinds: Mapping[str, tuple[Shape, str, Loss]]) -> Mapping[str, Array]:
    """Targets as they were given, by name; none if there are none."""
    if targets is None:
        return {}
    if not isinstance(targets, Mapping):
        targets = {next(iter(kinds)): targets} if len(kinds) == 1 else {"targets": targets}
    if targets.keys() != kinds.keys():
        wanted = ", ".join(f"'{name}' ({loss})" for name, (_, _, loss) in kinds.items())
        have = ", ".join(f"'{name}'" for name in targets)
        example = ", ".join(f"'{name}': ..." for name in kinds)
        raise GradletError(
            f"the targets are {wanted}; given are {have}. Name them so: targets={{{example}}}, or "
            f"{', '.join(f'target.{name}' for name in kinds)} in an .npz"
        )
    return targets


class _Targets:
    """Writes the targets, each once for all losses that compare with it."""

    def __init__(self, builder: GraphBuilder, graph: Graph, *, several: bool) -> None:
        self.builder, self.graph, self.several = builder, graph, several
        self.samples, self.stored = dict(graph.samples), dict(graph.stored)
        self.made: dict[tuple[str, Shape], str] = {}  # by name, and how they lie

    def operands(self, loss: Loss, values: Array | None) -> tuple[str, str]:
        """The scores that a loss sees, and its target."""
        scores = name = self.graph.outputs[output_of(self.graph, loss)]
        output = self.builder.tensors[name]
        modelled, order = self.stored.get(name, (output.shape, tuple(range(len(output.shape)))))
        shape, dtype = target_of(loss.loss, modelled)
        if name in self.stored and loss.loss in LABELLED:  # classes are last: one row per label
            rows = output.elements // output.shape[-1]
            scores = self.builder.add("reshape", [name], {"shape": (rows, output.shape[-1])})
            shape, values = (rows,), None if values is None else values.reshape(-1, rows)
            order = (0,)
        elif name in self.stored:
            shape = output.shape
            if values is not None:
                values = values.transpose(0, *(dim + 1 for dim in order))
        key = (loss.target_name, order)
        if key not in self.made:
            again = any(known == loss.target_name for known, _ in self.made)
            self.made[key] = self._add(loss, shape, dtype, again=again)
            if scores == name and name in self.stored:
                self.stored[self.made[key]] = self.stored[name]
            if values is not None:
                self.samples[self.made[key]] = np.ascontiguousarray(values)
        return scores, self.made[key]

    def _add(self, loss: Loss, shape: Shape, dtype: str, *, again: bool) -> str:
        """again: the same one, as it lies beside another output."""
        named = f"{loss.target_name}_{loss.output}" if again else loss.target_name
        known = self.several or again
        target = self.builder.unique(f"target_{named}" if known else "target")
        self.builder.external(target, shape, "target", dtype)
        if known:
            self.builder.own_names[target] = named
        return target


def _append_loss(builder: GraphBuilder, loss: Loss, scores: str, target: str, several: bool) -> str:
    plain = Loss()
    attrs = {
        name: getattr(loss, name)
        for name in options_of(loss.loss)
        if getattr(loss, name) != getattr(plain, name)
    }
    operands = [scores, target]
    weights = WEIGHTED_BY.get(loss.loss, "")
    if weights and getattr(loss, weights):
        values = np.asarray(getattr(loss, weights))
        operands.append(builder.value(builder.unique(weights), values, "const"))
    name = f"loss.{loss.output or loss.loss}" if several or loss.weight != 1 else "loss"
    return builder.add(loss.loss, operands, attrs, role="loss", name=name)


def _checked_targets(targets: Array, shape: Shape, dtype: str, graph: Graph, loss: Loss) -> Array:
    name = graph.outputs[output_of(graph, loss)]
    output = graph.stored.get(name, (graph.tensors[name].shape, ()))[0]
    if targets.shape[1:] != shape:
        fit = [
            other
            for other in LOSSES
            if (other not in LABELLED or len(output) > 1)
            and target_of(other, output)[0] == targets.shape[1:]
        ]
        way = f"for such targets there are {', '.join(fit)}" if fit else "no loss fits such targets"
        called = f"'{loss.output}', {output}," if str(loss.output) else f"of {output}"
        what = f"targets '{loss.target_name}'" if loss.target or str(loss.output) else "targets"
        raise GradletError(
            f"{what} have shape {targets.shape[1:]} per batch, but {loss.loss} on an output "
            f"{called} needs {shape}; {way}"
        )
    if dtype == "f32":
        if not np.isfinite(targets).all():
            raise GradletError("the targets contain NaN or infinity")
        return targets.astype(np.float32)
    whole = np.isfinite(targets) & (np.abs(targets) < 2.0**62)
    labels = np.where(whole, targets, 0).astype(np.int64)
    if not whole.all() or not (labels == targets).all():
        raise GradletError("class labels must be whole numbers")
    known = labels[labels != loss.ignore_index]
    if known.size and (known.min() < 0 or known.max() >= output[1]):
        raise GradletError(
            f"labels run from {known.min()} to {known.max()}, but the model has {output[1]} "
            f"classes: 0 to {output[1] - 1} are possible"
        )
    return labels.astype(np.int32)
