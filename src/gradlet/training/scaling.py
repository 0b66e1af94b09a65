"""Scaling of the loss in a training graph: where the gradient begins, and before the update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import Attrs
from gradlet.ir.recipe import DYNAMIC, MIXED, OFF, Recipe, types_of
from gradlet.ops.frozen_norm import Blend
from gradlet.ops.learning.optimizer import Update
from gradlet.training.casts import CASTS

START, INTERVAL = 2.0**10, 200
"""Of a dynamic scale: its first value, and how many good steps double it."""


@dataclass(frozen=True)
class Scaling:
    """start: the first scale. interval: 0 if it stays."""

    start: float
    interval: int


def scaling_of(recipe: Recipe) -> Scaling | None:
    """What a recipe asks for; dynamic if it asks for nothing and some layer is `mixed`."""
    wish = recipe.loss_scale
    if not wish:
        mixed = any(kind == MIXED for _, kind in types_of(recipe.dtype))
        wish = DYNAMIC if mixed else OFF
    if wish == OFF:
        return None
    if wish == DYNAMIC:
        return Scaling(START, INTERVAL)
    try:
        start = float(np.float32(wish))
    except ValueError:
        start = 0.0
    if not (start > 0 and np.isfinite(start)):
        raise GradletError(
            f"loss scale '{recipe.loss_scale}': it is {DYNAMIC}, {OFF} or a number above 0"
        )
    return Scaling(start, 0)


class Scaled:
    """Writes the nodes of scaling, with the state that they share."""

    def __init__(self, builder: GraphBuilder, scaling: Scaling) -> None:
        self.builder, self.scaling = builder, scaling
        value = np.asarray([scaling.start, 0.0, 0.0])
        self.scale = builder.value(builder.unique("loss_scale"), value, "state")
        self.faults = self.gate = ""
        self.phase = "update"
        builder.nodes = [  # what is infinite or no number does not reach running statistics either
            replace(node, attrs={**node.attrs, "guard": True}) if node.op == Blend.name else node
            for node in builder.nodes
        ]

    def _add(self, op: str, inputs: list[str], name: str = "", attrs: Attrs | None = None) -> str:
        return self.builder.add(op, inputs, attrs, phase=self.phase, role="partial", name=name)

    def seeds(self, seeds: Mapping[str, str]) -> dict[str, str]:
        return {
            loss: self.builder.add(
                "scale_seed",
                [seed, self.scale],
                phase="backward",
                role="partial",
                name=f"{seed}.scaled",
            )
            for loss, seed in seeds.items()
        }

    def unscaled(
        self, totals: Mapping[str, str], grads: dict[str, str], phase: str
    ) -> dict[str, str]:
        """Gradients as they would be without a scale, or zeros if any of them has overflowed. A
        gradient that was cast for this alone is taken as it was before."""
        self.phase = phase
        narrow = {weight: self._before_cast(name) for weight, name in totals.items()}
        grads.update({w: narrow[w] for w, name in totals.items() if grads.get(w) == name})
        faults: list[str] = []
        for name in narrow.values():
            faults = [self._add("overflow", [name, *faults])]
        (self.faults,) = faults
        self.gate = self._add("scale_gate", [self.scale, self.faults], "loss_scale.gate")
        tensors = self.builder.tensors
        return {
            weight: self._add(
                "unscale" if tensors[name].dtype == tensors[weight].dtype else "unscale_wide",
                [name, self.gate],
                f"{totals[weight]}.unscaled",
            )
            for weight, name in narrow.items()
        }

    def _before_cast(self, name: str) -> str:
        node = next((n for n in self.builder.nodes if n.outputs == (name,)), None)
        read = any(name in other.inputs for other in self.builder.nodes)
        if node is None or node.op not in CASTS or read:
            return name
        self.builder.nodes.remove(node)
        del self.builder.tensors[name]
        return node.inputs[0]

    def settings(self, hyper: str, op: Update) -> str:
        """Those of a step that may be skipped."""
        neutral = tuple(NEUTRAL.get(name, -1) for name in op.hyper)
        return self._add("scale_neutral", [hyper, self.gate], "hyper.now", {"neutral": neutral})

    def correction(self, name: str) -> str:
        """What Adam divides by, which is 0 before the first step."""
        self.phase = "update"
        return self._add("scale_neutral", [name, self.gate], "correction.now", {"neutral": (1, 1)})

    def next(self) -> Iterator[tuple[str, str]]:
        made = self.builder.add(
            "scale_next",
            [self.scale, self.faults],
            {"interval": self.scaling.interval},
            phase="update",
            role="updated",
            name=f"{self.scale}.next",
        )
        yield self.scale, made


NEUTRAL = {"lr": 0, "weight_decay": 0, "momentum": 1, "nesterov": 0, "beta1": 1, "beta2": 1}
"""With these and a gradient of 0 an update leaves everything as it is."""
