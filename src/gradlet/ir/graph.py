"""Tensor, Node, Graph: the value that capture makes and train extends.

A graph is a straight-line program in single assignment: every tensor is written once, by an
earlier line, or comes from outside (input, target, param, const, state). A tensor that is
updated in place on the device is two tensors here, tied by `updates`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradlet.ir.elements import ELEMENTS, F32, Element

Shape = tuple[int, ...]
Attr = int | float | bool | str | tuple[int, ...]
Attrs = Mapping[str, Attr]
Array = NDArray[Any]
ArrayWriter = Callable[[str, Array], Mapping[str, Any]]
ArrayReader = Callable[[Mapping[str, Any]], Array]

PHASES = ("forward", "backward", "update")
OWN_SPACE = "@"
"""Names of what is no tensor of a graph begin with it (scratch, tiles), and no tensor's does."""

EXTERNAL_ROLES = ("input", "target", "param", "const", "state")
ROLES = (*EXTERNAL_ROLES, "activation", "loss", "gradient", "partial", "updated")


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: Shape
    dtype: str = F32.name
    role: str = "activation"

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def bytes(self) -> int:
        return self.elements * self.element.bytes

    @property
    def element(self) -> Element:
        return ELEMENTS[self.dtype]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Node:
    """One operation. `module` is the path in the user's model, for messages only."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict)
    phase: str = "forward"
    module: str = field(default="", compare=False)


@dataclass(frozen=True)
class Site:
    """A node with the tensors that it touches: what an op needs to know of its surroundings."""

    node: Node
    ins: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]

    @property
    def attrs(self) -> Attrs:
        return self.node.attrs

    @property
    def moved_bytes(self) -> int:
        return sum(tensor.bytes for tensor in (*self.ins, *self.outs))


@dataclass(frozen=True)
class Graph:
    """A program over static shapes.

    data      values of params, consts and states before the first step
    samples   values of inputs and targets, one leading index per micro-batch
    grads     (tensor, its gradient); updates  (tensor, what replaces it after the step)
    accumulate  micro-batches per update
    layout    of feature maps: chw, or hwc
    stored    what lies otherwise than in the model: viewed as the first, permuted by the second
    results   what the outputs were asked for as, where there are several
    whole     inputs whose first dimension counts no samples
    grown     results whose errors are larger than those of plain sums: how many times the largest
              of their neighbours in a row, and how far away those are; by the kernels of a plan

    Names are unique and nothing more: what a tensor is for is told by its role and its readers. The
    model's own tensors come first and keep their names; `own_names` has those that could not.
    """

    name: str
    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    data: Mapping[str, Array] = field(default_factory=dict, compare=False)
    samples: Mapping[str, Array] = field(default_factory=dict, compare=False)
    loss: str = ""
    grads: tuple[tuple[str, str], ...] = ()
    updates: tuple[tuple[str, str], ...] = ()
    accumulate: int = 1
    layout: str = "chw"
    stored: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict, compare=False)
    own_names: Mapping[str, str] = field(default_factory=dict, compare=False)
    results: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    grown: Mapping[str, tuple[float, int]] = field(default_factory=dict, compare=False)

    def own_name(self, name: str) -> str:
        """What the model itself calls a tensor."""
        return self.own_names.get(name, name)

    def site(self, node: Node) -> Site:
        ins = tuple(self.tensors[name] for name in node.inputs)
        return Site(node, ins, tuple(self.tensors[name] for name in node.outputs))

    def sites(self, *phases: str) -> Iterator[Site]:
        return (site for site in self._sites if not phases or site.node.phase in phases)

    @cached_property
    def _sites(self) -> tuple[Site, ...]:
        return tuple(map(self.site, self.nodes))

    @cached_property
    def ends(self) -> Mapping[str, tuple[str, ...]]:
        """By node, the tensors that nobody needs once it has run, if updates run last of all. The
        loss, and what a step leaves to the next, are always needed."""
        last: dict[str, str] = {}
        for node in sorted(self.nodes, key=lambda node: node.phase == "update"):
            last |= dict.fromkeys((*node.outputs, *node.inputs), node.name)
        for name in (self.loss, *(new for _, new in self.updates)):
            last.pop(name, None)
        ends: dict[str, tuple[str, ...]] = {}
        for name, by in last.items():
            ends[by] = (*ends.get(by, ()), name)
        return ends

    def behind(self, names: Iterable[str]) -> set[str]:
        """The nodes that some tensors depend on."""
        wanted, found = set(names), set()
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                found.add(node.name)
                wanted.update(node.inputs)
        return found

    def of_role(self, *roles: str) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors.values() if tensor.role in roles)

    def producer(self) -> Mapping[str, Node]:
        """The node that makes each tensor."""
        return self._producers

    @cached_property
    def _producers(self) -> Mapping[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        users: dict[str, list[Node]] = {name: [] for name in self.tensors}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                users[name].append(node)
        return users

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """What losses compare with, known by their role: a model may call its own tensors so."""
        return tuple(tensor.name for tensor in self.of_role("target"))

    @property
    def fed(self) -> tuple[str, ...]:
        """What every micro-batch brings: the inputs, then the targets."""
        return (*self.inputs, *self.targets)

    @property
    def batch(self) -> int:
        """Samples that are computed together."""
        shapes = (self.tensors[name].shape for name in self.inputs if name not in self.whole)
        return next((shape[0] for shape in shapes if shape), 1)

    @property
    def trained(self) -> tuple[str, ...]:
        return tuple(old for old, _ in self.updates if self.tensors[old].role == "param")

    @property
    def dtypes(self) -> dict[str, list[str]]:
        """The element types of what is trained, of what layers make, and of its gradients."""
        kinds = {
            "weights": [self.tensors[name] for name in self.trained],
            "activations": self.of_role("activation"),
            "gradients": self.of_role("gradient"),
        }
        return {
            kind: sorted({t.dtype for t in tensors if t.element.is_float})
            for kind, tensors in kinds.items()
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"

    def to_json(self, array: ArrayWriter | None = None) -> dict[str, Any]:
        """`array` writes values of data and samples by name, if not as text within."""
        write = array or (lambda _, value: array_to_json(value))
        return {
            "name": self.name,
            "tensors": [
                {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "role": t.role}
                for t in self.tensors.values()
            ],
            "nodes": [_node_to_json(node) for node in self.nodes],
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "loss": self.loss,
            "grads": [list(pair) for pair in self.grads],
            "updates": [list(pair) for pair in self.updates],
            "accumulate": self.accumulate,
            "layout": self.layout,
            "stored": {name: [list(s), list(o)] for name, (s, o) in self.stored.items()},
            "own_names": dict(self.own_names),
            "results": list(self.results),
            "whole": list(self.whole),
            "data": {name: write(name, value) for name, value in self.data.items()},
            "samples": {name: write(name, value) for name, value in self.samples.items()},
        }

    @staticmethod
    def from_json(value: Mapping[str, Any], array: ArrayReader | None = None) -> Graph:
        read = array or array_from_json
        tensors = [
            Tensor(t["name"], tuple(t["shape"]), t["dtype"], t["role"]) for t in value["tensors"]
        ]
        return Graph(
            name=value["name"],
            tensors={tensor.name: tensor for tensor in tensors},
            nodes=tuple(_node_from_json(node) for node in value["nodes"]),
            inputs=tuple(value["inputs"]),
            outputs=tuple(value["outputs"]),
            data={name: read(item) for name, item in value["data"].items()},
            samples={name: read(item) for name, item in value["samples"].items()},
            loss=value["loss"],
            grads=tuple((a, b) for a, b in value["grads"]),
            updates=tuple((a, b) for a, b in value["updates"]),
            accumulate=value["accumulate"],
            layout=value["layout"],
            stored={name: (tuple(s), tuple(o)) for name, (s, o) in value["stored"].items()},
            own_names=dict(value.get("own_names", {})),
            results=tuple(value.get("results", ())),
            whole=tuple(value.get("whole", ())),
        )

    def dumps(self) -> str:
        return json.dumps(self.to_json(), indent=1)

    @staticmethod
    def loads(text: str) -> Graph:
        return Graph.from_json(json.loads(text))


def array_to_json(value: Array) -> dict[str, Any]:
    little = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"))
    return {
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "base64": base64.b64encode(little.tobytes()).decode("ascii"),
    }


def array_from_json(value: Mapping[str, Any]) -> Array:
    raw = base64.b64decode(value["base64"])
    little = np.frombuffer(raw, dtype=np.dtype(value["dtype"]).newbyteorder("<"))
    return little.astype(value["dtype"]).reshape(value["shape"])


def _node_to_json(node: Node) -> dict[str, Any]:
    attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in node.attrs.items()}
    return {
        "name": node.name,
        "op": node.op,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
        "attrs": attrs,
        "phase": node.phase,
        "module": node.module,
    }


def _node_from_json(value: Mapping[str, Any]) -> Node:
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in value["attrs"].items()}
    return Node(
        value["name"],
        value["op"],
        tuple(value["inputs"]),
        tuple(value["outputs"]),
        attrs,
        value["phase"],
        value["module"],
    )


def _lines(graph: Graph) -> Iterator[str]:
    arguments = ", ".join(str(graph.tensors[name]) for name in graph.inputs)
    yield f"graph {graph.name}({arguments}) -> {', '.join(graph.outputs)}"
    for tensor in graph.of_role("param", "const", "state", "target"):
        yield f"  {tensor.role} {tensor}"
    for phase in PHASES:
        nodes = [node for node in graph.nodes if node.phase == phase]
        if nodes:
            yield f"{phase}:"
        for node in nodes:
            yield "  " + _node_line(graph, node)


def _node_line(graph: Graph, node: Node) -> str:
    outputs = ", ".join(str(graph.tensors[name]) for name in node.outputs)
    attrs = [f"{key}={_attr_text(value)}" for key, value in node.attrs.items()]
    comment = f"   # {node.module}" if node.module else ""
    return f"{outputs} = {node.op}({', '.join([*node.inputs, *attrs])}){comment}"


def _attr_text(value: Attr) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
