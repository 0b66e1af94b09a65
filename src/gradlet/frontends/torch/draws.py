"""Random numbers in the one use that a program has for them: keep or lose.

Stochastic depth is often written as floor(keep + rand): 1 with the probability `keep`, else 0. The
numbers themselves are never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradlet.frontends.torch.aliases import op_name
from gradlet.ops.dropout import bernoulli
from gradlet.ops.importer import Importer
from gradlet.support.extras import require_torch

RANDOM = (
    "it draws random numbers; a program has those of dropout, of bernoulli and of stochastic "
    "depth, floor(keep + rand). Give others as an input of the model, or leave them out in training"
)


def draws(node: Any) -> bool:
    """Whether a node is an operation of PyTorch that draws random numbers."""
    seeded = require_torch().Tag.nondeterministic_seeded
    return seeded in getattr(node.target, "tags", ())


@dataclass(frozen=True)
class Draw:
    """Numbers from `offset` to 1 more, made by `source`, of the layer of dropout with this number,
    under all names that their tensor has."""

    source: str
    salt: int
    offset: float
    names: tuple[str, ...]


class Draws:
    """Draws by the name of their fx node."""

    def __init__(self) -> None:
        self.found: dict[str, Draw] = {}

    def take(self, imp: Importer, node: Any, args: Sequence[Any]) -> dict[str, str] | None:
        """None if a node has nothing to do with draws; else the tensors that are made of them."""
        name = op_name(str(node.target))
        if name in ("rand", "rand_like"):
            self.found[node.name] = Draw(str(node.target), imp.count("dropout"), 0.0, (node.name,))
            return {}
        first = next(
            (self.found[n.name] for n in node.all_input_nodes if n.name in self.found), None
        )
        if first is None:
            return None
        names = (*first.names, node.name) if name.endswith("_") else (node.name,)
        if name in ("add", "add_") and isinstance(args[1], int | float):
            moved = Draw(first.source, first.salt, first.offset + args[1], names)
            self.found |= dict.fromkeys(names, moved)
            return {}
        if name not in ("floor", "floor_"):
            raise imp.unsupported(
                f"random numbers, here of {first.source}; those of dropout and stochastic depth, "
                "floor(keep + rand), are"
            )
        made = bernoulli(imp, tuple(node.meta["val"].shape), first.offset, first.salt)
        for own in names:
            self.found.pop(own, None)
        return dict.fromkeys(names, made)
