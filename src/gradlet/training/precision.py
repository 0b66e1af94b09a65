"""The element types of a captured model, ahead of training: what is computed and stored narrow, and
where numbers are cast.

A layer computes in the type that the recipe gives it. Its operands are cast where they have another
one, each tensor once; a result stays as it was computed until somebody needs it otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.elements import ELEMENTS, F32
from gradlet.ir.graph import Graph, Node, Tensor
from gradlet.ir.recipe import DTYPES, MIXED, Recipe, types_of
from gradlet.ops import OPS
from gradlet.ops.frozen_norm import Blend
from gradlet.oracle.interpreter import WHOLE_PARTS
from gradlet.training.casts import Casts
from gradlet.training.selection import select, select_rows


@dataclass(frozen=True)
class Precision:
    """By patterns of layers, the first that fits: what they compute in, and whether the weights
    that are trained stay in single precision (`mixed`)."""

    rules: tuple[tuple[str, str], ...]

    @staticmethod
    def of(graph: Graph, recipe: Recipe) -> Precision:
        rules = types_of(recipe.dtype)
        layers = sorted({node.module for node in graph.nodes if node.module})
        for pattern, _ in rules:
            if pattern != "*" and not any(_matches(layer, pattern) for layer in layers):
                known = ", ".join(layers) or "none"
                raise GradletError(f"dtype: no layer is called '{pattern}'; there are {known}")
        return Precision(rules)

    def named(self, module: str) -> str:
        return next((kind for pattern, kind in self.rules if _matches(module, pattern)), F32.name)

    def element(self, module: str) -> str:
        return DTYPES[self.named(module)]

    @property
    def is_single(self) -> bool:
        return all(kind == F32.name for _, kind in self.rules)


def _matches(layer: str, pattern: str) -> bool:
    return fnmatchcase(layer, pattern) or layer.startswith(f"{pattern}.")


def with_types(graph: Graph, recipe: Recipe) -> Graph:
    """The same forward program over tensors of these types; what comes out is in single
    precision."""
    precision = Precision.of(graph, recipe)
    if precision.is_single:
        return graph
    trained = {*select(graph, recipe.update), *select_rows(graph, recipe.update)}
    return _Pass(graph, precision, trained).run()


class _Pass:
    """Writes the graph once more, with casts."""

    def __init__(self, graph: Graph, precision: Precision, trained: Collection[str]) -> None:
        self.graph = graph
        self.builder = GraphBuilder(graph.name)
        self.builder.own_names = dict(graph.own_names)
        self.casts = Casts(self.builder)
        self.types = _types_of_nodes(graph, precision)
        self.kinds = {node.name: precision.named(node.module) for node in graph.nodes}
        self.trained = trained
        self.names: dict[str, str] = {}

    def run(self) -> Graph:
        consumers = self.graph.consumers()
        for tensor in self.graph.tensors.values():
            if tensor.name in self.graph.inputs or tensor.name in self.graph.data:
                self._external(tensor, list(_readers(consumers, tensor.name)))
        for node in self.graph.nodes:
            self._node(node)
        outputs = tuple(self.casts.to(self.names[name], F32.name) for name in self.graph.outputs)
        renamed = dict(zip(self.graph.outputs, outputs, strict=True))
        stored = {renamed.get(name, name): kept for name, kept in self.graph.stored.items()}
        updates = tuple((self.names[old], self.names[new]) for old, new in self.graph.updates)
        return replace(
            self.graph,
            tensors=self.builder.tensors,
            nodes=tuple(self.builder.nodes),
            outputs=outputs,
            updates=updates,
            data=self.builder.data,
            samples=self._samples(),
            stored=stored,
            own_names=self.builder.own_names,
        )

    def _external(self, tensor: Tensor, readers: Sequence[Node]) -> None:
        dtype = self._stored(tensor, readers)
        if tensor.name in self.graph.data:
            value = self.graph.data[tensor.name]
            made = self.builder.value(tensor.name, value, tensor.role, dtype)
        else:
            made = self.builder.external(tensor.name, tensor.shape, tensor.role, dtype)
        self.names[tensor.name] = made

    def _stored(self, tensor: Tensor, readers: Sequence[Node]) -> str:
        """The type that all readers want, where the numbers may be rounded once and for all."""
        wanted = {self.types[node.name] for node in readers}
        if not tensor.element.is_float or len(wanted) != 1:
            return tensor.dtype
        dtype = wanted.pop()
        if tensor.role == "param":
            master = any(self.kinds[node.name] == MIXED for node in readers)
            return F32.name if master and tensor.name in self.trained else dtype
        if tensor.role == "const":
            value = self.graph.data[tensor.name]
            return dtype if np.array_equal(ELEMENTS[dtype].rounded(value), value) else F32.name
        return dtype if tensor.role == "input" else F32.name

    def _samples(self) -> dict[str, np.ndarray]:
        def rounded(name: str, value: np.ndarray) -> np.ndarray:
            element = self.builder.tensors[self.names[name]].element
            return element.loaded(element.stored(value)) if element.accumulate else value

        return {name: rounded(name, value) for name, value in self.graph.samples.items()}

    def _node(self, node: Node) -> None:
        inputs = [self.names[name] for name in node.inputs]
        view = OPS[node.op].view
        dtype = self.builder.tensors[inputs[0]].dtype if view else self.types[node.name]
        made = self.casts.add_many(
            node.op,
            inputs,
            node.attrs,
            dtype=dtype,
            role=self.graph.tensors[node.outputs[0]].role,
            module=node.module,
            name=node.outputs[0],
        )
        self.names.update(zip(node.outputs, made, strict=True))


def _readers(consumers: Mapping[str, Sequence[Node]], name: str) -> Iterator[Node]:
    """The nodes that compute with a tensor, as it is or as a view."""
    for node in consumers[name]:
        if OPS[node.op].view:
            yield from _readers(consumers, node.outputs[0])
        else:
            yield node


def _types_of_nodes(graph: Graph, precision: Precision) -> Mapping[str, str]:
    """What each node computes in. Running statistics, and what becomes an index and depends on no
    weight, stay in single precision."""
    types = {node.name: precision.element(node.module) for node in graph.nodes}
    types |= {node.name: F32.name for node in graph.nodes if node.op == Blend.name}
    weighted = _depends_on_weights(graph)
    counted = {name for node in graph.nodes if node.op in WHOLE_PARTS for name in node.inputs}
    for name in graph.behind(counted - weighted):
        types[name] = F32.name
    return types


def _depends_on_weights(graph: Graph) -> set[str]:
    found = {tensor.name for tensor in graph.of_role("param")}
    for node in graph.nodes:
        if found.intersection(node.inputs):
            found.update(node.outputs)
    return found
