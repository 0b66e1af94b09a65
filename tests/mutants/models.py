"""Models that reach the code to be mutated: small, and between them every op, loss and device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Subject:
    """A model of the tests' table with a recipe and a device."""

    model: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> tuple[nn.Module, dict[str, Any]]:
        from tests.models import MODELS

        module, inputs = MODELS[self.model]()
        return module, {"inputs": inputs, **self.options}


HOST: Mapping[str, Any] = {"target": "host", "cores": 3}


def cluster(l1: str, **options: Any) -> Mapping[str, Any]:
    return {"target": "pulp-open", "memories": {"L1": l1}, "batch": 1, **options}


SUBJECTS: Mapping[str, Subject] = {
    "lenet": Subject("lenet", {"momentum": 0.9, "weight_decay": 0.01}, HOST),
    "residual": Subject("residual", {"loss": "mse", "optimizer": "adam"}, HOST),
    "tied": Subject("tied", {"loss": "huber", "delta": 0.5, "clip_norm": 0.5}, HOST),
    "tokens": Subject("tokens", {"label_smoothing": 0.1, "clip_value": 0.01}, HOST),
    "segmentation": Subject("segmentation", {"class_weights": (0.5, 2.0, 1.0)}, HOST),
    "autoencoder": Subject("autoencoder", {"loss": "berhu"}, HOST),
    "waves": Subject("waves", {"loss": "smooth_l1", "nesterov": True, "momentum": 0.8}, HOST),
    "norms": Subject("norms", {"optimizer": "adamw", "weight_decay": 0.1}, HOST),
    "functions": Subject("functions", {"loss": "l1"}, HOST),
    "arithmetic": Subject("arithmetic", {"loss": "bce_with_logits"}, HOST),
    "recurrent": Subject("recurrent", {"accumulate": 2}, HOST),
    "vision": Subject("vision_transformer", {"optimizer": "adam"}, HOST),
    "dropout": Subject("dropout_net", {}, HOST),
    "cluster lenet": Subject("lenet", {"momentum": 0.9}, cluster("16k")),
    "cluster residual": Subject("residual", {}, cluster("10k")),
    "cluster residual hwc": Subject("residual", {}, cluster("10k", layout="hwc")),
    "cluster pyramid": Subject("pyramid", {"loss": "mse"}, cluster("16k")),
    "cluster mobilenets": Subject("mobilenets", {}, cluster("12k")),
    "cluster recurrent": Subject("recurrent", {"optimizer": "adam"}, cluster("16k")),
    "cluster vision": Subject("vision_transformer", {"clip_norm": 1.0}, cluster("16k")),
    "cluster odd": Subject("odd", {}, cluster("16k", batch=2)),
}
