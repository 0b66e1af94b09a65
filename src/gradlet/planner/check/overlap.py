"""Whether a call writes over what it reads itself.

The cores of a call run side by side, some ahead of others: an element that one core replaces may
not have been read by another one yet. So a result lies on none of the operands of its call, except
where the op says that it may take over that operand, element for element.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from gradlet.ir.graph import Graph, Node
from gradlet.ops import OPS
from gradlet.ops.learning.optimizer import Update
from gradlet.planner.model import Plan

Place = tuple[str, str, int, int]
"""Level, region, and the bytes from here to there."""


def overlap_faults(plan: Plan) -> Iterator[str]:
    nodes = {node.name: node for node in plan.graph.nodes}
    places = {name: _place(plan, name) for buffer in plan.buffers for name in buffer.tensors}
    for call in plan.calls:
        results = [name for name in call.outputs if name]
        for one, other in combinations(results, 2):
            if _overlap(places[one], places[other]):
                yield f"'{call.name}' writes '{one}' and '{other}' to one place"
        own = nodes[call.nodes[0]] if len(call.nodes) == 1 else None
        for result in results:
            if call.scratch and _overlap(places[result], places[call.scratch]):
                yield f"the scratch of '{call.name}' lies on its result '{result}'"
            for position, name in enumerate(call.inputs):
                if not name or not _overlap(places[result], places[name]):
                    continue
                same = places[result] == places[name]
                if not (own and same and _takes_over(plan.graph, own, result, position)):
                    yield f"'{call.name}' writes '{result}' over '{name}', which it reads"


def _place(plan: Plan, name: str) -> Place:
    buffer = plan.buffer_of()[name]
    size = plan.graph.tensors[name].bytes if name in plan.graph.tensors else buffer.bytes
    return buffer.level, buffer.region, buffer.offset, buffer.offset + size


def _overlap(one: Place, other: Place) -> bool:
    return one[:2] == other[:2] and one[2] < other[3] and other[2] < one[3]


def _takes_over(graph: Graph, node: Node, result: str, position: int) -> bool:
    """Whether the op allows that this result takes the place of the operand at this position."""
    op, operand = OPS[node.op], node.inputs[position]
    if graph.tensors[operand].shape != graph.tensors[result].shape:
        return False
    if isinstance(op, Update):  # weights and what the optimizer remembers, each for itself
        return (operand, result) in graph.updates
    writer = op.outputs.index(op.overwriter) if op.overwriter else 0
    stage = op.inputs[position].rstrip("?")
    return stage in op.overwrites and node.outputs[writer] == result
