"""Which groups of nodes are computed together, and in which order.

An update may only come after every reader of the old weight, also of those that read it through
views; the order is chosen for a low memory peak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gradlet.ir.graph import Graph
from gradlet.ops import OPS
from gradlet.planner.fuse.rule import FusionGroup
from gradlet.planner.fuse.rules import RULES
from gradlet.planner.views import view_sources
from gradlet.targets.target import Target


def ordered_groups(
    graph: Graph, isa: tuple[str, ...], *, fuse: bool = True, backed: Target | None = None
) -> list[FusionGroup]:
    """All groups in an order that respects every dependence and keeps the peak low. isa: the
    instruction sets of the cores. backed: where operands lie in the backing memory of a target,
    only fusions whose calls can run so there."""
    rules = [rule for rule in RULES.values() if fuse and (rule.tiles or not backed)]
    matches = [
        group
        for rule in rules
        for group in rule.groups(graph, isa)
        if backed is None or rule.fits(graph, backed, group)
    ]
    while True:
        groups = _partition(graph, matches)
        after = _dependences(graph, groups)
        program = _schedule(graph, groups, after, greedy=False)
        if len(program) == len(groups):
            break
        # two fused updates each read the other's old weight: take such pairs apart again
        placed = {group.nodes[0].name for group in program}
        waiting = [group for group in groups if group.nodes[0].name not in placed]
        stuck = {node.name for group in waiting for node in group.nodes}
        left = [match for match in matches if match.nodes[0].name not in stuck]
        assert len(left) < len(matches), f"there is no order for {sorted(stuck)}"
        matches = left
    greedy = _schedule(graph, groups, after, greedy=True)
    return min(program, greedy, key=lambda order: peak_bytes(graph, order))


def _partition(graph: Graph, matches: Sequence[FusionGroup]) -> list[FusionGroup]:
    """Every node in one group, in the order of their first nodes; later matches win."""
    standing: dict[str, FusionGroup] = {}
    taken: set[str] = set()
    for match in reversed(matches):
        names = {node.name for node in match.all_nodes}
        if not names & taken:
            taken |= names
            standing[match.nodes[0].name] = match
    alone = (node for node in graph.nodes if node.name not in taken)
    groups = {**standing, **{node.name: FusionGroup((node,)) for node in alone}}
    return [groups[node.name] for node in graph.nodes if node.name in groups]


def _dependences(graph: Graph, groups: list[FusionGroup]) -> list[set[int]]:
    """For each group, the groups that must come before it."""
    writer = {name: i for i, group in enumerate(groups) for name in group.writes}
    before: list[set[int]] = [
        {writer[name] for name in group.reads if name in writer} for group in groups
    ]
    _overwritten_in_turn(graph, groups, writer, before)
    kept = {new for _, new in graph.updates}
    forward = sorted(
        (i for i, group in enumerate(groups) if group.phase == "forward"),
        key=lambda i: not kept.isdisjoint(groups[i].writes),
    )  # running statistics come last: predict() runs what stands before the loss, and no more
    backward = [i for i, group in enumerate(groups) if group.phase == "backward"]
    for position, i in enumerate(forward[1:], start=1):
        before[i].add(forward[position - 1])
    for i, group in enumerate(groups):
        if group.phase != "forward" and forward:
            before[i].add(forward[-1])
        if group.phase == "update" and graph.accumulate > 1:
            before[i].update(backward)
    return before


def _overwritten_in_turn(
    graph: Graph, groups: list[FusionGroup], writer: dict[str, int], before: list[set[int]]
) -> None:
    """What replaces a tensor in place waits for all readers of what was there before, whether they
    read it or a view of it; a state that is updated twice in a step has two such versions."""
    source = view_sources(graph)
    readers: dict[str, set[int]] = defaultdict(set)
    for i, group in enumerate(groups):
        for name in group.reads:
            readers[source[name]].add(i)
    versions: dict[str, list[str]] = {}
    for old, new in graph.updates:
        versions.setdefault(old, [source[old]]).append(source[new])
    for chain in versions.values():
        for place, new in enumerate(chain[1:], start=1):
            for old in chain[:place]:
                before[writer[new]] |= readers[old] - {writer[new]}


def _schedule(
    graph: Graph, groups: list[FusionGroup], before: list[set[int]], *, greedy: bool
) -> list[FusionGroup]:
    """Topological order: by program order, or by what adds least to the live bytes."""
    waiting = [len(earlier) for earlier in before]
    after: list[list[int]] = [[] for _ in groups]
    for i, earlier in enumerate(before):
        for j in earlier:
            after[j].append(i)
    readers: dict[str, int] = defaultdict(int)
    for group in groups:
        for name in set(group.reads):
            readers[name] += 1

    def growth(i: int) -> tuple[int, int]:
        if not greedy:
            return (0, i)
        freed = sum(
            graph.tensors[n].bytes
            for n in set(groups[i].reads)
            if readers[n] == 1 and _temporary(graph, n)
        )
        made = sum(graph.tensors[n].bytes for n in groups[i].writes if _temporary(graph, n))
        return (made - freed, i)

    ready = [i for i, count in enumerate(waiting) if count == 0]
    result = []
    while ready:
        chosen = min(ready, key=growth)
        ready.remove(chosen)
        result.append(groups[chosen])
        for name in set(groups[chosen].reads):
            readers[name] -= 1
        for i in after[chosen]:
            waiting[i] -= 1
            if waiting[i] == 0:
                ready.append(i)
    return result


def _temporary(graph: Graph, name: str) -> bool:
    return graph.tensors[name].role in ("activation", "gradient", "partial", "input", "target")


def peak_bytes(graph: Graph, groups: list[FusionGroup]) -> int:
    """Most bytes of temporaries alive at once, views and in-place updates not counted apart."""
    last = {name: i for i, group in enumerate(groups) for name in group.reads}
    ending: dict[int, list[str]] = defaultdict(list)
    for name, i in last.items():
        if _temporary(graph, name):
            ending[i].append(name)
    live = sum(graph.tensors[n].bytes for n in (*graph.inputs,))
    peak = live
    for i, group in enumerate(groups):
        if not OPS[group.nodes[0].op].view:
            live += sum(graph.tensors[n].bytes for n in group.writes if _temporary(graph, n))
        peak = max(peak, live)
        live -= sum(graph.tensors[n].bytes for n in ending[i])
    return peak
