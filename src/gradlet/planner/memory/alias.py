"""Which tensors share one storage: views, updates in place, outputs that take over an input."""

from __future__ import annotations

from dataclasses import dataclass

from gradlet.ir.graph import EXTERNAL_ROLES, Graph
from gradlet.ops import OPS
from gradlet.planner.fuse.rule import FusionGroup

PERSISTENT = ("param", "const", "state")


@dataclass(frozen=True)
class Storage:
    name: str
    region: str
    bytes: int
    first: int
    last: int
    tensors: tuple[str, ...]


class _Sharing:
    """Storages under construction; `of` leads from a tensor to the tensor that owns its bytes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.of: dict[str, str] = {name: name for name in graph.tensors}
        self.members: dict[str, list[str]] = {name: [name] for name in graph.tensors}

    def join(self, tensor: str, owner: str) -> None:
        root, gone = self.of[owner], self.of[tensor]
        if root == gone:
            return
        for name in self.members.pop(gone):
            self.of[name] = root
            self.members[root].append(name)


def share_storage(
    graph: Graph, groups: list[FusionGroup], computing: list[FusionGroup]
) -> dict[str, Storage]:
    """Storages by name; times are indices into `computing`."""
    sharing = _Sharing(graph)
    for old, new in graph.updates:
        sharing.join(new, old)
    for group in groups:
        if OPS[group.nodes[0].op].view:
            sharing.join(group.writes[0], group.reads[0])
    first, last = _lifetimes(graph, computing, sharing)
    for time, group in enumerate(computing):
        _take_over(graph, group, time, sharing, first, last)
    storages = {}
    unused = _never_touched(graph, groups)
    for root, members in sharing.members.items():
        if root in unused:
            continue
        storages[root] = Storage(
            root,
            _region(graph, members),
            max(graph.tensors[name].bytes for name in members),
            first[root],
            last[root],
            tuple(members),
        )
    return storages


def _lifetimes(
    graph: Graph, computing: list[FusionGroup], sharing: _Sharing
) -> tuple[dict[str, int], dict[str, int]]:
    end = len(computing)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for time, group in enumerate(computing):
        for name in (*group.reads, *group.writes):
            root = sharing.of[name]
            first.setdefault(root, time)
            last[root] = time
    for name, tensor in graph.tensors.items():
        root = sharing.of[name]
        if tensor.role in EXTERNAL_ROLES:
            first[root] = 0
            last.setdefault(root, 0)
        if tensor.role in PERSISTENT or name in (*graph.outputs, graph.loss):
            first.setdefault(root, 0)
            last[root] = end
    return first, last


def _take_over(
    graph: Graph,
    group: FusionGroup,
    time: int,
    sharing: _Sharing,
    first: dict[str, int],
    last: dict[str, int],
) -> None:
    """Let the output have an input's bytes, if nothing reads them later and the kernel allows."""
    node = group.nodes[-1]
    op = OPS[node.op]
    if len(group.nodes) > 1 or not op.overwrites:
        return
    output = node.outputs[op.outputs.index(op.overwriter) if op.overwriter else 0]
    root, shape = sharing.of[output], graph.tensors[output].shape
    if root != output and any(graph.tensors[n].role in PERSISTENT for n in sharing.members[root]):
        return
    stages = dict(zip((s.rstrip("?") for s in op.inputs), node.inputs, strict=False))
    for stage in op.overwrites:
        owner = sharing.of[stages[stage]]
        if any(
            sharing.of[name] == owner
            and (other not in op.overwrites or graph.tensors[name].shape != shape)
            for other, name in stages.items()
        ):
            continue  # another operand is a view of it, and may be read elsewhere
        reusable = (
            owner != root
            and last[owner] == time
            and not any(graph.tensors[n].role in PERSISTENT for n in sharing.members[owner])
        )
        if reusable:
            last[owner] = last[root]
            sharing.join(output, owner)
            return


def _region(graph: Graph, members: list[str]) -> str:
    roles = {graph.tensors[name].role for name in members}
    if "state" in roles or ("param" in roles and len(members) > 1 and "updated" in roles):
        return "weights"
    return "constants" if roles & {"param", "const"} else "arena"


def _never_touched(graph: Graph, groups: list[FusionGroup]) -> set[str]:
    touched = {name for group in groups for name in (*group.reads, *group.writes)}
    touched.update((*graph.inputs, *graph.outputs))
    return {name for name in graph.tensors if name not in touched}
