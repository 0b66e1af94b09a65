"""Which nodes are computed together, and in which order.

A unit is what one call computes: a node, a weight gradient with its update, both with the gradient
of the input before them, a loss and its gradient, or a node with an elementwise one behind it, or
two that one kernel does, which work on the result where it is made. The gradient of a bias rides on
that of the weights. An update may only come after every reader of the old weight, also of those
that read it through views; the order is chosen for a low memory peak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gradlet.ir.graph import Graph, Node
from gradlet.kernels.catalogue import fuses, updates
from gradlet.ops import OPS
from gradlet.ops.base import Lowering
from gradlet.planner.fuse.bias_gradient import Pair, riders
from gradlet.planner.fuse.linear_backward import ways_back
from gradlet.planner.fuse.loss_gradient import losses
from gradlet.planner.views import view_sources

JOINED = ("add_relu", "add_relu_grad")
"""Modes of the family `unary` that do what two elementwise nodes do one behind the other."""


@dataclass(frozen=True)
class Unit:
    """rider: a sum and its update, which go with the tiles of the first node."""

    nodes: tuple[Node, ...]
    rider: tuple[Node, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        made = {name for node in self.all_nodes for name in node.outputs}
        return tuple(n for node in self.all_nodes for n in node.inputs if n not in made)

    @property
    def writes(self) -> tuple[str, ...]:
        inside = {name for node in self.all_nodes for name in node.inputs}
        return tuple(n for node in self.all_nodes for n in node.outputs if n not in inside)

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        return (*self.nodes, *self.rider)

    @property
    def others(self) -> tuple[str, ...]:
        """What the nodes behind the first one read besides what is made before them."""
        made = {name for node in self.nodes for name in node.outputs}
        return tuple(n for node in self.nodes[1:] for n in node.inputs if n not in made)

    @property
    def phase(self) -> str:
        return self.nodes[0].phase

    @property
    def updates(self) -> bool:
        """Whether it replaces a weight by its gradient's update."""
        return len(self.nodes) > 1 and self.nodes[-1].op in updates()

    @property
    def back(self) -> bool:
        """Whether it makes the gradient of the layer's input as well."""
        return len(self.nodes) > 2 and self.updates

    @property
    def loss(self) -> bool:
        """Whether it is a loss and its gradient."""
        return len(self.nodes) == 2 and self.nodes[1].op == f"{self.nodes[0].op}_grad"


def following(graph: Graph, followers: Sequence[Node]) -> Lowering:
    """What computes elementwise nodes one behind the other."""
    last = OPS[followers[-1].op].lower(graph.site(followers[-1]))
    if len(followers) == 1:
        return last
    return Lowering("unary", "_".join(node.op for node in followers), last.sizes)


def ordered_units(
    graph: Graph, *, isa: tuple[str, ...], fuse: bool = True, whole: tuple[str, ...] = ()
) -> list[Unit]:
    """All units in an order that respects every dependence and keeps the peak low. whole: for cores
    with these instruction sets there are also calls that cannot be cut into tiles: layers that go
    back at once, losses with their gradients."""
    fused = _fusable(graph, isa) if fuse else {}
    groups = _groups(graph, fused, whole) if fuse else {}
    riding = {name: pair for name, pair in riders(graph, fused).items() if name in groups}
    while True:
        units = _units(graph, groups, riding)
        after = _dependences(graph, units)
        program = _schedule(graph, units, after, greedy=False)
        if len(program) == len(units):
            break
        # two fused updates each read the other's old weight: take such pairs apart again
        placed = {unit.nodes[0].name for unit in program}
        stuck = {unit.nodes[0].name for unit in units} - placed
        assert stuck & groups.keys(), f"there is no order for {sorted(stuck)}"
        groups = {first: nodes for first, nodes in groups.items() if first not in stuck}
        riding = {first: pair for first, pair in riding.items() if first in groups}
    greedy = _schedule(graph, units, after, greedy=True)
    return min(program, greedy, key=lambda order: peak_bytes(graph, order))


