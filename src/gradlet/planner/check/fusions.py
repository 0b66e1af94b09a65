"""Whether the calls of fused nodes do what these nodes do; what is asked of each fusion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod

from gradlet.ir.graph import Graph, Node, Shape
from gradlet.kernels.catalogue import Kernel, operands, updates
from gradlet.ops import OPS
from gradlet.ops.base import ints
from gradlet.planner.model import (
    BIAS_GRADIENT,
    EPILOGUE,
    LINEAR_BACKWARD,
    LOSS_GRADIENT,
    UPDATE,
    Call,
)

Faults = Callable[[Graph, Sequence[Node], Call], Iterator[str]]


def fusion_faults(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """nodes: those of the call."""
    if call.fusion not in FUSIONS:
        yield f"nothing is known of the fusion '{call.fusion}'"
        return
    yield from FUSIONS[call.fusion](graph, nodes, call)
    if call.whole[0].operands != own_operands(call, call.whole[0].kernel):
        yield "its first launch has operands of another node"


def own_operands(
    call: Call, kernel: Kernel, result: int = 0, later: bool = False
) -> tuple[int | None, ...]:
    """What the kernel of the first node works on: results, from this place on, then inputs. later:
    without what only the first tile of a sum adds."""
    made, taken = map(len, operands(kernel))
    begin, views = len(call.outputs), call.tiling.views if call.tiling else ()
    places = (*range(result, result + made), *range(begin, begin + taken))
    gone = {p for p, name in enumerate(call.operands) if not name}
    if later:
        gone |= {p for p, view in enumerate(views) if view and view.once}
    return tuple(None if place in gone else place for place in places)


def _single(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    if len(nodes) != 1 or len(call.whole) != 1 or nodes[0].name != call.name:
        yield "it is not a single node"


def _update(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a weight gradient and its update."""
    if len(nodes) != 2 or nodes[1].op not in updates() or nodes[1].inputs[1:2] != nodes[0].outputs:
        yield "it is not a gradient and its update"
    elif call.whole[0].kernel.epilogue != nodes[1].op or call.name != nodes[1].name:
        yield f"{call.whole[0].kernel.name} does not update"


