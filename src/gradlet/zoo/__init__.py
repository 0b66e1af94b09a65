"""Models that the field measures itself on. `zoo:NAME` on the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradlet.errors import GradletError


@dataclass(frozen=True)
class ZooModel:
    """`make()` returns (module, inputs, targets), seeded; `loss` is what it is trained with."""

    name: str
    doc: str
    loss: str
    make: Callable[[], tuple[Any, Any, Any]]


def models() -> dict[str, ZooModel]:
    from gradlet.zoo import networks

    return networks.ZOO


def get(name: str) -> ZooModel:
    from gradlet.support.extras import require_torch

    require_torch()
    zoo = models()
    if name not in zoo:
        raise GradletError(f"there is no zoo:{name}; the zoo has {', '.join(zoo)}")
    return zoo[name]
