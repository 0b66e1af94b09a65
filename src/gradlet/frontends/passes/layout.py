"""A captured model with its feature maps as [N, H, W, C]: the same results from other addresses.

One walk over the forward graph. Every tensor of the model lies in the new graph under some order of
its dimensions. Convolutions, pooling and interpolation ask for channels last; other ops go along
with whatever order their operands have, if they can, and get transposes around them if not. A
transpose of the model's own is a change of order and costs nothing until an op insists. Weights are
stored in the order in which they are read; a product behind a flattened map has the columns of its
weight in the order of the map.
"""

from __future__ import annotations

from dataclasses import replace

from gradlet.errors import GradletError
from gradlet.frontends.passes.canonical import canonical
from gradlet.frontends.passes.layout_pairs import PairWalk
from gradlet.frontends.passes.layout_walk import SPATIAL, Walk
from gradlet.ir.graph import Graph
from gradlet.ops.lib.channels import LAYOUTS, PAIRED


def check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise GradletError(f"there is no layout '{layout}'; there are {', '.join(LAYOUTS)}")


def lay_out(graph: Graph, layout: str) -> Graph:
    """The same forward program in this layout; `stored` tells what lies otherwise than before."""
    check_layout(layout)
    if layout == "chw" or not any(node.op in SPATIAL for node in graph.nodes):
        return replace(graph, layout=layout)
    walk = PairWalk(graph) if layout == PAIRED else Walk(graph)
    laid, places = walk.run()
    laid = canonical(replace(laid, layout=layout))
    stored = {name: (p.split, p.order) for name, p in walk.stored.items() if name in laid.tensors}
    for name, place in zip(laid.outputs, places, strict=True):
        if not place.is_identity:
            stored[name] = (place.split, place.order)
    return replace(laid, stored=stored)
