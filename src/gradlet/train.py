"""From a forward graph to a training graph: loss, one reverse walk, update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradlet.builder import GraphBuilder
from gradlet.errors import GradletError
from gradlet.graph import EXTERNAL_ROLES, Array, Attrs, Graph, Node, Shape
from gradlet.graph_check import check_graph
from gradlet.guard import guarded
from gradlet.ops import OPS
from gradlet.ops.losses import LABELLED, LOSSES, REDUCTIONS, WEIGHTED_BY, options_of, target_of
from gradlet.recipe import LOSS_OPTIONS, Recipe
from gradlet.rows import RowGradients, with_rows_apart
from gradlet.selection import select, select_rows
from gradlet.update import LARGEST, append_update, check_optimizer

MOST_MICRO_BATCHES = 4096


def train(graph: Graph, recipe: Recipe, targets: Array | None = None) -> Graph:
    """Append loss, backward pass and update. `targets` has one leading index per micro-batch."""
    _check_recipe(recipe)
    if len(graph.outputs) != 1:
        listed = ", ".join(str(graph.tensors[name]) for name in graph.outputs)
        raise GradletError(
            f"the model returns {len(graph.outputs)} tensors ({listed}); a loss needs one: choose "
            f"it with --output INDEX (in Python, output=...)"
        )
    output = graph.tensors[graph.outputs[0]]
    if output.role in EXTERNAL_ROLES:
        raise GradletError(
            f"the model returns its {output.role} '{graph.own_name(output.name)}' as it is; a loss "
            f"needs something that is computed from it"
        )
    if output.dtype != "f32":
        raise GradletError(
            f"the model's result '{graph.own_name(output.name)}' holds whole numbers; a loss needs "
            f"floats: choose another result with --output (in Python, output=...)"
        )
    graph = guarded(graph)
    whole, rows = select(graph, recipe.update), select_rows(graph, recipe.update)
    graph, parts = with_rows_apart(graph, rows)
    trainable = [*whole, *parts]
    builder = GraphBuilder(graph.name, graph)
    loss, samples, stored = _append_loss(builder, graph, recipe, targets)
    grads = _backward(builder, loss, trainable, recipe.accumulate)
    steps = _append_steps(builder)
    updates = append_update(builder, trainable, grads, recipe)
    if not updates:
        raise GradletError("none of the chosen parameters influences the loss")
    result = replace(
        graph,
        tensors=builder.tensors,
        nodes=_by_phase(builder.nodes),
        data=builder.data,
        samples=samples,
        loss=loss,
        grads=tuple(grads.items()),
        updates=(*graph.updates, *steps, *updates),
        accumulate=recipe.accumulate,
        stored=stored,
    )
    check_graph(result)
    return result


def _check_recipe(recipe: Recipe) -> None:
    if recipe.loss not in LOSSES:
        raise GradletError(f"unknown loss '{recipe.loss}'; there are {', '.join(LOSSES)}")
    if recipe.reduction not in REDUCTIONS:
        raise GradletError(f"a loss is a {' or a '.join(REDUCTIONS)}, not '{recipe.reduction}'")
    if not 0 <= recipe.label_smoothing <= 1:
        raise GradletError(f"label smoothing is a share from 0 to 1, not {recipe.label_smoothing}")
    if not 0 <= recipe.delta <= LARGEST:
        raise GradletError(f"a delta of {recipe.delta} makes no sense")
    _check_loss_options(recipe)
    check_optimizer(recipe)
    for option in ("class_weights", "pos_weight"):
        if not all(0 <= value <= LARGEST for value in getattr(recipe, option)):
            given = ", ".join(map(str, getattr(recipe, option)))
            raise GradletError(f"{option} are numbers from 0 up, not {given}")
    if not -(2**31) <= recipe.ignore_index < 2**31:
        raise GradletError(f"ignore_index {recipe.ignore_index} is no label: labels have 32 bits")
    if not 1 <= recipe.accumulate <= MOST_MICRO_BATCHES:
        raise GradletError(
            f"gradients can be accumulated over 1 to {MOST_MICRO_BATCHES} micro-batches, not "
            f"{recipe.accumulate}: the golden data are computed over whole updates"
        )


def _check_loss_options(recipe: Recipe) -> None:
    """An option that the loss does not have would be forgotten in silence."""
    known = {*options_of(recipe.loss), WEIGHTED_BY.get(recipe.loss, "")}
    for option in LOSS_OPTIONS:
        if option not in known and getattr(recipe, option) != getattr(Recipe(), option):
            raise GradletError(f"{recipe.loss} has no option '{option}'")
    if recipe.loss == "huber" and recipe.delta == 0:
        raise GradletError("a delta of 0 makes Huber's loss 0 everywhere")


def _append_loss(
    builder: GraphBuilder, graph: Graph, recipe: Recipe, targets: Array | None
) -> tuple[str, dict[str, Array], dict[str, tuple[Shape, Shape]]]:
    """The loss's name, the samples with the targets, and what lies otherwise than in the model."""
    output = builder.tensors[graph.outputs[0]]
    if recipe.loss in LABELLED and len(output.shape) < 2:
        raise GradletError(
            f"{recipe.loss} needs an output of [batch, classes]; the model's, "
            f"'{graph.own_name(output.name)}', is {list(output.shape)}. For that there are "
            f"{', '.join(loss for loss in LOSSES if loss not in LABELLED)} (--loss mse; in Python, "
            f"Recipe(loss='mse')), or let the model return scores of the classes"
        )
    samples, stored = dict(graph.samples), dict(graph.stored)
    modelled, order = stored.get(output.name, (output.shape, tuple(range(len(output.shape)))))
    shape, dtype = target_of(recipe.loss, modelled)
    if targets is not None:
        targets = _checked_targets(targets, shape, dtype, modelled, recipe)
    scores = output.name
    if output.name in stored and recipe.loss in LABELLED:  # classes are last: one row per label
        rows = output.elements // output.shape[-1]
        scores = builder.add("reshape", [output.name], {"shape": (rows, output.shape[-1])})
        shape, targets = (rows,), None if targets is None else targets.reshape(-1, rows)
    elif output.name in stored:
        shape = output.shape
        if targets is not None:
            targets = targets.transpose(0, *(dim + 1 for dim in order))
    target = builder.external(builder.unique("target"), shape, "target", dtype)
    if scores == output.name and output.name in stored:
        stored[target] = stored[output.name]
    if targets is not None:
        samples[target] = np.ascontiguousarray(targets)
    defaults = Recipe()
    attrs = {
        name: getattr(recipe, name)
        for name in options_of(recipe.loss)
        if getattr(recipe, name) != getattr(defaults, name)
    }
    operands = [scores, target]
    weights = WEIGHTED_BY.get(recipe.loss, "")
    if weights and getattr(recipe, weights):
        values = np.asarray(getattr(recipe, weights))
        operands.append(builder.value(builder.unique(weights), values, "const"))
    loss = builder.add(recipe.loss, operands, attrs, role="loss", name="loss")
    return loss, samples, stored


