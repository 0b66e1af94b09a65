"""What an exported program computes from constants alone: PyTorch itself says what it is.

Masks, positions and the like are made by many small operations on booleans and integers. None of
them has to be an op of ours, since nothing that is trained or fed goes into them.
"""

from __future__ import annotations

from typing import Any

from gradlet.support.extras import require_torch

# These read no more of their first operand than its shape and type.
_LIKE = (
    *("zeros_like", "ones_like", "full_like", "empty_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)


class Folder:
    """Values by the name of their fx node."""

    def __init__(self, graph: Any) -> None:
        self.values: dict[str, Any] = {}
        self.inexact = False  # whether a float was computed: in double precision it differs
        self._changing = _changed_in_place(graph)

    def learn(self, name: str, value: Any) -> None:
        """A stored tensor that is not trained; one that a pass changes is no constant."""
        if name not in self._changing:
            self.values[name] = value.clone()

    def fold(self, node: Any) -> bool:
        """Compute a node, if all that it reads is known."""
        if not self._may_run(node):
            return False
        torch = require_torch()

        def known(value: Any) -> Any:
            if value.name in self.values:
                return self.values[value.name]
            like = value.meta["val"]
            return torch.empty(like.shape, dtype=like.dtype)

        args, kwargs = (torch.fx.node.map_arg(part, known) for part in (node.args, node.kwargs))
        try:
            with torch.no_grad():
                self.values[node.name] = node.target(*args, **kwargs)
        except Exception:  # what it cannot compute, an op of ours may
            return False
        result = self.values[node.name]
        self.inexact |= isinstance(result, torch.Tensor) and result.dtype.is_floating_point
        return True

    def _may_run(self, node: Any) -> bool:
        torch = require_torch()
        if isinstance(node.target, torch._ops.OpOverload):
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                return False
            if node.target._opname in _LIKE:
                return True
        elif getattr(node.target, "__name__", "") != "getitem":
            return False
        return all(operand.name in self.values for operand in node.all_input_nodes)


def _changed_in_place(graph: Any) -> set[str]:
    """Names of operands that some operation writes to."""
    changed = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None and schema.is_mutable and node.args:
            changed.add(getattr(node.args[0], "name", ""))
    return {node.name for node in graph.nodes if node.op == "placeholder"} & changed
