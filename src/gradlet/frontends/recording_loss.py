"""The losses of a recipe by torch.nn, as a user's own training has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradlet.frontends.recording_modes import Refused
from gradlet.ir.recipe import Loss
from gradlet.support.extras import require_torch


def torch_loss(recipe: Loss, output: Any, target: Any) -> Any:
    torch = require_torch()
    nn, reduction = torch.nn, {"reduction": recipe.reduction}

    def weights(values: Sequence[float]) -> Any:
        return torch.tensor(np.asarray(values, np.float32), dtype=output.dtype) if values else None

    labelled = {**reduction, "ignore_index": recipe.ignore_index}
    if recipe.loss in ("cross_entropy", "nll"):
        labelled["weight"] = weights(recipe.class_weights)
    if recipe.loss == "cross_entropy":
        smoothing = recipe.label_smoothing
        return nn.CrossEntropyLoss(label_smoothing=smoothing, **labelled)(output, target)
    if recipe.loss == "nll":
        return nn.NLLLoss(**labelled)(output, target)
    if recipe.loss == "huber":
        return nn.HuberLoss(delta=recipe.delta, **reduction)(output, target)
    if recipe.loss == "smooth_l1":
        return nn.SmoothL1Loss(beta=recipe.delta, **reduction)(output, target)
    if recipe.loss == "bce_with_logits":
        positive = weights(recipe.pos_weight)
        return nn.BCEWithLogitsLoss(pos_weight=positive, **reduction)(output, target)
    if recipe.loss == "berhu":  # which PyTorch lacks
        away = torch.nn.functional.l1_loss(output, target, reduction="none")
        edge = max(0.2 * float(away.detach().amax()), 1e-300)
        far = (away.square() + edge * edge) / (2.0 * edge)
        terms = far.where(away > edge, away)
        return terms.sum() if recipe.reduction == "sum" else terms.mean()
    plain = {"mse": nn.MSELoss, "l1": nn.L1Loss}
    if recipe.loss not in plain:
        raise Refused(f"PyTorch has no loss '{recipe.loss}' to compare with")
    return plain[recipe.loss](**reduction)(output, target)
