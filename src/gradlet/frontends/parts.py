"""An operation of PyTorch that no op of ours is called like, as PyTorch itself takes it apart."""

from __future__ import annotations

from typing import Any

from gradlet.support.extras import require_torch

MOST_PARTS = 128
_OTHER_GRADIENT = ("pdist", "_pdist_forward")
"""Whose parts have another gradient than they have themselves: at a distance of 0."""


def parts_of(node: Any) -> Any:
    """The graph that PyTorch computes a node by, over the same operands in their order; None if it
    has none, or if that is no smaller step."""
    torch = require_torch()
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or operator._schema.is_mutable:
        return None
    if operator.namespace != "aten" or operator._opname in _OTHER_GRADIENT:
        return None  # others may have any gradient, whatever they are made of
    written = torch._decomp.get_decompositions([operator]).get(operator)
    for rule in filter(None, (operator, written)):  # as it runs; then as it is written down
        if (graph := _traced(node, rule)) is not None:
            return graph
    return None


def _traced(node: Any, rule: Any) -> Any:
    torch = require_torch()
    from torch.fx.experimental.proxy_tensor import make_fx

    operands = node.all_input_nodes

    def run(*values: Any) -> Any:
        given = {operand.name: value for operand, value in zip(operands, values, strict=True)}
        args, kwargs = (
            torch.fx.node.map_arg(part, lambda item: given[item.name])
            for part in (node.args, node.kwargs)
        )
        return rule(*args, **kwargs)

    try:
        examples = [_empty(operand.meta["val"]) for operand in operands]
        graph = make_fx(run, tracing_mode="fake")(*examples).graph
    except Exception:  # there is no rule, or it depends on values
        return None
    targets = [part.target for part in graph.nodes if part.op == "call_function"]
    itself = node.target in targets or any(str(target).startswith("prims.") for target in targets)
    drawn = torch.Tag.nondeterministic_seeded
    random = any(drawn in getattr(target, "tags", ()) for target in targets)
    return None if itself or random or not targets or len(targets) > MOST_PARTS else graph


def _empty(like: Any) -> Any:
    return require_torch().zeros(like.shape, dtype=like.dtype)


def inserted(graph: Any, node: Any, parts: Any) -> tuple[list[Any], Any]:
    """The parts as nodes of the graph, right before the node that they stand for, and what they
    make: a node, or several."""
    torch = require_torch()
    places = [part for part in parts.nodes if part.op == "placeholder"]
    same = dict(zip(places, node.all_input_nodes, strict=True))
    made, result = [], None
    for part in parts.nodes:
        if part.op == "output":
            result = torch.fx.node.map_arg(part.args[0], lambda item: same[item])
        elif isinstance(part.target, type):  # several results under a name of their own
            same[part] = torch.fx.node.map_arg(list(part.args), lambda item: same[item])
        elif part.op != "placeholder":
            with graph.inserting_before(node):
                copy = graph.node_copy(part, lambda item: same[item])
            copy.meta = {**node.meta, "val": part.meta.get("val")}
            same[part] = copy
            made.append(copy)
    return made, result
