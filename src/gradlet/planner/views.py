"""Views: tensors that show the bytes of another tensor under another shape."""

from __future__ import annotations

from gradlet.ir.graph import Graph
from gradlet.ops import OPS


def view_sources(graph: Graph) -> dict[str, str]:
    """For every tensor the one whose bytes it shows: itself, or what a chain of views starts at."""
    source = {name: name for name in graph.tensors}
    for node in graph.nodes:
        if OPS[node.op].view:
            source[node.outputs[0]] = source[node.inputs[0]]
    return source
