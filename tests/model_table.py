"""The table of models for end-to-end tests, which several files fill."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Model = tuple[nn.Module, tuple[Tensor, ...]]
MODELS: dict[str, Callable[[], Model]] = {}


def model(build: Callable[[], Model]) -> Callable[[], Model]:
    def seeded() -> Model:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return build()

    MODELS[build.__name__] = seeded
    return seeded
