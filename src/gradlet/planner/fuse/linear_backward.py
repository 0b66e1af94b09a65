"""Linear layers of a single sample whose way back is one call: the gradient of the input and the
update of the weights read every weight, so both are done while it is in a register. Where the input
is what a ReLU has made, the gradient goes on through that as well: the input is at hand. The sum
for the bias is a launch beside.

Where the weights lie in backing memory their kernel fetches and writes them back itself; other
operands are copied as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradlet.ir.elements import ELEMENTS
from gradlet.ir.graph import Graph, Node
from gradlet.kernels.catalogue import Kernel, candidates, scratch_bytes, streamed
from gradlet.ops import OPS
from gradlet.planner.fuse.bias_gradient import pairs
from gradlet.planner.fuse.rule import FusionGroup, Lowerer, Rule
from gradlet.planner.fuse.update import fusable
from gradlet.planner.launch import Launch
from gradlet.planner.model import LINEAR_BACKWARD, Call
from gradlet.targets.target import Target

FAMILY = "back"
UPDATE = "sgd"
MASK = "relu_grad"
SHARE = 0.85
"""Of the nearest memory, that a call may take: small things and tables are there as well."""


def back_sizes(graph: Graph, product: Node) -> dict[str, int]:
    """Of the call, from the node that makes the gradient of the input."""
    rows, columns = graph.tensors[product.inputs[1]].shape
    return {"n": columns, "k": rows}


def back_kernels(
    graph: Graph,
    product: Node,
    isa: tuple[str, ...],
    *,
    masked: bool = False,
    streaming: bool = False,
) -> list[Kernel]:
    """streaming: with those that fetch the weights themselves."""
    mode = f"relu_{UPDATE}" if masked else UPDATE
    dtype = graph.tensors[product.outputs[0]].dtype
    sizes = back_sizes(graph, product)
    return candidates(FAMILY, mode, "", sizes, isa, dtype, streamed=["w"] if streaming else ())


def groups(graph: Graph, isa: tuple[str, ...]) -> Iterator[FusionGroup]:
    """The product that makes the gradient of the input, what goes on with that, the gradient of the
    weights, and the update, where a kernel for such cores does all of it."""
    fused = fusable(graph, isa)
    sums = pairs(graph, fused)
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
            beside = sums.get(node.name, ())
            yield FusionGroup((product, *relu, node, update), LINEAR_BACKWARD, beside)


def call(lower: Lowerer, group: FusionGroup) -> Call:
    product, *more, gradient, update = group.nodes
    kernel = lower.best(back_kernels(lower.graph, product, lower.target.isa, masked=bool(more)))
    own = (*[product, *more][-1].outputs, *update.outputs)
    outputs = (*own, *(group.beside[-1].outputs if group.beside else ()))
    inputs = (*gradient.inputs, update.inputs[2])
    begin = len(outputs)
    operands = (*range(len(own)), *range(begin, begin + len(inputs)))
    sites = (lower.graph.site(node) for node in (product, gradient))
    made = Call(
        update.name,
        tuple(node.name for node in group.all_nodes if not OPS[node.op].view),
        group.fusion,
        group.phase,
        outputs,
        inputs,
        (Launch(kernel, operands, (back_sizes(lower.graph, product),)),),
        "",
        sum(OPS[site.node.op].work(site).macs for site in sites),
    )
    if not group.beside:
        return made
    return replace(made, whole=(*made.whole, _bias(lower, group, made)))


def _bias(lower: Lowerer, group: FusionGroup, made: Call) -> Launch:
    """The sum for the bias is over a single sample: only its update is left."""
    total, update = group.beside
    sizes = {"count": lower.graph.tensors[total.outputs[0]].elements}
    dtype = lower.graph.tensors[total.outputs[0]].dtype
    kernel = lower.kernel(UPDATE, update.op, "", sizes, dtype)
    result = len(made.outputs) - 1
    slope = result + 1 + made.inputs.index(total.inputs[0])
    operands = (result, result, slope, len(made.operands) - 1)
    return Launch(kernel, operands, (sizes,), barrier=False)


def fits(graph: Graph, target: Target, group: FusionGroup) -> bool:
    """Whether there is room for all of it, or for all but the weights beside a kernel that fetches
    these."""
    product = group.nodes[0]
    room = target.room(target.memories[0]) * SHARE
    sizes, masked = back_sizes(graph, product), any(node.op == MASK for node in group.nodes)
    whole = ELEMENTS[graph.tensors[product.outputs[0]].dtype].bytes
    vectors = whole * (2 * sizes["n"] + 2 * sizes["k"])
    if vectors + whole * sizes["n"] * sizes["k"] <= room:
        return True
    found = back_kernels(graph, product, target.isa, masked=masked, streaming=True)
    needs = [scratch_bytes(kernel, sizes, target.cores) for kernel in found if streamed(kernel)]
    return bool(needs) and vectors + min(needs) <= room


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


RULE = Rule(LINEAR_BACKWARD, groups, call, cut=False, fits=fits)
