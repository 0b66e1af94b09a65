"""From a forward graph to a training graph: loss, one reverse walk, update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradlet.errors import GradletError
from gradlet.frontends.passes.guard import guarded
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.check import check_graph
from gradlet.ir.graph import Attrs, Graph, Node, Shape
from gradlet.ir.recipe import Recipe
from gradlet.ops import OPS
from gradlet.training.casts import CASTS, Casts
from gradlet.training.loss import (
    Targets,
    append_objective,
    check_losses,
    check_outputs,
    target_kinds,
)
from gradlet.training.partial_update import RowGradients, with_rows_apart
from gradlet.training.scaling import Scaled, scaling_of
from gradlet.training.selection import select, select_rows
from gradlet.training.update import append_update, check_optimizer

MOST_MICRO_BATCHES = 4096


def train(graph: Graph, recipe: Recipe, targets: Targets = None) -> Graph:
    """Append loss, backward pass and update. `targets` has one leading index per micro-batch;
    where losses have several, they are given by name."""
    _check_recipe(recipe)
    check_outputs(graph)
    target_kinds(graph, recipe.all_losses())
    graph = guarded(graph)
    whole, rows = select(graph, recipe.update), select_rows(graph, recipe.update)
    graph, parts = with_rows_apart(graph, rows)
    trainable = [*whole, *parts]
    builder = GraphBuilder(graph.name, graph)
    scaling = scaling_of(recipe)
    objective = append_objective(builder, graph, recipe, targets)
    scaled = Scaled(builder, scaling) if scaling else None
    seeds = scaled.seeds(objective.seeds) if scaled else objective.seeds
    grads = _backward(builder, seeds, trainable)
    steps = _append_steps(builder)
    updates = append_update(builder, trainable, grads, recipe, scaled)
    if not updates:
        raise GradletError("none of the chosen parameters influences the loss")
    result = replace(
        graph,
        tensors=builder.tensors,
        nodes=_by_phase(builder.nodes),
        data=builder.data,
        samples=objective.samples,
        loss=objective.loss,
        grads=tuple(grads.items()),
        updates=(*graph.updates, *steps, *updates),
        accumulate=recipe.accumulate,
        stored=objective.stored,
        own_names=builder.own_names,
    )
    check_graph(result)
    return result


def _check_recipe(recipe: Recipe) -> None:
    check_losses(recipe.all_losses())
    check_optimizer(recipe)
    if not 1 <= recipe.accumulate <= MOST_MICRO_BATCHES:
        raise GradletError(
            f"gradients can be accumulated over 1 to {MOST_MICRO_BATCHES} micro-batches, not "
            f"{recipe.accumulate}: the golden data are computed over whole updates"
        )


class _BackwardEmitter:
    """Writes the nodes of the backward phase for the ops' vjp, and keeps what is known of the
    gradient of each tensor."""

    def __init__(self, builder: GraphBuilder, seeds: Mapping[str, str]) -> None:
        self.builder = builder
        self.casts = Casts(builder)
        self.cast_weights = _cast_weights(builder)
        self.module = ""
        self.parts = {loss: [seed] for loss, seed in seeds.items()}  # from each reader
        self.grads: dict[str, str] = {}
        self.renames: dict[str, str] = {}

    def add(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        return self.add_many(op, inputs, attrs)[0]

    def add_many(
        self, op: str, inputs: Sequence[str], attrs: Attrs | None = None
    ) -> tuple[str, ...]:
        inputs = [self._at_hand(name) for name in inputs]
        return self.casts.add_many(
            op, inputs, attrs, phase="backward", role="partial", module=self.module
        )

    def _at_hand(self, name: str) -> str:
        """A weight that the forward pass has cast is cast once more: to keep the copies of all
        weights until the backward pass takes more memory than anything else."""
        weight = self.cast_weights.get(name)
        if weight is None:
            return name
        dtype = self.builder.tensors[name].dtype
        return self.casts.to(weight, dtype, phase="backward", module=self.module)

    def shape(self, name: str) -> Shape:
        return self.builder.tensors[name].shape

    def contribute(self, name: str, grad: str) -> None:
        """Of a part of the gradient, in the type of the tensor."""
        dtype = self.builder.tensors[name].dtype
        grad = self.casts.to(grad, dtype, phase="backward", module=self.module)
        self.parts.setdefault(name, []).append(grad)

    def total(self, name: str) -> str:
        """Add up what the readers of a tensor contributed to its gradient."""
        own = self.parts.get(name, [])
        if not own:
            return ""
        total = own[0]
        for index, part in enumerate(own[1:], start=1):
            first = f"d_{name}.part0" if index == 1 else f"d_{name}.sum{index}"
            self.renames.setdefault(total, first)
            self.renames.setdefault(part, f"d_{name}.part{index}")
            total = self.add("add", [total, part])
        self.grads[name] = total
        self.renames.setdefault(total, f"d_{name}")
        return total

    def named(self) -> dict[str, str]:
        """Call the gradient of t `d_t`; one that passes through unchanged keeps its first name."""
        renames = self.builder.rename(self.renames)
        named = {name: renames.get(grad, grad) for name, grad in self.grads.items()}
        for grad in named.values():
            tensor = self.builder.tensors[grad]
            if tensor.role == "partial":
                self.builder.tensors[grad] = replace(tensor, role="gradient")
        return named


def _cast_weights(builder: GraphBuilder) -> dict[str, str]:
    """From copies of weights in another element type to the weights."""
    return {
        node.outputs[0]: node.inputs[0]
        for node in builder.nodes
        if node.op in CASTS and builder.tensors[node.inputs[0]].role == "param"
    }


def _backward(
    builder: GraphBuilder, seeds: Mapping[str, str], trainable: Sequence[str]
) -> dict[str, str]:
    """Append the gradients of everything between the trainable parameters and the losses, whose
    own gradients are known."""
    sums = {node.name for node in builder.nodes if builder.tensors[node.name].role == "loss"}
    forward = [node for node in builder.nodes if node.name in seeds or node.name not in sums]
    emit = _BackwardEmitter(builder, seeds)
    elsewhere = _walk_backward(emit, forward, needs_gradient(builder, trainable))
    emit.module = ""
    for name in trainable:
        emit.total(name)
    for loss, seed in seeds.items():
        emit.renames.pop(seed, None)
        emit.grads.pop(loss, None)
    for name in elsewhere & emit.grads.keys():  # what is known of it is no gradient of anything
        rest = emit.grads.pop(name)
        if emit.renames.get(rest) == f"d_{name}":
            emit.renames[rest] = f"d_{name}.rest"
    return emit.named()


def _walk_backward(emit: _BackwardEmitter, forward: Sequence[Node], needed: set[str]) -> set[str]:
    """Every op's vjp, last op first. Returns the tensors a part of whose gradient goes straight to
    the rows that are trained."""
    rows = RowGradients(forward)
    elsewhere: set[str] = set()
    for node in reversed(forward):
        emit.module = node.module
        wanted = _wanted(node, needed)
        if not wanted or not any(emit.parts.get(output) for output in node.outputs):
            continue
        received = [emit.total(output) for output in node.outputs]
        site = Graph("", emit.builder.tensors, (), (), ()).site(node)
        apart = rows.apart(site, wanted)
        slots = _slots(node)
        elsewhere.update(slots[slot] for slot in apart)
        whole = [slot for slot in wanted if slot not in apart]
        for slot, grad in OPS[node.op].vjp(emit, site, received, whole).items():
            emit.contribute(slots[slot], grad)
        for name, grad in rows.emit(emit, site, received[0], apart):
            emit.contribute(name, grad)
    return elsewhere


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


def needs_gradient(builder: GraphBuilder, trainable: Sequence[str]) -> set[str]:
    needed = set(trainable)
    for node in builder.nodes:
        if needed.intersection(node.inputs) and not OPS[node.op].stops:
            needed.update(name for name in node.outputs if builder.tensors[name].dtype != "i32")
    return needed


def _by_phase(nodes: Sequence[Node]) -> tuple[Node, ...]:
    order = ("forward", "backward", "update")
    return tuple(sorted(nodes, key=lambda node: order.index(node.phase)))
