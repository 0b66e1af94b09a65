"""Models that reach the code to be mutated: small, and between them every op, loss and device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Subject:
    """A model of the tests' table with a recipe and a device."""

    model: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> tuple[nn.Module, dict[str, Any]]:
        from tests import architectures_odd, models

        torch.manual_seed(0)
        made = {**models.MODELS, **architectures_odd.MODELS, **MODELS}
        module, inputs = made[self.model]()
        return module, {"inputs": inputs, **self.options}


class Sharp(nn.Module):
    """Scores far from each other: a softmax that does not take off the largest one overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("far", torch.tensor([0.0, 200, 0, 200, 0, 0, 200, 0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.first(x) + self.far
        logits: torch.Tensor = (
            self.last(scores.softmax(1) + scores.log_softmax(1) / 100) + self.far[:3]
        )
        return logits


class Spread(nn.Module):
    """Variances, standard deviations and stacked parts, with gradients through each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 15), nn.Linear(14, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.first(x).view(-1, 5, 3)
        parts = [rows.var(1), rows.std(1, unbiased=False), rows.mean(1)]
        stacked = torch.stack(parts, 1).flatten(1)
        logits: torch.Tensor = self.last(torch.cat([stacked, rows.var(2)], 1))
        return logits


class Drawn(nn.Module):
    """A branch that is left out at random, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        if self.training:
            x = x + self.branch(x) / 0.8 * torch.floor(0.8 + torch.rand(len(x), 1))
        logits: torch.Tensor = self.last(x)
        return logits


def labels() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)), (torch.randn(8, 6),)


def drawn() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Drawn(), (torch.randn(4, 6),)


def chances() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Linear(6, 48), (torch.randn(24, 6),)


MODELS = {
    "sharp": lambda: (Sharp(), (torch.randn(3, 6),)),
    "spread": lambda: (Spread(), (torch.randn(4, 6),)),
    "labels": labels,
    "drawn": drawn,
    "chances": chances,
}
LABELS: Mapping[str, Any] = {
    "class_weights": (0.5, 2.0, 1.0, 0.25, 1.5),
    "label_smoothing": 0.1,
    "ignore_index": 2,  # which is among the labels that are drawn
}

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
    "sharp": Subject("sharp", {}, HOST),
    "cluster sharp": Subject("sharp", {}, cluster("16k")),
    "cluster segmentation": Subject(
        "segmentation",
        {"class_weights": (0.5, 2.0, 1.0), "label_smoothing": 0.1, "ignore_index": 1},
        cluster("8k"),
    ),
    "cluster pixels": Subject(
        "segmentation", {"class_weights": (0.5, 2.0, 1.0), "ignore_index": 0}, cluster("64k")
    ),
    "cluster lenet": Subject("lenet", {"momentum": 0.9}, cluster("16k")),
    "cluster residual": Subject("residual", {}, cluster("10k")),
    "cluster residual hwc": Subject("residual", {}, cluster("10k", layout="hwc")),
    "cluster pyramid": Subject("pyramid", {"loss": "mse"}, cluster("16k")),
    "cluster mobilenets": Subject("mobilenets", {}, cluster("12k")),
    "cluster recurrent": Subject("recurrent", {"optimizer": "adam"}, cluster("16k")),
    "cluster vision": Subject("vision_transformer", {"clip_norm": 1.0}, cluster("16k")),
    "cluster labels": Subject("labels", LABELS, cluster("16k", batch=8)),
    "cluster one label": Subject("labels", {**LABELS, "ignore_index": 1}, cluster("16k")),
    "cluster plain labels": Subject("labels", {"ignore_index": 2}, cluster("16k", batch=4)),
    "labels": Subject("labels", LABELS, {**HOST, "batch": 8}),
    "spread": Subject("spread", {"optimizer": "adam"}, HOST),
    "cluster spread": Subject("spread", {"loss": "mse"}, cluster("16k")),
    "drawn": Subject("drawn", {}, HOST),
    "cluster chances": Subject(
        "chances",
        {"loss": "bce_with_logits", "pos_weight": tuple(0.5 + n / 20 for n in range(48))},
        cluster("10k", batch=24),
    ),
    "cells": Subject("cells", {"optimizer": "adamw"}, HOST),
    "cluster cells": Subject("cells", {}, cluster("16k")),
    "causal": Subject("causal", {"momentum": 0.9}, HOST),
    "cluster ranked": Subject("ranked", {"loss": "huber"}, cluster("16k")),
    "grown": Subject("grown", {"loss": "mse"}, HOST),
    "cluster grown": Subject("grown", {"loss": "l1"}, cluster("20k")),
    "cluster electrodes": Subject("electrodes", {}, cluster("17k")),  # copies of planes
    "volumes": Subject("volumes", {}, HOST),
    "cluster volumes": Subject("volumes", {}, cluster("20k")),
    "cluster odd": Subject("odd", {"label_smoothing": 0.1}, cluster("16k", batch=2)),
}
