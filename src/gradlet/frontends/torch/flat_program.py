"""An exported program as one list of operations, without what leads to no result.

`torch.no_grad()` and `torch.autocast()` come out of `torch.export` as calls of inner graphs. These
are written out in place; operations under no_grad are marked, since no gradient enters them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradlet.frontends.torch.aliases import VIEWS, in_place
from gradlet.support.extras import require_torch

QUIET = "no_grad"
STORED = "stored"
OWN_NAME = "own_name"
_INNER = (
    "wrap_with_set_grad_enabled",
    "wrap_with_autocast",
    "tag_activation_checkpoint",
    "wrap_activation_checkpoint",
    "wrap",
)


def flattened(program: Any) -> Any:
    """The graph of the program, written anew."""
    return _Flat(program).graph


class _Flat:
    def __init__(self, program: Any) -> None:
        self.graph = require_torch().fx.Graph()
        self._write(program.graph_module, {}, quiet=False)

    def _write(self, owner: Any, known: dict[Any, Any], *, quiet: bool) -> Any:
        """Copy the nodes of a graph; what its placeholders stand for is known, if it is inner."""
        for node in owner.graph.nodes:
            if node.op == "placeholder" and node in known:
                continue
            if node.op == "output" and known.get("inner"):
                return require_torch().fx.node.map_arg(node.args[0], lambda n: known[n])
            if _name(node) == "_set_grad_enabled":  # one that the exporter has left as it was
                quiet = not node.args[0]
            elif _name(node) not in ("_enter_autocast", "_exit_autocast"):
                known[node] = self._written(owner, node, known, quiet)
        return None

    def _written(self, owner: Any, node: Any, known: dict[Any, Any], quiet: bool) -> Any:
        if node.op == "get_attr":
            value = owner
            for part in node.target.split("."):
                value = getattr(value, part)
            if hasattr(value, "graph"):
                return value
            copy = self.graph.node_copy(node)
            copy.meta[STORED] = value
            return copy
        if node.op == "call_function" and _name(node) in _INNER:
            return self._inner(node, known, quiet)
        if node.op == "call_function" and _name(node) == "getitem":
            whole = known[node.args[0]]
            if isinstance(whole, tuple | list):  # of an inner graph
                return whole[node.args[1]]
        copy = self.graph.node_copy(node, lambda n: known[n])
        copy.meta |= {QUIET: quiet, OWN_NAME: node.name}
        return copy

    def _inner(self, node: Any, known: dict[Any, Any], quiet: bool) -> Any:
        args = require_torch().fx.node.map_arg(node.args, lambda n: known[n])
        place = next(index for index, arg in enumerate(args) if _is_graph(arg))
        if _name(node) == "wrap_with_set_grad_enabled":
            quiet = not args[0]
        inner = args[place]
        given = iter(args[place + 1 :])
        inside: dict[Any, Any] = {"inner": True}
        inside |= {n: next(given) for n in inner.graph.nodes if n.op == "placeholder"}
        return self._write(inner, inside, quiet=quiet)


def _is_graph(value: Any) -> bool:
    return isinstance(value, require_torch().fx.GraphModule)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target))


def live(graph: Any) -> set[str]:
    """Names of the nodes that a result depends on. One that overwrites a tensor counts if the
    tensor, or a view into it, does."""
    families = dict(_families(graph))
    writers: dict[str, list[Any]] = {}
    for node in graph.nodes:
        if in_place(str(node.target)) and node.args:
            writers.setdefault(families[node.name], []).append(node)
    found: set[str] = set()
    waiting = [node for node in graph.nodes if node.op == "output"]
    while waiting:
        node = waiting.pop()
        if node.name in found:
            continue
        found.add(node.name)
        waiting += node.all_input_nodes
        waiting += writers.get(families.get(node.name, ""), [])
    return found


def _families(graph: Any) -> Iterator[tuple[str, str]]:
    """The tensor that each value is, or is a view into."""
    roots: dict[str, str] = {}
    for node in graph.nodes:
        target, root = str(node.target), node.name
        name = target.split(".")[1] if target.count(".") == 2 else target
        first: Any = node.args[0] if node.args else None
        if hasattr(first, "op") and (in_place(target) or name in VIEWS or "getitem" in name):
            root = roots[first.name]
        roots[node.name] = root
        yield node.name, root
