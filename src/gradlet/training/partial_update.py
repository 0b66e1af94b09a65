"""Some rows of a weight are trained, the others are not.

The trained rows become a parameter of their own, so that gradient and optimizer state are of their
size. At the start of a step they are put into their place in the weight, which is then no parameter
any more but a state; the rest of the graph reads that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import Graph, Node, Shape, Site, Tensor
from gradlet.ops import OPS
from gradlet.ops.base import integer
from gradlet.ops.emitter import Emitter
from gradlet.ops.lib.tiling import slice_attrs

Range = tuple[int, int]


def rows_name(name: str, rows: Range) -> str:
    return f"{name}[{rows[0]}:{rows[1]}]"


def with_rows_apart(graph: Graph, chosen: Mapping[str, Range]) -> tuple[Graph, list[str]]:
    """The same forward pass, with the chosen rows of some parameters as parameters: these."""
    if not chosen:
        return graph, []
    builder = GraphBuilder(graph.name, graph)
    tensors, data = builder.tensors, builder.data
    setters: list[Node] = []
    updates = list(graph.updates)
    read: dict[str, str] = {}
    parts: list[str] = []
    for name, rows in chosen.items():
        wanted = (rows_name(name, rows), f"{name}.used", f"{name}.kept")
        part, used, kept = map(builder.unique, wanted)
        parts.append(part)
        read[name] = used
        shape = tensors[name].shape
        tensors[name] = replace(tensors[name], role="state")
        dtype = tensors[name].dtype
        tensors[part] = Tensor(part, (rows[1] - rows[0], *shape[1:]), dtype, role="param")
        data[part] = data[name][slice(*rows)].copy()
        data[used] = data[name]  # they share one storage, which goes by the name of the first
        for new in (used, kept):
            tensors[new] = Tensor(new, shape, dtype, role="updated")
        module = next((n.module for n in graph.nodes if name in n.inputs), "")
        setters += [
            Node(used, "set_rows", (name, part), (used,), {"begin": rows[0]}, module=module),
            # what stays for the next step: a view, as a forward pass writes such things last
            Node(kept, "reshape", (used,), (kept,), {"shape": shape}, module=module),
        ]
        updates.append((name, kept))
    nodes = [replace(n, inputs=tuple(read.get(i, i) for i in n.inputs)) for n in graph.nodes]
    nodes = [*setters, *nodes]
    apart = replace(graph, tensors=tensors, data=data, nodes=tuple(nodes), updates=tuple(updates))
    return apart, parts


class RowGradients:
    """Gradients of rows from the part of a result's gradient that they made."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._setters = {node.outputs[0]: node for node in nodes if node.op == "set_rows"}

    def apart(self, site: Site, wanted: Sequence[str]) -> dict[str, tuple[str, int]]:
        """The wanted slots that hold such rows: their parameter, and the result's dimension."""
        found = {}
        slots = [slot.rstrip("?") for slot in OPS[site.node.op].inputs]
        for slot, name in zip(slots, site.node.inputs, strict=False):
            dim = OPS[site.node.op].rows_dim(site, slot)
            if slot in wanted and name in self._setters and dim is not None:
                found[slot] = (self._setters[name].inputs[1], dim)
        return found

    def emit(
        self, emit: Emitter, site: Site, grad: str, apart: Mapping[str, tuple[str, int]]
    ) -> list[tuple[str, str]]:
        """(parameter, its gradient) for each of them."""
        parts: dict[tuple[int, Range], str] = {}
        result = []
        op = OPS[site.node.op]
        for slot, (part, dim) in apart.items():
            key = (dim, self._range(part, emit.shape(part)))
            if key not in parts:
                attrs = slice_attrs(emit.shape(grad), dim, *key[1])
                parts[key] = emit.add("slice", [grad], attrs)
            result.append((part, op.vjp(emit, site, [parts[key]], [slot])[slot]))
        return result

    def _range(self, part: str, shape: Shape) -> Range:
        setter = next(node for node in self._setters.values() if node.inputs[1] == part)
        begin = integer(setter.attrs, "begin")
        return begin, begin + shape[0]