def _checked_targets(
    targets: Array, shape: Shape, dtype: str, output: Shape, recipe: Recipe
) -> Array:
    if targets.shape[1:] != shape:
        fit = [
            loss
            for loss in LOSSES
            if (loss not in LABELLED or len(output) > 1)
            and target_of(loss, output)[0] == targets.shape[1:]
        ]
        way = f"for such targets there are {', '.join(fit)}" if fit else "no loss fits such targets"
        raise GradletError(
            f"targets have shape {targets.shape[1:]} per batch, but {recipe.loss} on an output of "
            f"{output} needs {shape}; {way}"
        )
    if dtype == "f32":
        if not np.isfinite(targets).all():
            raise GradletError("the targets contain NaN or infinity")
        return targets.astype(np.float32)
    whole = np.isfinite(targets) & (np.abs(targets) < 2.0**62)
    labels = np.where(whole, targets, 0).astype(np.int64)
    if not whole.all() or not (labels == targets).all():
        raise GradletError("class labels must be whole numbers")
    known = labels[labels != recipe.ignore_index]
    if known.size and (known.min() < 0 or known.max() >= output[1]):
        raise GradletError(
            f"labels run from {known.min()} to {known.max()}, but the model has {output[1]} "
            f"classes: 0 to {output[1] - 1} are possible"
        )
    return labels.astype(np.int32)


