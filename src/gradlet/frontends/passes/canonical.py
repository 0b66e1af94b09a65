"""One spelling for what front ends spell in several ways, so that the same model is one graph.

The rules keep what is computed: views of views and permutations of permutations become one, a
transposed right factor becomes a layout, a bias that is added to a product goes into it, what only
depends on constants is a constant, and a constant number is no operand. Parameters stay as they are
stored, except those in `turn`: right factors among them are kept as [out, in], as a linear layer
has them. That is for files in which an exporter, or a framework that stores [in, out], has
transposed them. With `decimals` a number that is stored as float32 stands for the shortest decimal
that rounds to it: a file has no other way to say 0.1, which a module computes with in float64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from gradlet.ir.builder import GraphBuilder
from gradlet.ir.check import check_graph
from gradlet.ir.graph import Array, Graph, Node
from gradlet.ops import OPS
from gradlet.ops.base import ints
from gradlet.ops.shape import permutation_steps


def canonical(
    graph: Graph,
    *,
    turn: Collection[str] = (),
    decimals: bool = False,
    turned: set[str] | None = None,
) -> Graph:
    """The same forward program in the one spelling; tensors are numbered anew. The names of those
    that are turned are added to `turned`, if it is given."""
    while True:
        rewriting = _Pass(graph, turn, decimals)
        simpler = rewriting.run()
        if turned is not None:
            turned ^= rewriting.turned
        if simpler == graph:
            break
        graph = simpler
    check_graph(simpler)
    return simpler


def moves_as_views(graph: Graph) -> Graph:
    """With permutations that only move dimensions of 1 as views, which cost nothing."""

    def view(node: Node) -> Node:
        shape = graph.tensors[node.inputs[0]].shape
        kept = [axis for axis in ints(node.attrs, "axes") if shape[axis] != 1]
        attrs = {"shape": graph.tensors[node.outputs[0]].shape}
        return replace(node, op="reshape", attrs=attrs) if kept == sorted(kept) else node

    nodes = (view(node) if node.op == "transpose" else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


MADE_WHOLE = ("floor", "ceil", "trunc", "round", "to_index")
"""What takes the fraction off: 49 * (1 / 49) is below 1, 49 / 49 is not."""


class _Pass:
    """Writes a graph once more, line by line, in front of what stands already."""

    def __init__(self, graph: Graph, turn: Collection[str], decimals: bool) -> None:
        self.graph = graph
        self.decimals = decimals
        self.builder = GraphBuilder(graph.name)
        self.names: dict[str, str] = {}  # tensor of the old graph -> tensor of the new one
        self.made_by: dict[str, int] = {}  # tensor of the new graph -> index of its node
        self.producer = graph.producer()
        read = [name for node in graph.nodes for name in node.inputs]
        self.readers = Counter([*graph.outputs, *(new for _, new in graph.updates), *read])
        self.made_whole = {node.inputs[0] for node in graph.nodes if node.op in MADE_WHOLE}
        self.turned = _right_factors(graph).intersection(turn)

    def run(self) -> Graph:
        self._externals()
        for node in self.graph.nodes:
            inputs = [self.names[name] for name in node.inputs]
            if len(node.outputs) == 1:
                self.names[node.outputs[0]] = self._rewrite(node, inputs)
            else:
                self.names.update(zip(node.outputs, self._copy(node, inputs), strict=True))
        outputs = tuple(self.names[name] for name in self.graph.outputs)
        updates = tuple((self.names[old], self.names[new]) for old, new in self.graph.updates)
        named = replace(self.graph, outputs=outputs, updates=updates)
        return _without_unused(named, self.builder)

    def _externals(self) -> None:
        """Inputs, then the rest as it is first read: that order does not depend on the file."""
        read = [name for node in self.graph.nodes for name in node.inputs]
        for name in dict.fromkeys([*self.graph.inputs, *read, *self.graph.outputs]):
            tensor = self.graph.tensors[name]
            if name in self.graph.data:
                value = self.graph.data[name]
                value = value.T.copy() if name in self.turned else value
                self.names[name] = self.builder.value(name, value, tensor.role, tensor.dtype)
            elif tensor.role == "input":
                self.names[name] = self.builder.external(name, tensor.shape, "input", tensor.dtype)

    def _rewrite(self, node: Node, inputs: list[str]) -> str:
        if all(self._is_const(name) for name in inputs):
            values: list[Array] = [self.builder.data[name] for name in inputs]
            (value,) = OPS[node.op].reference(node.attrs, *values)
            dtype = self.graph.tensors[node.outputs[0]].dtype
            return self.builder.value(self.builder.fresh("const"), value, "const", dtype)
        if node.op == "reshape":
            return self._reshape(node, inputs[0])
        if node.op == "transpose":
            return self._transpose(node, inputs[0])
        if node.op == "matmul":
            return self._matmul(node, inputs)
        if node.op == "add":
            return (
                self._number(node, inputs) or self._bias(node, inputs) or self._emit(node, inputs)
            )
        if node.op in ("sub", "mul", "div"):
            return self._number(node, inputs) or self._emit(node, inputs)
        return self._emit(node, inputs)

    def _number(self, node: Node, inputs: list[str]) -> str | None:
        """Arithmetic with a constant number, which files keep as a tensor, needs no operand."""
        for slot in (1, 0):
            x, number = inputs[1 - slot], inputs[slot]
            constant, shape = self.builder.tensors[number], self.builder.tensors[x].shape
            if (
                constant.elements != 1
                or constant.role != "const"
                or len(constant.shape) > len(shape)
            ):
                continue
            stored = self.builder.data[number].reshape(-1)[0]
            c = float(str(stored) if self.decimals else stored)
            if node.op == "div" and (slot == 0 or c == 0 or node.outputs[0] in self.made_whole):
                continue
            slope = {"mul": c, "div": 1 / c if c else 0.0, "sub": 2.0 * slot - 1}.get(node.op, 1.0)
            offset = {"add": c, "sub": c * (1 - 2 * slot)}.get(node.op, 0.0)
            attrs = {"slope": slope, "offset": offset}
            if (slope, offset) == (1.0, 0.0):
                return x
            name = self.builder.add("affine", [x], attrs, module=node.module)
            self.made_by[name] = len(self.builder.nodes) - 1
            return name
        return None

    def _copy(self, node: Node, inputs: list[str]) -> tuple[str, ...]:
        return self.builder.add_many(node.op, inputs, node.attrs, module=node.module)

    def _emit(self, node: Node, inputs: list[str], **attrs: str | tuple[int, ...]) -> str:
        name = self.builder.add(node.op, inputs, {**node.attrs, **attrs}, module=node.module)
        self.made_by[name] = len(self.builder.nodes) - 1
        return name

    def _is_const(self, name: str) -> bool:
        return self.builder.tensors[name].role == "const"

    def _source(self, name: str, op: str) -> Node | None:
        """The node that makes a tensor, if it is of that kind."""
        node = self.builder.nodes[self.made_by[name]] if name in self.made_by else None
        return node if node and node.op == op else None

    def _reshape(self, node: Node, x: str) -> str:
        while inner := self._source(x, "reshape"):
            x = inner.inputs[0]
        same = self.builder.tensors[x].shape == ints(node.attrs, "shape")
        return x if same else self._emit(node, [x])

    def _transpose(self, node: Node, x: str) -> str:
        axes = ints(node.attrs, "axes")
        while inner := self._source(x, "transpose"):
            axes = tuple(ints(inner.attrs, "axes")[axis] for axis in axes)
            x = inner.inputs[0]
        if axes == tuple(range(len(axes))):
            return x
        for step in permutation_steps(self.builder.tensors[x].shape, axes):
            x = self._emit(node, [x], axes=step)
        return x

    def _matmul(self, node: Node, inputs: list[str]) -> str:
        layout = str(node.attrs["layout"])
        if node.inputs[1] in self.turned:
            return self._emit(node, inputs, layout="nt")
        inner = self._source(inputs[1], "transpose")
        if inner and layout in ("nn", "nt") and _swaps_last_two(inner):
            inputs[1] = inner.inputs[0]
            layout = "nt" if layout == "nn" else "nn"
        return self._emit(node, inputs, layout=layout)

    def _bias(self, node: Node, inputs: list[str]) -> str | None:
        """Put a vector that is added to a product, or to a view of its rows, into the product."""
        for slot in (0, 1):
            y, bias = inputs[slot], inputs[1 - slot]
            vector = self.builder.tensors[bias]
            view = self._source(y, "reshape")
            product = self._source(view.inputs[0] if view else y, "matmul")
            if vector.role != "param" or product is None or len(product.inputs) == 3:
                continue
            width = self.builder.tensors[product.outputs[0]].shape[-1:]
            fits = vector.shape == width == self.builder.tensors[y].shape[-1:]
            if fits and self._only_reader(node.inputs[slot]):
                index = self.made_by[product.outputs[0]]
                self.builder.nodes[index] = replace(product, inputs=(*product.inputs, bias))
                return y
        return None

    def _only_reader(self, name: str) -> bool:
        """Whether nothing but one node sees a product, or its view, without the bias."""
        made = self.producer[name]
        if made.op == "reshape" and self.readers[name] == 1:
            name = made.inputs[0]
            made = self.producer[name]
        return made.op == "matmul" and self.readers[name] == 1


def _right_factors(graph: Graph) -> set[str]:
    """Parameters that are only ever right factors as they stand."""
    right: set[str] = set()
    other = set(graph.outputs)
    for node in graph.nodes:
        for slot, name in enumerate(node.inputs):
            plain = node.op == "matmul" and slot == 1 and node.attrs["layout"] == "nn"
            (right if plain else other).add(name)
    params = {t.name for t in graph.of_role("param") if len(t.shape) == 2}
    return right & params - other


def _swaps_last_two(node: Node) -> bool:
    axes = ints(node.attrs, "axes")
    rank = len(axes)
    return rank >= 2 and axes == (*range(rank - 2), rank - 1, rank - 2)


def _without_unused(graph: Graph, builder: GraphBuilder) -> Graph:
    """Drop what leads to no output, and number the rest without gaps."""
    wanted, kept = {*graph.outputs, *(new for _, new in graph.updates)}, []
    for node in reversed(builder.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    clean = GraphBuilder(graph.name)
    names: dict[str, str] = {}
    for name, tensor in builder.tensors.items():
        if name in builder.data and name in wanted:
            names[name] = clean.value(name, builder.data[name], tensor.role, tensor.dtype)
        elif name in graph.inputs:
            names[name] = clean.external(name, tensor.shape, tensor.role, tensor.dtype)
    for node in reversed(kept):
        inputs = [names[name] for name in node.inputs]
        results = clean.add_many(node.op, inputs, node.attrs, module=node.module)
        names.update(zip(node.outputs, results, strict=True))
    return replace(
        graph,
        tensors=clean.tensors,
        nodes=tuple(clean.nodes),
        outputs=tuple(names[name] for name in graph.outputs),
        updates=tuple((names[old], names[new]) for old, new in graph.updates),
        data=clean.data,
    )
