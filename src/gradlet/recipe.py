"""How to train: what a model may wish for, and the command line decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How to train: what `gradlet build` asks beside model and target.

    momentum and nesterov are SGD's; beta1, beta2 and eps are Adam's and AdamW's. A clip_norm or
    clip_value of 0 clips nothing.
    """

    loss: str = "cross_entropy"
    optimizer: str = "sgd"
    lr: float = 0.01
    weight_decay: float = 0.0
    momentum: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_norm: float = 0.0
    clip_value: float = 0.0
    update: str = "all"
    accumulate: int = 1
