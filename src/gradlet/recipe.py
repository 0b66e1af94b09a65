"""How to train: what a model may wish for, and the command line decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from gradlet.errors import GradletError
from gradlet.keywords import UnknownKeyword, unknown


@dataclass(frozen=True)
class Recipe:
    """How to train: what `gradlet build` asks beside model and target.

    momentum and nesterov are SGD's; beta1, beta2 and eps are Adam's and AdamW's. A clip_norm or
    clip_value of 0 clips nothing.
    The options of a loss have the names and meanings that they have in PyTorch; `delta` is
    Huber's, and the beta of smooth L1; `pos_weight` is one number, or one for each output.
    bn is what batch norms do: train, frozen or recalibrate, else what the module has them do.
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
    reduction: str = "mean"
    label_smoothing: float = 0.0
    ignore_index: int = -100
    class_weights: tuple[float, ...] = ()
    delta: float = 1.0
    pos_weight: tuple[float, ...] = ()
    bn: str = ""


def _told(init: Callable[..., None]) -> Callable[..., None]:
    known = list(Recipe.__dataclass_fields__)

    @wraps(init)
    def checked(self: Recipe, *args: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                raise UnknownKeyword(unknown("gradlet.Recipe", name, known))
        init(self, *args, **options)

    return checked


Recipe.__init__ = _told(Recipe.__init__)  # type: ignore[method-assign]

LOSS_OPTIONS = (
    "reduction",
    "label_smoothing",
    "ignore_index",
    "class_weights",
    "delta",
    "pos_weight",
)


def parse_loss(text: str | None) -> dict[str, Any]:
    """`cross_entropy:label_smoothing=0.1,ignore_index=255` as fields of a recipe."""
    name, _, options = (text or "").partition(":")
    fields: dict[str, Any] = {"loss": name or None}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        if key not in LOSS_OPTIONS:
            raise GradletError(f"--loss {text}: '{key}' is none of {', '.join(LOSS_OPTIONS)}")
        try:
            fields[key] = _value(key, value)
        except ValueError:
            raise GradletError(f"--loss {text}: '{value}' is no value for {key}") from None
    return fields


def _value(key: str, text: str) -> Any:
    if key in ("class_weights", "pos_weight"):
        return tuple(float(part) for part in text.split("/"))
    return {"reduction": str, "ignore_index": int}.get(key, float)(text)