def _groups(
    graph: Graph, fused: dict[str, Node], whole: tuple[str, ...]
) -> dict[str, tuple[Node, ...]]:
    """From the first node of a unit to the others."""
    groups: dict[str, tuple[Node, ...]]
    groups = {**_followed(graph), **{first: (update,) for first, update in fused.items()}}
    for first, *others in (*ways_back(graph, fused, whole), *losses(graph, whole)):
        groups[first.name] = tuple(others)
        for node in others:
            groups.pop(node.name, None)
    return groups


def _fusable(graph: Graph, isa: tuple[str, ...]) -> dict[str, Node]:
    """Weight-gradient nodes whose only reader is an update that a kernel can swallow."""
    if graph.accumulate > 1:
        return {}
    consumers, source = graph.consumers(), view_sources(graph)
    found: dict[str, Node] = {}
    for node in graph.nodes:
        if node.phase != "backward" or len(node.outputs) != 1:
            continue
        readers = consumers[node.outputs[0]]
        if len(readers) != 1 or readers[0].op not in updates():
            continue
        update = readers[0]
        if update.inputs[1] != node.outputs[0]:
            continue
        if source[update.inputs[0]] in {source[name] for name in node.inputs}:
            continue  # it would read what it overwrites
        if OPS[node.op].view:
            continue
        made = OPS[node.op].lower(graph.site(node))
        able = fuses(made.family, made.mode, update.op, made.sizes, isa)
        if able and node.outputs[0] not in graph.outputs:
            found[node.name] = update
    return found


def _followed(graph: Graph) -> dict[str, tuple[Node, ...]]:
    """Nodes whose only reader is elementwise, and has its other operands by then; and where a
    kernel does both, the only reader of that one."""
    consumers = graph.consumers()
    made = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs}
    kept = {*graph.outputs, graph.loss, *(n for pair in graph.updates for n in pair)}
    found: dict[str, tuple[Node, ...]] = {}
    taken: set[str] = set()

    def behind(node: Node, place: int) -> Node | None:
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
        follower = behind(node, place)
        if follower is None:
            continue
        second = behind(follower, place)
        both = second is not None and f"{follower.op}_{second.op}" in JOINED
        found[node.name] = (follower, second) if second and both else (follower,)
        taken.update(node.name for node in found[node.name])
    return found


def _worth_following(graph: Graph, node: Node) -> bool:
    """Products, sums of two, gradients of pools: what computes much, or stands between such."""
    op = OPS[node.op]
    between = node.op == "add" or node.op.endswith("pool2d_grad")
    return not op.view and (between or op.work(graph.site(node)).macs > 0)


def _elementwise(graph: Graph, follower: Node, node: Node) -> bool:
    """Whether each element of the result comes from the same element of every operand, and may
    take the place of the one that the node has made."""
    op, site = OPS[follower.op], graph.site(follower)
    shape = graph.tensors[node.outputs[0]].shape
    slots = [slot.rstrip("?") for slot in op.inputs][: len(follower.inputs)]
    slot = slots[follower.inputs.index(node.outputs[0])]
    if op.view or slot not in op.overwrites or len(site.outs) != 1:
        return False
    if follower.outputs[0] in {new for _, new in graph.updates}:
        return False
    if any(t.shape != shape or t.dtype != "f32" for t in (*site.ins, *site.outs)):
        return False
    axes = {axis.spans[0].dim: axis for axis in op.axes(site) if axis.spans}
    operands = {*slots, op.outputs[0].rstrip("?")}
    plain = all(
        not axis.reduction
        and {span.operand for span in axis.spans} == operands
        and all((s.dim, s.step, s.start, s.extent) == (dim, 1, 0, 1) for s in axis.spans)
        for dim, axis in axes.items()
    )
    covered = all(dim in axes for dim, extent in enumerate(shape) if extent > 1)
    return plain and covered and op.lower(site).repeat == 1


def _units(
    graph: Graph, groups: dict[str, tuple[Node, ...]], riding: dict[str, Pair]
) -> list[Unit]:
    swallowed = {node.name for nodes in groups.values() for node in nodes}
    swallowed |= {node.name for pair in riding.values() for node in pair}
    units = []
    for node in graph.nodes:
        if node.name in swallowed:
            continue
        if node.name in groups:
            units.append(Unit((node, *groups[node.name]), riding.get(node.name, ())))
        else:
            units.append(Unit((node,)))
    return units


