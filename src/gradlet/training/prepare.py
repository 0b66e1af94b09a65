"""The training graph of a captured model, and targets for it if the user gave none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.frontends.capture import Captured
from gradlet.frontends.passes.canonical import moves_as_views
from gradlet.frontends.passes.layout import lay_out
from gradlet.ir.graph import Array, Graph
from gradlet.ir.recipe import Recipe
from gradlet.training.autodiff import train
from gradlet.training.loss import output_of, target_kinds
from gradlet.training.precision import with_types


def training_graph(
    captured: Captured, recipe: Recipe | None = None, *, layout: str = "chw"
) -> Graph:
    """The training graph of a captured model; targets are drawn if none were given.

    With the layout hwc inputs, weights and targets are turned; give them as the model has them.
    """
    if recipe is None:
        recipe = wished(captured.defaults)
    if recipe.bn not in ("", captured.bn):
        raise GradletError(
            f"the recipe has bn='{recipe.bn}', but batch norms are changed when a model is "
            f"captured: gradlet.capture(..., bn='{recipe.bn}')"
        )
    graph = with_types(moves_as_views(lay_out(captured.graph, layout)), recipe)
    return train(graph, recipe, targets_of(captured, recipe))


def targets_of(captured: Captured, recipe: Recipe) -> Array | Mapping[str, Array]:
    if captured.targets is not None:
        return captured.targets
    return _drawn(captured.graph, recipe)


def wished(defaults: Mapping[str, Any]) -> Recipe:
    """The model's own wishes, then the defaults."""
    known = {k: v for k, v in defaults.items() if k in Recipe.__dataclass_fields__}
    return replace(Recipe(), **known)


def _drawn(graph: Graph, recipe: Recipe) -> dict[str, Array]:
    """Seeded targets of the right shape: a model without data can be checked all the same."""
    count = max((len(value) for value in graph.samples.values()), default=1)
    generator = np.random.default_rng(1)
    losses = recipe.all_losses()
    found: dict[str, Array] = {}
    for name, (shape, dtype, _) in target_kinds(graph, losses).items():
        own = [loss for loss in losses if loss.target_name == name]
        if dtype == "i32":
            outputs = [graph.tensors[graph.outputs[output_of(graph, loss)]].shape for loss in own]
            classes = min(output[1] for output in outputs)
            found[name] = generator.integers(0, classes, (count, *shape))
        elif any(loss.loss == "bce_with_logits" for loss in own):
            found[name] = generator.integers(0, 2, (count, *shape)).astype(np.float32)
        else:
            found[name] = generator.standard_normal((count, *shape)).astype(np.float32)
    return found
