"""The last part of a training graph: accumulation, clipping, and one update per weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.builder import GraphBuilder
from gradlet.ir.elements import F32
from gradlet.ir.graph import Array
from gradlet.ir.recipe import Recipe
from gradlet.ops.learning.optimizer import optimizers, update_op, wanted_update
from gradlet.training.casts import Casts
from gradlet.training.scaling import Scaled

LARGEST = F32.largest


def check_optimizer(recipe: Recipe) -> None:
    """Raise if the recipe asks for an update that does not exist or makes no sense."""
    if recipe.optimizer not in optimizers():
        known = ", ".join(optimizers())
        raise GradletError(f"unknown optimizer '{recipe.optimizer}'; there are {known}")
    for name in ("lr", "weight_decay", "momentum", "clip_norm", "clip_value"):
        value = getattr(recipe, name)
        if not (abs(value) <= LARGEST and value >= 0):
            words = {"lr": "learning rate"}.get(name, name.replace("_", " "))
            raise GradletError(f"a {words} of {value} makes no sense")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(recipe, name) < 1:
            raise GradletError(f"{name} is between 0 and 1, not {getattr(recipe, name)}")
    if not (abs(recipe.eps) <= LARGEST and np.float32(recipe.eps) > 0):
        raise GradletError(f"eps keeps Adam from dividing by 0; it cannot be {recipe.eps}")
    if recipe.optimizer != "sgd" and (recipe.momentum or recipe.nesterov):
        raise GradletError(
            f"momentum and nesterov are SGD's; {recipe.optimizer} has "
            + ("betas" if "beta1" in update_op(recipe.optimizer).hyper else "none")
        )
    if recipe.nesterov and not recipe.momentum:
        raise GradletError("nesterov needs a momentum")
    if recipe.clip_norm and recipe.clip_value:
        raise GradletError("gradients are clipped by norm or by value, not both")


def append_update(
    builder: GraphBuilder,
    trainable: Sequence[str],
    grads: dict[str, str],
    recipe: Recipe,
    scaled: Scaled | None = None,
) -> tuple[tuple[str, str], ...]:
    """Write the update phase; returns what replaces what."""
    names = [name for name in trainable if name in grads]
    updates = []
    totals, resets = {name: grads[name] for name in names}, []
    if recipe.accumulate > 1:
        for name in names:
            state, totals[name] = _accumulated(builder, name, grads[name])
            updates.append((state, totals[name]))
            resets.append((state, totals[name]))
    if scaled and totals:  # a store can only do an update whose gradient is of the same phase
        totals = scaled.unscaled(totals, grads, "update" if recipe.accumulate > 1 else "backward")
    clipped = _clipped(builder, totals, recipe)
    updates += _optimized(builder, clipped, recipe, scaled)
    for state, total in resets:
        zero = builder.add("reset", [total], phase="update", role="partial", name=f"{state}.zero")
        updates.append((state, zero))
    return tuple(updates)


def _state(builder: GraphBuilder, name: str, value: Array, dtype: str = F32.name) -> str:
    return builder.value(builder.unique(name), value, "state", dtype)


def _zeros(builder: GraphBuilder, name: str, like: str, dtype: str = "") -> str:
    """A state of the shape of another tensor, and of its type or another one."""
    tensor = builder.tensors[like]
    return _state(builder, name, np.zeros(tensor.shape), dtype or tensor.dtype)


def _accumulated(builder: GraphBuilder, name: str, grad: str) -> tuple[str, str]:
    state = _zeros(builder, f"acc_{name}", grad)
    total = Casts(builder).add(
        "add", [state, grad], phase="backward", role="partial", name=f"acc_{name}.sum"
    )
    return state, total


def _clipped(builder: GraphBuilder, grads: dict[str, str], recipe: Recipe) -> dict[str, str]:
    """Gradients as the optimizer gets them, by weight."""
    if not (recipe.clip_norm or recipe.clip_value) or not grads:
        return grads

    casts = Casts(builder)

    def add(op: str, inputs: list[str], name: str = "") -> str:
        return casts.add(op, inputs, phase="update", role="partial", name=name)

    limit = _state(builder, "clip", np.asarray([recipe.clip_norm or recipe.clip_value]))
    if recipe.clip_value:
        return {w: add("clip_value", [g, limit], f"d_{w}.clipped") for w, g in grads.items()}
    squares: list[str] = []
    for grad in grads.values():
        squares = [add("clip_squares", [grad, *squares])]
    factor = add("clip_factor", [*squares, limit], "clip.factor")
    return {w: add("clip_scale", [g, factor], f"d_{w}.clipped") for w, g in grads.items()}


def _optimized(
    builder: GraphBuilder, grads: dict[str, str], recipe: Recipe, scaled: Scaled | None
) -> Iterator[tuple[str, str]]:
    op = wanted_update(recipe)
    hyper = _state(builder, "hyper", np.asarray([float(getattr(recipe, h)) for h in op.hyper]))
    scaled = scaled if grads else None
    hyper = scaled.settings(hyper, op) if scaled else hyper
    shared = []
    if "c" in op.inputs and grads:
        correction = _state(builder, "correction", np.zeros(2))
        shared = [
            builder.add(
                "adam_correction",
                [correction, hyper],
                phase="update",
                role="updated",
                name="correction.next",
            )
        ]
        yield correction, shared[0]
        shared = [scaled.correction(shared[0])] if scaled else shared
    casts = Casts(builder)
    better: dict[str, str] = {}
    updates: list[tuple[str, str]] = []
    for name, grad in grads.items():
        dtype = F32.name if op.keeps_single else builder.tensors[name].dtype
        states = [_zeros(builder, f"{s}_{name}", name, dtype) for s in op.remembers]
        made = casts.add_many(
            op.name,
            [name, grad, hyper, *states, *shared],
            phase="update",
            role="updated",
            name=f"{name}.next",
        )
        results = [
            casts.to(new, builder.tensors[old].dtype, phase="update", role="updated")
            for old, new in zip((name, *states), made, strict=True)
        ]
        better.update({new: f"{s}.next" for s, new in zip(states, results[1:], strict=True)})
        updates += zip((name, *states), results, strict=True)
    better = builder.rename(better)
    yield from ((old, better.get(new, new)) for old, new in updates)
    if scaled:
        yield from scaled.next()
