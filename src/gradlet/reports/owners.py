"""Whose bytes are they, and what for: module and kind of everything that a plan gives an address.

Only the model's own nodes know their module. What the training added (optimizer states, clipping,
updates) belongs to the layer of the weight that it serves.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradlet.ir.graph import Graph, Node
from gradlet.ops.learning.labels import LOSSES
from gradlet.ops.learning.loss_scale import scale_of
from gradlet.ops.learning.optimizer import clip_of, correction_of, hyper_of
from gradlet.planner.model import Plan

KINDS = (
    "weights",
    "activations",
    "gradients",
    "optimizer",
    "tiles",
    "im2col",
    "scratch",
    "constants",
)
SHARED = "(shared)"
INPUT = "(input)"
LOSS = "(loss)"

_KIND_OF_ROLE = {
    "param": "weights",
    "updated": "weights",
    "const": "constants",
    "gradient": "gradients",
    "partial": "gradients",
}


class Owners:
    """Modules of tensors and nodes, and kinds of tensors, of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._graph = plan.graph
        self._of_all = {of(plan.graph) for of in (hyper_of, clip_of, correction_of, scale_of)}
        self._nodes: dict[str, str] = {}
        self._tensors: dict[str, str] = {}
        for name in plan.graph.inputs:
            self._tensors[name] = INPUT
        for node in plan.graph.nodes:
            self._note(node)
        self._kinds = _kinds(plan.graph)
        for call in plan.calls:
            if call.scratch:
                unrolled = call.kernel.variant.startswith(("im2col", "im2row"))
                self._kinds[call.scratch] = "im2col" if unrolled else "scratch"
                self._tensors[call.scratch] = self._nodes[call.nodes[0]]
            for view in call.tiling.views if call.tiling else ():
                for name in view.stage_buffers if view else ():
                    self._kinds[name] = "tiles"
                    self._tensors[name] = self._nodes[call.nodes[0]]

    def of_node(self, name: str) -> str:
        return self._nodes[name]

    def of_tensor(self, name: str) -> str:
        return self._tensors.get(name, SHARED)

    def kind(self, name: str) -> str:
        return self._kinds.get(name, "scratch")

    def _note(self, node: Node) -> None:
        owner = node.module or self._served(node)
        self._nodes[node.name] = owner
        for name in node.outputs:
            self._tensors.setdefault(name, owner)
        for name in node.inputs:
            own = self._graph.tensors[name].role in ("param", "state") and owner != SHARED
            if own and name not in self._of_all:
                self._tensors.setdefault(name, owner)
        if node.op in LOSSES:
            self._tensors.setdefault(node.inputs[1], LOSS)
        for tensor, grad in self._grads_of(node.outputs):
            if tensor in self._tensors and self._graph.tensors[tensor].role == "param":
                self._tensors[grad] = self._tensors[tensor]

    def _grads_of(self, outputs: Iterable[str]) -> list[tuple[str, str]]:
        made = set(outputs)
        return [pair for pair in self._graph.grads if pair[1] in made]

    def _served(self, node: Node) -> str:
        """The module of a node without one: that of its first operand that has an owner."""
        made = self._graph.tensors[node.outputs[0]]
        if made.role == "loss" or node.op.removesuffix("_grad") in LOSSES:
            return LOSS
        owners = (self._tensors.get(name, "") for name in node.inputs)
        return next((owner for owner in owners if owner), SHARED)


def _kinds(graph: Graph) -> dict[str, str]:
    """What a state is for: running statistics and masks are the model's, sums of gradients over
    micro-batches are gradients, the rest is the optimizer's. What replaces a tensor is of its kind.
    """
    forward = {n for node in graph.nodes if node.phase == "forward" for n in node.inputs}
    replaced = dict(reversed(graph.updates))
    kinds = {name: _KIND_OF_ROLE.get(t.role, "activations") for name, t in graph.tensors.items()}
    for tensor in graph.of_role("state"):
        if tensor.name in forward:
            kinds[tensor.name] = "weights"
        else:
            new = replaced.get(tensor.name, tensor.name)
            summed = graph.tensors[new].role == "partial"
            kinds[tensor.name] = "gradients" if summed else "optimizer"
    kinds.update({new: kinds[old] for old, new in graph.updates})
    return kinds
