"""Whether the tiles of a call are what its op says of itself: axes, boxes, sizes, and sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod

from gradlet.ir.graph import Graph, Node, Shape, Site
from gradlet.kernels.catalogue import fetched
from gradlet.ops import OPS
from gradlet.ops.base import Axis, Span, ints
from gradlet.planner.model import Call
from gradlet.planner.tiling import Tiling

RIDER = "rider"


def tiling_faults(site: Site, call: Call, rider: Sequence[Node] = ()) -> Iterator[str]:
    """site: of the call's first node; rider: the nodes of what rides on it."""
    tiling, site = call.tiling, OPS[site.node.op].flat(site)
    if tiling is None:
        return
    found = [
        *_axes(site, tiling),
        *_operands(site, call, tiling, rider),
        *_sums(site, call, tiling),
    ]
    yield from found or _sizes(site, call, tiling)
    if call.rider and not found:
        yield from riding_faults(site, call)


def follow_faults(nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a call whose result goes through one or two elementwise nodes at once."""
    assert call.follow is not None
    kernel, behind = call.follow.kernel, nodes[1:]
    inside = {node.outputs[0] for node in nodes[:-1]}
    if any(node.outputs[0] not in after.inputs for node, after in pairwise(nodes)):
        yield "a node does not follow the one before it"
    if len(behind) > 1:  # what is made so far comes first
        if (kernel.family, kernel.mode) != ("unary", "_".join(node.op for node in behind)):
            yield f"{kernel.name} does not compute what follows"
        read = [n for node in behind for n in node.inputs if n not in inside]
        wanted = [*call.outputs, *call.outputs, *read]
    else:
        wanted = [*call.outputs, *(call.outputs[0] if n in inside else n for n in behind[0].inputs)]
    names = (*call.outputs, *call.inputs)
    if call.outputs != behind[-1].outputs or wanted != [names[p] for p in call.follow.operands]:
        yield "what follows has operands of another node"


def back_faults(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a call for three nodes: gradients of a layer's input and of its weights, the update; or
    for four: the first gradient goes through the ReLU that has made the input."""
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
    own = {node.name for node in nodes}
    read = {n for node in graph.nodes if node.name not in own for n in node.inputs}
    views = {node.outputs[0]: node.inputs[0] for node in graph.nodes if OPS[node.op].view}
    swallowed = {views[name] for name in inside if name in views}
    for name in inside:
        if name in graph.outputs or (name in read and name not in swallowed):
            yield f"'{name}' is needed, and never made"
    inputs = (*gradient.inputs, update.inputs[2])
    result = (masks[0] if masks else product).outputs
    if (call.outputs, call.inputs) != ((*result, *update.outputs), inputs):
        yield "its operands are not those of its nodes"
    rows, columns = graph.tensors[w].shape
    wanted = ("back", "relu_sgd" if masks else "sgd", {"n": columns, "k": rows})
    if (call.kernel.family, call.kernel.mode, dict(call.sizes)) != wanted:
        yield f"{call.kernel.name} does not compute that"
    shapes = ((slope, rows), (inputs[1], columns), (product.outputs[0], columns))
    if any(graph.tensors[name].elements != size for name, size in shapes) or call.tiling:
        yield "it is for a single sample, as a whole"


def loss_faults(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
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


def _axes(site: Site, tiling: Tiling) -> Iterator[str]:
    known = {axis.name: axis for axis in OPS[site.node.op].axes(site)}
    names = [axis.name for axis in tiling.axes]
    if len(set(names)) < len(names):
        yield "an axis is split twice"
    for axis in tiling.axes:
        own = known.get(axis.name)
        if own is None or (own.size, own.reduction) != (axis.size, axis.reduction):
            yield f"the op has no such axis as {axis.name} of {axis.size}"
        elif len(axis.kinds) != -(-axis.size // axis.tile) or axis.tile < 1:
            yield f"the tiles of {axis.name} do not make up the whole"
    inside = [axis.reduction for axis in tiling.axes]
    if inside != sorted(inside):
        yield "a sum is left before it is complete: its loop is not inside"


def _operands(site: Site, call: Call, tiling: Tiling, rider: Sequence[Node]) -> Iterator[str]:
    """Each window is on the operand of its position, and sees of it what the op says."""
    op = OPS[site.node.op]
    sums = [site.outs[0].name, *(node.outputs[0] for node in rider[:1])] if tiling.made_in else []
    names = [*call.outputs, *call.inputs, *sums]
    seen = [window.tensor if window else "" for window in tiling.windows]
    if seen != names:
        yield f"windows are on {seen}, operands are {names}"
        return
    results = [slot.rstrip("?") for slot in op.outputs]
    operands = [slot.rstrip("?") for slot in op.inputs]
    # settings of an update are needed whole; what follows goes with the result
    more = [("" if call.updates else results[0])] * (len(call.inputs) - len(operands))
    slots = results[:1] * len(call.outputs) if call.updates else results[: len(call.outputs)]
    if call.rider:
        slots[call.rider.made :] = [RIDER] * (len(call.outputs) - call.rider.made)
    slots += [*operands, *more, *[results[0], RIDER][: len(sums)]]
    for window, slot in zip(tiling.windows, slots, strict=True):
        if window is None:
            continue
        spans = _spans(site, tiling, slot) if slot != RIDER else _rider_spans(site, call, tiling)
        if sorted(map(repr, spans)) != sorted(map(repr, window.spans)):
            yield f"the boxes of '{window.tensor}' are not those that the op reads or writes"
        if window.once != (slot in op.adds_once):
            yield f"'{window.tensor}' is added once too often"
    own = {len(call.outputs) + number for number in fetched(call.kernel)}
    if own != {n for n, window in enumerate(tiling.windows) if window and window.fetched}:
        yield f"{call.kernel.name} fetches other operands than those without a window"


def _spans(site: Site, tiling: Tiling, slot: str) -> Iterator[tuple[int, object]]:
    known = {axis.name: axis for axis in OPS[site.node.op].axes(site)}
    for number, axis in enumerate(tiling.axes):
        for span in known[axis.name].spans if axis.name in known else ():
            if span.operand == slot:
                yield number, span


def _rider_spans(site: Site, call: Call, tiling: Tiling) -> Iterator[tuple[int, object]]:
    """What rides is cut where free axes cut what it sums up."""
    assert call.rider is not None
    slot = OPS[site.node.op].inputs[call.rider.summed - len(call.outputs)]
    for number, _ in _spans(site, tiling, slot):
        if not tiling.axes[number].reduction:
            yield number, Span(RIDER, 0)


def rider_faults(graph: Graph, nodes: Sequence[Node], call: Call) -> Iterator[str]:
    """Of a sum and its update that ride on a weight gradient and its own; nodes: theirs."""
    rider = call.rider
    assert rider is not None
    total, update = nodes
    carried = graph.producer()[call.outputs[0]]
    names = (*call.outputs, *call.inputs)
    if total.op != "sum" or update.inputs[1:2] != total.outputs or not call.updates:
        yield "what rides on it is not a sum and its update"
    elif update.op != carried.op or update.inputs[2] != names[-1]:
        yield "what rides on it is updated in another way"
    elif names[rider.summed] != total.inputs[0] or call.outputs[rider.made :] != update.outputs:
        yield "what rides on it has operands of another node"
    elif (rider.kernel.family, rider.kernel.mode) != ("channel_sum", "sum"):
        yield f"{rider.kernel.name} is no sum"
    elif rider.kernel.epilogue != update.op or dict(rider.sizes) != _channel_sizes(
        graph.tensors[total.inputs[0]].shape,
        {*range(len(graph.tensors[total.inputs[0]].shape))} - {*ints(total.attrs, "axes")},
    ):
        yield f"{rider.kernel.name} does not compute what rides on it"


def riding_faults(site: Site, call: Call) -> Iterator[str]:
    """What rides on tiles sums up every part of its operand, and that once."""
    op, tiling, rider = OPS[site.node.op], call.tiling, call.rider
    assert tiling is not None
    assert rider is not None
    riding = tiling.riding
    if riding is None:
        yield "what rides on the tiles is left out"
        return
    slot = op.inputs[rider.summed - len(call.outputs)]
    summed = bool(tiling.more)
    ends = (
        riding.kernel.epilogue,
        riding.more.epilogue if riding.more else "",
        bool(riding.finish),
    )
    if ends != (("", "sum", True) if summed else (rider.kernel.epilogue, "", False)):
        yield "what rides on the tiles is not summed as they are"
    axes = {axis.name: axis for axis in op.axes(site)}
    free = (axis for axis in axes.values() if not axis.reduction)
    kept = {span.dim for axis in free for span in axis.spans if span.operand == slot}
    for index in _samples(tiling):
        ranges = {
            axis.name: (at * axis.tile, min((at + 1) * axis.tile, axis.size))
            for axis, at in zip(tiling.axes, index, strict=True)
        }
        tile = op.operand((op.tile(site, ranges) if ranges else site) or site, slot)
        assert tile is not None
        again = any(
            begin > 0 and not axes[name].reduction and slot not in _seen(axes[name])
            for name, (begin, _) in ranges.items()
        )
        sizes = riding.sizes[tiling.kind(index)]
        if riding.rests(index) != again or dict(sizes) != _channel_sizes(tile.shape, kept):
            yield f"what rides on tile {index} does not sum up what that sees"
            return
        if summed and riding.finish_sizes[tiling.kind(index)] != {"count": sizes["channels"]}:
            yield f"what rides on tile {index} is updated in part"
            return


def _seen(axis: Axis) -> set[str]:
    return {span.operand for span in axis.spans}


def _channel_sizes(shape: Shape, kept: set[int]) -> dict[str, int]:
    """Of the kernel that sums up a tensor over all dimensions but one."""
    (channel,) = kept
    before, behind = shape[:channel], shape[channel + 1 :]
    return {"outer": prod(before), "channels": shape[channel], "inner": prod(behind)}


def _sums(site: Site, call: Call, tiling: Tiling) -> Iterator[str]:
    summed = any(axis.reduction for axis in tiling.axes)
    if summed != (tiling.more is not None):
        yield "tiles of a sum have no kernel that adds them"
    elif tiling.more and (tiling.more.mode, tiling.more.epilogue) != (call.kernel.mode, "sum"):
        yield f"{tiling.more.name} does not add tiles up"
    if summed and call.kernel.epilogue:
        yield f"{call.kernel.name} takes a part of a sum for the whole"
    if call.updates and summed != (tiling.finish is not None and tiling.made_in > 0):
        yield "the update of a sum of tiles does not come after the last of them"
    if not call.updates and (call.behind is None) != (tiling.finish is None):
        yield "what follows the tiles is left out"
    if call.behind and tiling.finish_operands != call.behind.operands:
        yield "what follows has other operands"


def _sizes(site: Site, call: Call, tiling: Tiling) -> Iterator[str]:
    """Every tile along each axis, and every kind, gets the sizes of that part of the op, and of the
    whole of what its kernel fetches itself."""
    op = OPS[site.node.op]
    whole = {k: v for n in fetched(call.kernel) for k, v in op.far_sizes(site, n).items()}
    for index in _samples(tiling):
        ranges = {
            axis.name: (at * axis.tile, min((at + 1) * axis.tile, axis.size))
            for axis, at in zip(tiling.axes, index, strict=True)
        }
        part = op.tile(site, ranges) if ranges else site
        number = 0
        for axis, at in zip(tiling.axes, index, strict=True):
            number = number * (max(axis.kinds) + 1) + axis.kinds[at]
        given = tiling.sizes[number] if number < len(tiling.sizes) else None
        if part is None or given != {**op.lower(part).sizes, **whole}:
            yield f"tile {index} is computed with the sizes of another"
            return


def _samples(tiling: Tiling) -> Iterator[tuple[int, ...]]:
    first = [0] * len(tiling.axes)
    for place, axis in enumerate(tiling.axes):
        for at in range(axis.count):
            yield (*first[:place], at, *first[place + 1 :])
    kinds = ([axis.kinds.index(kind) for kind in set(axis.kinds)] for axis in tiling.axes)
    yield from product(*kinds)