def _epilogue(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a call whose result goes through one or two elementwise nodes at once."""
    behind = nodes[1:]
    inside = {node.outputs[0] for node in nodes[:-1]}
    if any(node.outputs[0] not in after.inputs for node, after in pairwise(nodes)):
        yield "a node does not follow the one before it"
    if call.whole[0].kernel.epilogue:  # done by the store
        if call.outputs != behind[0].outputs or len(behind) > 1 or len(call.whole) > 1:
            yield "what follows is done twice, or not at all"
        return
    if [(launch.barrier, launch.when.tiles) for launch in call.whole[1:]] != [(True, "last")]:
        yield "what follows does not come behind the result"
        return
    kernel = call.whole[1].kernel
    made_so_far = call.outputs[0]
    if len(behind) == 1:
        read = [made_so_far if n in inside else n for n in behind[0].inputs]
    else:  # what is made so far comes first
        if (kernel.family, kernel.mode) != ("unary", "_".join(node.op for node in behind)):
            yield f"{kernel.name} does not compute what follows"
        read = [made_so_far, *(n for node in behind for n in node.inputs if n not in inside)]
    if call.outputs != behind[-1].outputs or [*call.outputs, *read] != _names(call, 1):
        yield "what follows has operands of another node"


def _names(call: Call, launch: int) -> list[str]:
    """What a launch of the whole call works on."""
    return ["" if p is None else call.operands[p] for p in call.whole[launch].operands]


def _linear_backward(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a call for three nodes: gradients of a layer's input and of its weights, the update; or
    for four: the first gradient goes through the ReLU that has made the input. Two more are a sum
    beside, and its update."""
    nodes, beside = (nodes[:-2], nodes[-2:]) if len(call.whole) > 1 else (nodes, ())
    ops = [(node.op, node.attrs.get("layout", "")) for node in nodes]
    product, *masks, gradient, update = nodes
    between = [("relu_grad", "")] if masks else []
    if ops != [("matmul", "nn"), *between, ("matmul", "tn"), ("sgd", "")]:
        yield f"it computes {', '.join(op for op, _ in ops)}, which do not belong together"
        return
    (slope, w), (made,) = product.inputs, gradient.outputs
    if slope != gradient.inputs[0] or update.inputs[:2] != (w, made):
        yield "its nodes are not of one layer"
    inside = [made]
    if masks:
        chain = _seen_through(graph, masks[0].inputs[0])
        inside += chain
        if chain[-1] != product.outputs[0]:
            yield "what it masks is not the gradient of its input"
        masked, x = (_seen_through(graph, n)[-1] for n in (masks[0].inputs[1], gradient.inputs[1]))
        if masked != x:
            yield "the ReLU is not the one that has made its input"
    yield from _needed_elsewhere(graph, nodes, inside)
    inputs = (*gradient.inputs, update.inputs[2])
    outputs = (*(masks[0] if masks else product).outputs, *update.outputs)
    if beside:
        outputs = (*outputs, *beside[1].outputs)
        yield from _bias_update(graph, update, beside, call)
    if (call.outputs, call.inputs) != (outputs, inputs):
        yield "its operands are not those of its nodes"
    yield from _single_sample(graph, product, gradient, "relu_sgd" if masks else "sgd", call)


def _single_sample(
    graph: Graph, product: Node, gradient: Node, mode: str, call: Call
) -> Iterator[str]:
    """What the kernel of both is called with; mode: of the kernel."""
    rows, columns = graph.tensors[product.inputs[1]].shape
    wanted = ("back", mode, {"n": columns, "k": rows})
    if (call.kernel.family, call.kernel.mode, dict(call.sizes)) != wanted:
        yield f"{call.kernel.name} does not compute that"
    slope, x = gradient.inputs
    shapes = ((slope, rows), (x, columns), (product.outputs[0], columns))
    if any(graph.tensors[name].elements != size for name, size in shapes):
        yield "it is for a single sample"
    if call.tiling and call.tiling.axes:
        yield "it has tiles, and cannot"


def _bias_update(graph: Graph, own: Node, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a sum over a single sample, which is that sample, and its update."""
    if [launch.barrier for launch in call.whole] != [True, False]:
        yield "it is not the way back and an update beside"
        return
    (total, update), beside = nodes, call.whole[1]
    slope, bias = graph.tensors[total.inputs[0]], graph.tensors[total.outputs[0]]
    if total.op != "sum" or update.inputs[1:2] != total.outputs:
        yield "what is made beside is not a sum and its update"
    elif slope.elements != bias.elements:
        yield "what is made beside is the sum of more than one sample"
    elif (update.op, update.inputs[2]) != (own.op, own.inputs[2]):
        yield "what is made beside is updated in another way"
    elif _names(call, 1) != [*update.outputs, *update.outputs, slope.name, own.inputs[2]]:
        yield "what is made beside has operands of another node"
    like = (beside.kernel.family, beside.kernel.mode, dict(beside.sizes[0]))
    if like != ("sgd", update.op, {"count": bias.elements}):
        yield f"{beside.kernel.name} does not compute what is made beside"


def _needed_elsewhere(graph: Graph, nodes: Sequence[Node], inside: Sequence[str]) -> Iterator[str]:
    """What stays inside of a call must not be a result, nor be read by others; views of it may."""
    own = {node.name for node in nodes}
    read = {n for node in graph.nodes if node.name not in own for n in node.inputs}
    views = {node.outputs[0]: node.inputs[0] for node in graph.nodes if OPS[node.op].view}
    seen_inside = {views[name] for name in inside if name in views}
    for name in inside:
        if name in graph.outputs or (name in read and name not in seen_inside):
            yield f"'{name}' is needed, and never made"


def _loss_gradient(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a call for two nodes: a loss and the gradient of what it compares."""
    ops = [node.op for node in nodes]
    if len(ops) != 2 or ops[1] != f"{ops[0]}_grad":
        yield f"it computes {', '.join(ops)}, which do not belong together"
        return
    loss, gradient = nodes
    compared = (*gradient.inputs[:2], *gradient.inputs[3:])
    if loss.attrs != gradient.attrs or loss.inputs != compared:
        yield "loss and gradient compare different things"
    if graph.tensors[gradient.inputs[2]].role != "const":
        yield "the gradient depends on what is not known with the loss"
    inputs = tuple(filter(None, call.inputs))
    if (call.outputs, inputs) != ((*loss.outputs, *gradient.outputs), gradient.inputs):
        yield "its operands are not those of its nodes"
    sizes = OPS[gradient.op].lower(graph.site(gradient)).sizes
    if (call.kernel.mode, dict(call.sizes), call.repeat) != (loss.op, dict(sizes), 2):
        yield f"{call.kernel.name} does not compute that"
    if call.tiling:
        yield "it has tiles, and cannot"


def _seen_through(graph: Graph, name: str) -> list[str]:
    """The tensor, what it is a view of, and so on."""
    found = [name]
    producer = graph.producer()
    while (node := producer.get(found[-1])) and OPS[node.op].view:
        found.append(node.inputs[0])
    return found


def _bias_gradient(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a weight gradient and its update, with a sum and its update beside them."""
    if len(nodes) != 4 or [launch.barrier for launch in call.whole] != [True, False]:
        yield "it is not a weight gradient and a sum, each with its update"
        return
    yield from _update(graph, nodes[:2], call)
    beside, (_, own, total, update) = call.whole[1], nodes
    if total.op != "sum" or update.inputs[1:2] != total.outputs:
        yield "what is made beside is not a sum and its update"
    elif update.op != own.op or update.inputs[2] != own.inputs[2]:
        yield "what is made beside is updated in another way"
    elif _names(call, 1) != [*update.outputs, total.inputs[0], own.inputs[2]]:
        yield "what is made beside has operands of another node"
    elif (beside.kernel.family, beside.kernel.mode) != ("channel_sum", "sum"):
        yield f"{beside.kernel.name} is no sum"
    elif beside.kernel.epilogue != update.op or dict(beside.sizes[0]) != channel_sizes(
        graph.tensors[total.inputs[0]].shape,
        {*range(len(graph.tensors[total.inputs[0]].shape))} - {*ints(total.attrs, "axes")},
    ):
        yield f"{beside.kernel.name} does not compute what is made beside"


def channel_sizes(shape: Shape, kept: set[int]) -> dict[str, int]:
    """Of the kernel that sums up a tensor over all dimensions but one."""
    (channel,) = kept
    before, behind = shape[:channel], shape[channel + 1 :]
    return {"outer": prod(before), "channels": shape[channel], "inner": prod(behind)}


FUSIONS: Mapping[str, Faults] = {
    "": _single,
    EPILOGUE: _epilogue,
    UPDATE: _update,
    BIAS_GRADIENT: _bias_gradient,
    LINEAR_BACKWARD: _linear_backward,
    LOSS_GRADIENT: _loss_gradient,
}
