"""Which values of an exported program are one tensor, or views into one, when it is overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Results that share memory with their first operand, or may; a getitem of one does as well.
_VIEWS = (
    "view reshape flatten unflatten squeeze unsqueeze permute transpose t numpy_T mT swapaxes "
    "swapdims movedim slice select narrow expand expand_as view_as reshape_as ravel chunk "
    "split split_with_sizes tensor_split unbind contiguous to type_as dropout feature_dropout "
    "alias detach atleast_1d atleast_2d pixel_shuffle"
)
VIEWS = frozenset(_VIEWS.split())


def in_place(target: str) -> bool:
    """Whether an overload replaces its first operand, as `aten.relu_.default` does."""
    parts = target.split(".")
    return len(parts) == 3 and parts[1].endswith("_") and not parts[1].startswith("_")


class Aliases:
    """Families of values over one storage, and the values that are one and the same tensor."""

    def __init__(self, nodes: Sequence[Any]) -> None:
        self.order = {node.name: index for index, node in enumerate(nodes)}
        self.nodes = {node.name: node for node in nodes}
        self.family: dict[str, str] = {}
        self.same: dict[str, str] = {}

    def note(self, node: Any, target: str, first: Any) -> None:
        own = getattr(first, "name", None)
        if own is None:
            return
        name = target.split(".")[1] if target.count(".") == 2 else target
        if in_place(target):
            self.same[node.name] = self.same.get(own, own)
        if in_place(target) or name in VIEWS or "getitem" in name:
            self.family[node.name] = self.family.get(own, own)

    def overwritten(self, node: Any) -> list[str]:
        """The values that `node` gives a new meaning: its own tensor under all of its names."""
        tensor = self.same[node.name]
        return [name for name in (tensor, *self.same) if self.same.get(name, name) == tensor]

    def stale(self, node: Any) -> str:
        """Another view of the overwritten memory that is read later on, if there is one."""
        family, own = self.family[node.name], set(self.overwritten(node))
        members = [family, *(name for name, root in self.family.items() if root == family)]
        for name in members:
            users = self.nodes[name].users if name not in own else ()
            if any(self.order[user.name] > self.order[node.name] for user in users):
                return name
        return ""
