"""Updates and clipping: rows of a plain op whose operands are trained in different ways."""

from __future__ import annotations

from typing import Any

from gradlet.ir.graph import Shape
from tests.cases.base import Case


def trained(*shapes: Shape, **training: Any) -> Case:
    """The sum of some weights, updated as told."""
    return Case("add", shapes, training={"lr": 0.05, **training})


WAYS: tuple[dict[str, Any], ...] = (
    {"weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.5, "nesterov": True},
    {"optimizer": "adam", "weight_decay": 0.1},
    {"optimizer": "adam", "beta1": 0.0, "beta2": 0.5, "eps": 1e-3},
    {"optimizer": "adamw", "weight_decay": 0.1},
    {"clip_norm": 0.25},
    {"clip_norm": 1e6},
    {"clip_value": 0.02},
    {"loss_scale": "64"},
    {"loss_scale": "dynamic", "accumulate": 2},
)

ROWS: tuple[Case, ...] = tuple(
    trained(*shapes, **way)
    for way in WAYS
    for shapes in (((1,), (1,)), ((3, 7), (7,)), ((2, 3, 11), (2, 1, 1)))
)