def _dependences(graph: Graph, units: list[Unit]) -> list[set[int]]:
    """For each unit, the units that must come before it."""
    writer = {name: i for i, unit in enumerate(units) for name in unit.writes}
    before: list[set[int]] = [
        {writer[name] for name in unit.reads if name in writer} for unit in units
    ]
    _overwritten_in_turn(graph, units, writer, before)
    kept = {new for _, new in graph.updates}
    forward = sorted(
        (i for i, unit in enumerate(units) if unit.phase == "forward"),
        key=lambda i: not kept.isdisjoint(units[i].writes),
    )  # running statistics come last: predict() runs what stands before the loss, and no more
    backward = [i for i, unit in enumerate(units) if unit.phase == "backward"]
    for position, i in enumerate(forward[1:], start=1):
        before[i].add(forward[position - 1])
    for i, unit in enumerate(units):
        if unit.phase != "forward" and forward:
            before[i].add(forward[-1])
        if unit.phase == "update" and graph.accumulate > 1:
            before[i].update(backward)
    return before


def _overwritten_in_turn(
    graph: Graph, units: list[Unit], writer: dict[str, int], before: list[set[int]]
) -> None:
    """What replaces a tensor in place waits for all readers of what was there before, whether they
    read it or a view of it; a state that is updated twice in a step has two such versions."""
    source = view_sources(graph)
    readers: dict[str, set[int]] = defaultdict(set)
    for i, unit in enumerate(units):
        for name in unit.reads:
            readers[source[name]].add(i)
    versions: dict[str, list[str]] = {}
    for old, new in graph.updates:
        versions.setdefault(old, [source[old]]).append(source[new])
    for chain in versions.values():
        for place, new in enumerate(chain[1:], start=1):
            for old in chain[:place]:
                before[writer[new]] |= readers[old] - {writer[new]}


def _schedule(
    graph: Graph, units: list[Unit], before: list[set[int]], *, greedy: bool
) -> list[Unit]:
    """Topological order: by program order, or by what adds least to the live bytes."""
    waiting = [len(earlier) for earlier in before]
    after: list[list[int]] = [[] for _ in units]
    for i, earlier in enumerate(before):
        for j in earlier:
            after[j].append(i)
    readers: dict[str, int] = defaultdict(int)
    for unit in units:
        for name in set(unit.reads):
            readers[name] += 1

    def growth(i: int) -> tuple[int, int]:
        if not greedy:
            return (0, i)
        freed = sum(
            graph.tensors[n].bytes
            for n in set(units[i].reads)
            if readers[n] == 1 and _temporary(graph, n)
        )
        made = sum(graph.tensors[n].bytes for n in units[i].writes if _temporary(graph, n))
        return (made - freed, i)

    ready = [i for i, count in enumerate(waiting) if count == 0]
    result = []
    while ready:
        chosen = min(ready, key=growth)
        ready.remove(chosen)
        result.append(units[chosen])
        for name in set(units[chosen].reads):
            readers[name] -= 1
        for i in after[chosen]:
            waiting[i] -= 1
            if waiting[i] == 0:
                ready.append(i)
    return result


def _temporary(graph: Graph, name: str) -> bool:
    return graph.tensors[name].role in ("activation", "gradient", "partial", "input", "target")


def peak_bytes(graph: Graph, units: list[Unit]) -> int:
    """Most bytes of temporaries alive at once, views and in-place updates not counted apart."""
    last = {name: i for i, unit in enumerate(units) for name in unit.reads}
    ending: dict[int, list[str]] = defaultdict(list)
    for name, i in last.items():
        if _temporary(graph, name):
            ending[i].append(name)
    live = sum(graph.tensors[n].bytes for n in (*graph.inputs,))
    peak = live
    for i, unit in enumerate(units):
        if not OPS[unit.nodes[0].op].view:
            live += sum(graph.tensors[n].bytes for n in unit.writes if _temporary(graph, n))
        peak = max(peak, live)
        live -= sum(graph.tensors[n].bytes for n in ending[i])
    return peak
