"""What a model makes of an index that leads nowhere is NaN, and teaches nothing (ops/guard.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import Graph, Node, Tensor
from gradlet.ops.base import integer


def rows_of(node: Node, tensors: Mapping[str, Tensor]) -> int:
    """How many rows, or elements of a line, a lookup may choose from; 0 if it is none."""
    match node.op:
        case "gather":
            return tensors[node.inputs[0]].shape[0]
        case "put_sum":
            return integer(node.attrs, "length")
        case "take" | "put":
            return tensors[node.inputs[0]].shape[integer(node.attrs, "axis")]
    return 0


def guarded(graph: Graph) -> Graph:
    """The same forward pass, whose results are NaN if an index that comes at run time is bad."""
    builder = GraphBuilder(graph.name, graph)
    faults: dict[tuple[str, int], None] = {}
    made_by = graph.producer()
    for node in graph.nodes:
        rows = rows_of(node, graph.tensors)
        if rows and not _is_known(graph, node.inputs[1], made_by, rows):
            faults[node.inputs[1], rows] = None
    if not faults:
        return graph
    fault: list[str] = []
    for index, rows in faults:
        fault = [builder.add("index_fault", [index, *fault], {"rows": rows})]
    stored, outputs = dict(graph.stored), []
    for name in graph.outputs:
        outputs.append(builder.add("guard", [name, *fault]))
        if name in stored:
            stored[outputs[-1]] = stored.pop(name)
    return replace(
        graph,
        tensors=builder.tensors,
        nodes=tuple(builder.nodes),
        outputs=tuple(outputs),
        stored=stored,
    )


def _is_known(graph: Graph, index: str, made_by: Mapping[str, Node], rows: int) -> bool:
    """Whether an index cannot be bad: a constant, or a place in a line that was sorted."""
    while (node := made_by.get(index)) and node.op == "reshape":
        index = node.inputs[0]
    if node is None:
        return graph.tensors[index].role == "const"
    if node.op != "sort":
        return False
    return graph.tensors[node.inputs[0]].shape[integer(node.attrs, "axis")] <= rows
