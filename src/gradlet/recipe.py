"""How to train: what a model may wish for, and the command line decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How to train: what `gradlet build` asks beside model and target."""

    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    lr: float = 0.01
    weight_decay: float = 0.0
    update: str = "all"
    accumulate: int = 1
