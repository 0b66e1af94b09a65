"""Linear layers of a single sample whose way back is one call: the gradient of the input and the
update of the weights read every weight, so both are done while it is in a register. Where the input
is what a ReLU has made, the gradient goes on through that as well: the input is at hand."""

from __future__ import annotations

from collections.abc import Iterator

from gradlet.ir.graph import Graph, Node
from gradlet.kernels.catalogue import Kernel, candidates
from gradlet.ops import OPS
from gradlet.planner.fuse.rule import FusionGroup, Lowerer, Rule
from gradlet.planner.fuse.update import fusable
from gradlet.planner.launch import Launch
from gradlet.planner.model import LINEAR_BACKWARD, Call

FAMILY = "back"
UPDATE = "sgd"
MASK = "relu_grad"


def back_sizes(graph: Graph, product: Node) -> dict[str, int]:
    """Of the call, from the node that makes the gradient of the input."""
    rows, columns = graph.tensors[product.inputs[1]].shape
    return {"n": columns, "k": rows}


def back_kernels(
    graph: Graph, product: Node, isa: tuple[str, ...], *, masked: bool = False
) -> list[Kernel]:
    mode = f"relu_{UPDATE}" if masked else UPDATE
    dtype = graph.tensors[product.outputs[0]].dtype
    return candidates(FAMILY, mode, "", back_sizes(graph, product), isa, dtype)


def groups(graph: Graph, isa: tuple[str, ...]) -> Iterator[FusionGroup]:
    """The product that makes the gradient of the input, what goes on with that, the gradient of the
    weights, and the update, where a kernel for such cores does all of it."""
    fused = fusable(graph, isa)
    products = {node.inputs: node for node in graph.nodes if _vector_times_matrix(graph, node)}
    for node in graph.nodes:
        update = fused.get(node.name)
        if update is None or update.op != UPDATE or node.op != "matmul" or len(node.inputs) != 2:
            continue
        sizes = OPS[node.op].lower(graph.site(node)).sizes
        product = products.get((node.inputs[0], update.inputs[0]))
        if product is None or node.attrs["layout"] != "tn" or sizes["k"] != 1:
            continue
        if any(kernel.variant != "ref" for kernel in back_kernels(graph, product, isa)):
            relu = _through_relu(graph, product, node.inputs[1])
            yield FusionGroup((product, *relu, node, update), LINEAR_BACKWARD)


def call(lower: Lowerer, group: FusionGroup) -> Call:
    product, *more, gradient, update = group.nodes
    kernel = lower.best(back_kernels(lower.graph, product, lower.target.isa, masked=bool(more)))
    outputs = (*[product, *more][-1].outputs, *update.outputs)
    inputs = (*gradient.inputs, update.inputs[2])
    operands = tuple(range(len(outputs) + len(inputs)))
    sites = (lower.graph.site(node) for node in (product, gradient))
    return Call(
        update.name,
        tuple(node.name for node in group.nodes if not OPS[node.op].view),
        group.fusion,
        group.phase,
        outputs,
        inputs,
        (Launch(kernel, operands, (back_sizes(lower.graph, product),)),),
        "",
        sum(OPS[site.node.op].work(site).macs for site in sites),
    )


def _through_relu(graph: Graph, product: Node, x: str) -> tuple[Node, ...]:
    """Views of the product, and the gradient of the ReLU that has made the layer's input x; none
    if somebody else reads what is in between."""
    consumers, producer = graph.consumers(), graph.producer()

    def source(name: str) -> str:
        while name in producer and OPS[producer[name].op].view:
            name = producer[name].inputs[0]
        return name

    found = [product]
    while found[-1].op != MASK:
        made, readers = found[-1].outputs[0], consumers[found[-1].outputs[0]]
        if made in graph.outputs or len(readers) != 1 or readers[0].inputs[0] != made:
            return ()
        if not OPS[readers[0].op].view and readers[0].op != MASK:
            return ()
        found.append(readers[0])
    return tuple(found[1:]) if source(found[-1].inputs[1]) == source(x) else ()


def _vector_times_matrix(graph: Graph, node: Node) -> bool:
    if node.op != "matmul" or node.phase != "backward" or node.attrs["layout"] != "nn":
        return False
    sizes = OPS[node.op].lower(graph.site(node)).sizes
    flat = len(graph.tensors[node.inputs[1]].shape) == 2
    return flat and len(node.inputs) == 2 and sizes["m"] == 1


RULE = Rule(LINEAR_BACKWARD, groups, call, tiles=False)
