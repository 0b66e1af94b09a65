"""Which values of an exported program are one tensor, or views into one, when it is overwritten."""

from __future__ import annotations

from typing import Any

from gradlet.ir.graph import Array
from gradlet.support.extras import require_torch

# Results that share memory with their first operand, or may; a getitem of one does as well.
_VIEWS = (
    "view reshape flatten unflatten squeeze unsqueeze permute transpose t numpy_T mT swapaxes "
    "swapdims movedim slice select narrow expand expand_as view_as reshape_as ravel chunk "
    "split split_with_sizes tensor_split unbind contiguous to type_as dropout feature_dropout "
    "alias detach atleast_1d atleast_2d pixel_shuffle diagonal unfold moveaxis alpha_dropout "
    "feature_alpha_dropout"
)
VIEWS = frozenset(_VIEWS.split())
_UNMOVED = (
    *("to", "type_as", "dropout", "feature_dropout"),
    *("alpha_dropout", "feature_alpha_dropout"),
)


_TURNED = ("transpose_", "t_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_")
"""These leave the numbers where they are, and are views under another name."""


def in_place(target: str) -> bool:
    """Whether an overload replaces its first operand, as `aten.relu_.default` does."""
    parts = target.split(".")
    if len(parts) == 3 and parts[1] in _TURNED:
        return False
    return len(parts) == 3 and parts[1].endswith("_") and not parts[1].startswith("_")


def op_name(target: str) -> str:
    return target.split(".")[1] if target.count(".") == 2 else target


class Aliases:
    """Families of values over one storage: the tensor at the root, itself under further names after
    it was overwritten, and views into it, in the order of the program."""

    def __init__(self) -> None:
        self.family: dict[str, str] = {}
        self.same: dict[str, str] = {}
        self.views: dict[str, list[Any]] = {}  # nodes of a family below its root
        self._places: dict[str, Any] = {}

    def root(self, name: str) -> str:
        return self.family.get(name, name)

    def note(self, node: Any, target: str) -> None:
        first: Any = node.args[0] if node.args else None
        if not hasattr(first, "op"):
            return
        if in_place(target):
            self.same[node.name] = self.same.get(first.name, first.name)
        elif not self._shares(node, first):
            return
        root = self.family[node.name] = self.root(first.name)
        self.views.setdefault(root, []).append(node)

    def _shares(self, node: Any, first: Any) -> bool:
        """Whether a view is one: what PyTorch does with a tensor that lies so."""
        name = op_name(str(node.target))
        name = name.rstrip("_") if name in _TURNED else name
        if "getitem" in name:
            return first.name in self.family
        if name not in VIEWS:
            return False
        if "dropout" in name:
            return not node.args[2]
        torch = require_torch()
        like = first.meta.get("val")
        if not isinstance(like, torch.Tensor) or not like.numel():
            return False
        lies = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        try:
            result = node.target(lies, *_plain(node.args[1:]), **_plain(node.kwargs))
        except Exception:  # of several tensors: none of these is a view
            return False
        part = result[0] if isinstance(result, tuple | list) else result
        same: bool = part.untyped_storage().data_ptr() == lies.untyped_storage().data_ptr()
        return same

    def places(self, node: Any) -> Array:
        """Where in the tensor at the root the elements of a value are."""
        found: Array = self._places_of(node).numpy()
        return found

    def _places_of(self, node: Any) -> Any:
        torch = require_torch()
        if node.name in self._places:
            return self._places[node.name]
        if node.name not in self.family:
            shape = node.meta["val"].shape
            return torch.arange(shape.numel()).reshape(shape)
        before = self._places_of(node.args[0])
        if in_place(str(node.target)):
            found = before
        elif "getitem" in str(node.target):
            found = before[node.args[1]]
        elif op_name(str(node.target)) in _UNMOVED:
            found = before
        else:
            found = node.target(before, *_plain(node.args[1:]), **_plain(node.kwargs))
        self._places[node.name] = found
        return found


def _plain(args: Any) -> Any:
    """Operands of a view that are tensors stand for their shapes."""
    torch = require_torch()

    def like(node: Any) -> Any:
        return torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)

    return torch.fx.node.map_arg(args, like)