class _BackwardEmitter:
    """Writes the nodes of the backward phase for the ops' vjp."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.module = ""

    def add(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        return self.add_many(op, inputs, attrs)[0]

    def add_many(
        self, op: str, inputs: Sequence[str], attrs: Attrs | None = None
    ) -> tuple[str, ...]:
        return self.builder.add_many(
            op, inputs, attrs, phase="backward", role="partial", module=self.module
        )

    def shape(self, name: str) -> Shape:
        return self.builder.tensors[name].shape


def _backward(
    builder: GraphBuilder, loss: str, trainable: Sequence[str], accumulate: int
) -> dict[str, str]:
    """Append the gradients of everything between the trainable parameters and the loss."""
    forward = list(builder.nodes)
    needed = _needs_gradient(builder, trainable)
    seed = builder.value(builder.unique("d_loss"), np.asarray(1.0 / accumulate), "const")
    emit = _BackwardEmitter(builder)
    rows = RowGradients(forward)
    parts: dict[str, list[str]] = {loss: [seed]}
    grads: dict[str, str] = {}
    renames: dict[str, str] = {}
    for node in reversed(forward):
        emit.module = node.module
        wanted = _wanted(node, needed)
        if not wanted or not any(parts.get(output) for output in node.outputs):
            continue
        received = [_total(emit, output, parts, grads, renames) for output in node.outputs]
        site = Graph("", builder.tensors, (), (), ()).site(node)
        apart = rows.apart(site, wanted)
        whole = [slot for slot in wanted if slot not in apart]
        for slot, grad in OPS[node.op].vjp(emit, site, received, whole).items():
            parts.setdefault(_slots(node)[slot], []).append(grad)
        for name, grad in rows.emit(emit, site, received[0], apart):
            parts.setdefault(name, []).append(grad)
    for name in trainable:
        emit.module = ""
        if parts.get(name):
            _total(emit, name, parts, grads, renames)
    renames.pop(seed, None)
    grads.pop(loss, None)
    return _name_gradients(builder, grads, renames)


def _append_steps(builder: GraphBuilder) -> list[tuple[str, str]]:
    """The next masks of dropout: after the last reader of these, in every micro-batch."""
    read = {node.inputs[1]: None for node in builder.nodes if node.op == "dropout"}
    states = [name for name in read if builder.tensors[name].role == "state"]
    return [(name, _after_step(builder, name)) for name in states]


def _after_step(builder: GraphBuilder, state: str) -> str:
    return builder.add(
        "dropout_step", [state], phase="backward", role="updated", name=f"{state}.next"
    )


def _slots(node: Node) -> dict[str, str]:
    slots = (slot.rstrip("?") for slot in OPS[node.op].inputs)
    return dict(zip(slots, node.inputs, strict=False))


def _wanted(node: Node, needed: set[str]) -> list[str]:
    return [slot for slot, name in _slots(node).items() if name in needed]


def _needs_gradient(builder: GraphBuilder, trainable: Sequence[str]) -> set[str]:
    needed = set(trainable)
    for node in builder.nodes:
        if needed.intersection(node.inputs) and not OPS[node.op].stops:
            needed.update(name for name in node.outputs if builder.tensors[name].dtype != "i32")
    return needed


def _total(
    emit: _BackwardEmitter,
    name: str,
    parts: dict[str, list[str]],
    grads: dict[str, str],
    renames: dict[str, str],
) -> str:
    """Add up what the readers of a tensor contributed to its gradient."""
    own = parts.get(name, [])
    if not own:
        return ""
    total = own[0]
    for index, part in enumerate(own[1:], start=1):
        renames.setdefault(total, f"d_{name}.part0" if index == 1 else f"d_{name}.sum{index}")
        renames.setdefault(part, f"d_{name}.part{index}")
        total = emit.add("add", [total, part])
    grads[name] = total
    renames.setdefault(total, f"d_{name}")
    return total


def _name_gradients(
    builder: GraphBuilder, grads: dict[str, str], renames: dict[str, str]
) -> dict[str, str]:
    """Call the gradient of t `d_t`; one that passes through unchanged keeps its first name."""
    renames = builder.rename(renames)
    named = {name: renames.get(grad, grad) for name, grad in grads.items()}
    for grad in named.values():
        tensor = builder.tensors[grad]
        if tensor.role == "partial":
            builder.tensors[grad] = replace(tensor, role="gradient")
    return named


def _by_phase(nodes: Sequence[Node]) -> tuple[Node, ...]:
    order = ("forward", "backward", "update")
    return tuple(sorted(nodes, key=lambda node: order.index(node.phase)))
