"""Epilogues: one or two elementwise nodes that work on a result where it is made. The kernel's own
store does what it can; for the rest there is a second launch, behind a barrier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradlet.ir.graph import Graph, Node
from gradlet.kernels.catalogue import families, maps
from gradlet.ops import OPS
from gradlet.ops.base import Lowering
from gradlet.planner.fuse.rule import FusionGroup, Lowerer, Rule
from gradlet.planner.launch import LAST, Launch, When
from gradlet.planner.model import EPILOGUE, Call

JOINED = ("add_relu", "add_relu_grad")
"""Modes of the family `unary` that do what two elementwise nodes do one behind the other."""


def lowered(graph: Graph, followers: Sequence[Node]) -> Lowering:
    """What computes elementwise nodes one behind the other."""
    last = OPS[followers[-1].op].lower(graph.site(followers[-1]))
    if len(followers) == 1:
        return last
    return Lowering("unary", "_".join(node.op for node in followers), last.sizes)


def call(lower: Lowerer, group: FusionGroup) -> Call:
    if _in_the_store(lower.graph, group):
        return lower.single(group, group.nodes[-1].op)
    made = lower.single(group, others=group.others)
    return replace(made, whole=(*made.whole, post_op(lower, group)))


def _in_the_store(graph: Graph, group: FusionGroup) -> bool:
    """Whether the store of the first node's kernel can do what follows."""
    first, last = group.nodes[0], group.nodes[-1]
    lowering = OPS[first.op].lower(graph.site(first))
    epilogues = families()[lowering.family].modes[lowering.mode].epilogues
    return len(group.nodes) == 2 and last.op in maps() and last.op in epilogues


def post_op(lower: Lowerer, group: FusionGroup) -> Launch:
    """The launch of the elementwise nodes: result, then operands; those that the first node does
    not have come behind its own."""
    node, *behind = group.nodes
    lowering = lowered(lower.graph, behind)
    dtype = lower.graph.tensors[node.outputs[0]].dtype
    kernel = lower.kernel(lowering.family, lowering.mode, "", lowering.sizes, dtype)
    begin = 1 + len(OPS[node.op].inputs)
    places = range(begin, begin + len(group.others))
    if len(behind) > 1:  # the result so far is the first operand, the others are in their order
        operands = (0, 0, *places)
    else:
        remaining, inputs = iter(places), behind[0].inputs
        operands = (0, *(0 if name == node.outputs[0] else next(remaining) for name in inputs))
        slots = len(OPS[behind[0].op].inputs)
        assert len(operands) == 1 + slots, f"{behind[0].op} has operands that are left out"
    return Launch(kernel, operands, (lowering.sizes,), When(LAST))


def groups(graph: Graph, isa: tuple[str, ...]) -> Iterator[FusionGroup]:
    """Nodes whose only reader is elementwise, and has its other operands by then; and where a
    kernel does both, the only reader of that one."""
    consumers = graph.consumers()
    made = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs}
    kept = {*graph.outputs, graph.loss, *(n for pair in graph.updates for n in pair)}
    taken: set[str] = set()

    def reader(node: Node, place: int) -> Node | None:
        """place: of the node that they all follow."""
        if len(node.outputs) != 1 or kept & set(node.outputs):
            return None
        readers = consumers[node.outputs[0]]
        if len(readers) != 1 or readers[0].phase != node.phase or node.phase == "update":
            return None
        follower = readers[0]
        others = [name for name in follower.inputs if name != node.outputs[0]]
        ready = len(others) == len(follower.inputs) - 1 and all(
            made.get(name, -1) < place for name in others
        )
        return follower if ready and _elementwise(graph, follower, node) else None

    for place, node in enumerate(graph.nodes):
        if node.name in taken or not _worth_following(graph, node):
            continue
        follower = reader(node, place)
        if follower is None:
            continue
        second = reader(follower, place)
        both = second is not None and f"{follower.op}_{second.op}" in JOINED
        behind = (follower, second) if second and both else (follower,)
        taken.update(other.name for other in behind)
        yield FusionGroup((node, *behind), EPILOGUE)


def _worth_following(graph: Graph, node: Node) -> bool:
    """Products, sums of two, gradients of pools: what computes much, or stands between such."""
    op = OPS[node.op]
    between = node.op == "add" or node.op.endswith("pool2d_grad")
    return not op.view and (between or op.work(graph.site(node)).macs > 0)


def _elementwise(graph: Graph, follower: Node, node: Node) -> bool:
    """Whether each element of the result comes from the same element of every operand, and may
    take the place of the one that the node has made."""
    op, site = OPS[follower.op], graph.site(follower)
    made = graph.tensors[node.outputs[0]]
    slots = [slot.rstrip("?") for slot in op.inputs][: len(follower.inputs)]
    slot = slots[follower.inputs.index(node.outputs[0])]
    if op.view or slot not in op.overwrites or len(site.outs) != 1:
        return False
    if follower.outputs[0] in {new for _, new in graph.updates}:
        return False
    if any((t.shape, t.dtype) != (made.shape, made.dtype) for t in (*site.ins, *site.outs)):
        return False
    axes = {axis.spans[0].dim: axis for axis in op.axes(site) if axis.spans}
    operands = {*slots, op.outputs[0].rstrip("?")}
    plain = all(
        not axis.reduction
        and {span.operand for span in axis.spans} == operands
        and all((s.dim, s.step, s.start, s.extent) == (dim, 1, 0, 1) for s in axis.spans)
        for dim, axis in axes.items()
    )
    covered = all(dim in axes for dim, extent in enumerate(made.shape) if extent > 1)
    return plain and covered and op.lower(site).repeat == 1


RULE = Rule(EPILOGUE, groups, call)
