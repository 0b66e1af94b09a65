"""How to train: what a model may wish for, and the command line decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any

from gradlet.errors import GradletError
from gradlet.support.keywords import UnknownKeyword, unknown

USUAL = "logits"
"""What a loss sees of several results, without a wish: what Hugging Face's models, and many others,
call their scores."""


@dataclass(frozen=True)
class Loss:
    """One of several losses, which add up: `weight` times what `loss` makes of an output.

    output is a name, number or path among what the model returns; without one the only result, or
    the logits. target is the name of what it is compared with; without one that of the output.
    Losses with the same target share it. The options are those of a Recipe.
    """

    loss: str = "cross_entropy"
    output: str | int = ""
    weight: float = 1.0
    target: str = ""
    reduction: str = "mean"
    label_smoothing: float = 0.0
    ignore_index: int = -100
    class_weights: tuple[float, ...] = ()
    delta: float = 1.0
    pos_weight: tuple[float, ...] = ()

    @property
    def target_name(self) -> str:
        return self.target or str(self.output) or "target"

    def __str__(self) -> str:
        return f"{self.loss} of output '{self.output}'" if str(self.output) else self.loss


MIXED = "mixed"
DYNAMIC, OFF = "dynamic", "off"
"""Of the scale of a loss, which else is a number."""
DTYPES = {"f32": "f32", "f16": "f16", "bf16": "bf16", MIXED: "f16"}
"""What a recipe may call the type of its numbers, and what layers then compute with. In `mixed` the
weights that are trained, and what the optimizer knows of them, stay in single precision."""


def types_of(text: str) -> tuple[tuple[str, str], ...]:
    """Patterns of layers with their types, from `f16` or `conv1*=f32,*=f16`."""
    rules = []
    for part in filter(None, (item.strip() for item in text.split(","))):
        pattern, equals, kind = (item.strip() for item in part.rpartition("="))
        if kind not in DTYPES or (equals and not pattern):
            known = ", ".join(DTYPES)
            raise GradletError(
                f"dtype '{text}': '{kind}' is no type; there are {known}, for all layers or by "
                f"pattern, such as 'conv1*=f32,*=f16'"
            )
        rules.append((pattern or "*", kind))
    if not rules:
        raise GradletError(f"dtype '{text}' names no type; there are {', '.join(DTYPES)}")
    return tuple(rules)


def dtype_text(value: str | Mapping[str, str]) -> str:
    """A table of patterns as text. Raises if it names what is no type."""
    if isinstance(value, Mapping):
        value = ",".join(f"{pattern}={kind}" for pattern, kind in value.items())
    if not isinstance(value, str):
        known = ", ".join(DTYPES)
        raise GradletError(f"dtype is one of {known}, or a table of them, not {value!r}")
    types_of(value)
    return value


@dataclass(frozen=True)
class Recipe:
    """How to train: what `gradlet build` asks beside model and target.

    momentum and nesterov are SGD's; beta1, beta2 and eps are Adam's and AdamW's. A clip_norm or
    clip_value of 0 clips nothing.
    The options of a loss have the names and meanings that they have in PyTorch; `delta` is
    Huber's, and the beta of smooth L1; `pos_weight` is one number, or one for each output.
    bn is what batch norms do: train, frozen or recalibrate, else what the module has them do.
    losses are several that add up, in place of `loss` and its options.
    dtype is f32, f16, bf16 or mixed, or one of these by pattern of layers, the first that fits:
    {"conv1*": "f32", "*": "f16"}, in text conv1*=f32,*=f16. loss_scale is dynamic, off or a number;
    without a wish it is dynamic for mixed, and off for all others.
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
    losses: Sequence[Loss] = ()
    dtype: str = "f32"
    loss_scale: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss_scale", str(self.loss_scale))
        object.__setattr__(self, "dtype", dtype_text(self.dtype))
        given = (self.losses,) if isinstance(self.losses, Loss) else tuple(self.losses)
        if wrong := [value for value in given if not isinstance(value, Loss)]:
            raise GradletError(
                f"losses={wrong[0]!r}: write each as gradlet.Loss('mse', output='...', weight=1.0)"
            )
        object.__setattr__(self, "losses", given)

    def all_losses(self) -> tuple[Loss, ...]:
        """Those that add up; mostly a single one."""
        if not self.losses:
            return (Loss(self.loss, **{name: getattr(self, name) for name in LOSS_OPTIONS}),)
        plain = Loss()
        for name in ("loss", *LOSS_OPTIONS):
            if getattr(self, name) != getattr(plain, name):
                raise GradletError(
                    f"the recipe has losses and {name}={getattr(self, name)!r}; where there are "
                    f"several losses each has its own: gradlet.Loss(..., {name}=...)"
                )
        return tuple(self.losses)


def _told(kind: Any) -> None:
    """Wrong keywords of a class are told with the right ones."""
    init: Callable[..., None] = kind.__init__
    known = [field.name for field in fields(kind)]

    @wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                raise UnknownKeyword(unknown(f"gradlet.{kind.__name__}", name, known))
        init(self, *args, **options)

    kind.__init__ = checked


_told(Recipe)
_told(Loss)

LOSS_OPTIONS = (
    "reduction",
    "label_smoothing",
    "ignore_index",
    "class_weights",
    "delta",
    "pos_weight",
)


def outputs_of(losses: Sequence[Loss], output: str | int | Sequence[str | int] | None) -> Any:
    """Which results of a model the losses see, each once; without an output of its own a loss sees
    the one that was chosen for all."""
    if not losses or not isinstance(output, str | int | None):
        return "" if output is None else output
    chosen = "" if output is None else str(output)
    return list(dict.fromkeys(str(loss.output) or chosen for loss in losses))


OF_SEVERAL = ("output", "weight", "target")
"""What a loss has where there are several."""


def parse_losses(texts: Sequence[str]) -> dict[str, Any]:
    """`cross_entropy:label_smoothing=0.1,ignore_index=255` as fields of a recipe; several of them,
    or one with an output, a weight or a target, as its losses."""
    parsed = [_parse_loss(text) for text in texts]
    if len(parsed) == 1 and not any(key in parsed[0] for key in OF_SEVERAL):
        return parsed[0]
    return {"losses": tuple(Loss(**fields) for fields in parsed)} if parsed else {}


def _parse_loss(text: str) -> dict[str, Any]:
    name, _, options = text.partition(":")
    found: dict[str, Any] = {"loss": name} if name else {}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        if key not in (*LOSS_OPTIONS, *OF_SEVERAL):
            known = ", ".join((*LOSS_OPTIONS, *OF_SEVERAL))
            raise GradletError(f"--loss {text}: '{key}' is none of {known}")
        try:
            found[key] = _value(key, value)
        except ValueError:
            raise GradletError(f"--loss {text}: '{value}' is no value for {key}") from None
    return found


def overruled(wishes: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A model's wishes and those of the command line: who names one loss wants not several, and
    the other way round."""
    several = ("loss", *LOSS_OPTIONS) if given.get("losses") else ()
    gone = ("losses",) if given.get("loss") else several
    return {**{key: value for key, value in wishes.items() if key not in gone}, **given}


def _value(key: str, text: str) -> Any:
    if key in ("class_weights", "pos_weight"):
        return tuple(float(part) for part in text.split("/"))
    kinds = {"reduction": str, "output": str, "target": str, "ignore_index": int}
    return kinds.get(key, float)(text)
