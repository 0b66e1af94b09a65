"""What every command that starts from a model asks: model, device and how to train."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from gradlet.errors import GradletError
from gradlet.ir.recipe import Recipe, outputs_of, overruled, parse_losses, types_of
from gradlet.targets import target as targets

LOSSES = "cross_entropy, nll, mse, l1, huber, smooth_l1, berhu, bce_with_logits"
"""As gradlet.ops.losses has them; to ask that would load every op for a line of help."""
OF_RECIPE = (
    "optimizer",
    "lr",
    "weight_decay",
    "momentum",
    "nesterov",
    "eps",
    "clip_norm",
    "clip_value",
    "accumulate",
    "update",
    "dtype",
    "loss_scale",
)


@dataclass(frozen=True)
class ModelOptions:
    model: Annotated[str, typer.Argument(help="file.py:NAME, an .onnx or .toml, or zoo:NAME.")]
    target: Annotated[str, typer.Option(help="A device: a name or a .toml file.")] = targets.DEFAULT
    cores: Annotated[int | None, typer.Option(help="Cores of the team.")] = None
    l1: Annotated[str | None, typer.Option(help="Size of L1, such as 64k.")] = None
    l2: Annotated[str | None, typer.Option(help="Size of L2, such as 1.5M.")] = None
    l3: Annotated[str | None, typer.Option(help="Size of L3, such as 8M; else there is none.")] = (
        None
    )
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of the target, such as L1=128k or fpus=4."),
    ] = None
    loss: Annotated[
        list[str] | None,
        typer.Option(
            help=f"NAME[:OPTION=VALUE,...], one of {LOSSES}. Several add up: "
            "mse:output=NAME,weight=0.1,target=NAME."
        ),
    ] = None
    optimizer: Annotated[str | None, typer.Option(help="Such as sgd, adam or adamw.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate.  [default: 0.01]")] = None
    weight_decay: Annotated[float | None, typer.Option(help="L2 penalty.")] = None
    momentum: Annotated[float | None, typer.Option(help="Of sgd.")] = None
    nesterov: Annotated[bool | None, typer.Option("--nesterov", help="Of sgd.")] = None
    betas: Annotated[str | None, typer.Option(help="Of adam: 0.9,0.999.")] = None
    eps: Annotated[float | None, typer.Option(help="Of adam.  [default: 1e-8]")] = None
    clip_norm: Annotated[float | None, typer.Option(help="Limit of all gradients' norm.")] = None
    clip_value: Annotated[float | None, typer.Option(help="Limit of each gradient.")] = None
    batch: Annotated[int | None, typer.Option(help="Samples computed together.")] = None
    accumulate: Annotated[int | None, typer.Option(help="Batches per update.")] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="f32, f16, bf16 or mixed; by layers 'conv1*=f32,*=f16'.  [default: f32]"),
    ] = None
    loss_scale: Annotated[
        str | None,
        typer.Option(help="dynamic, off, or a number.  [default: dynamic for mixed, else off]"),
    ] = None
    buffers: Annotated[
        str,
        typer.Option(
            help="auto, l1: all in L1, double: next tile fetched during this one, single, none."
        ),
    ] = "auto"
    exact: Annotated[
        bool, typer.Option("--exact", help="Only kernels that round as plain sums do.")
    ] = False
    sums: Annotated[
        str, typer.Option(help="f32, or chunked: of 16 bits over at most 32 terms, then f32.")
    ] = "f32"
    layout: Annotated[str, typer.Option(help="Of feature maps: chw, hwc or chw2.")] = "chw"
    update: Annotated[
        str | None,
        typer.Option(
            help="all, last:N, biases, norms, names, patterns, rows such as conv1[0:8]; by commas."
        ),
    ] = None
    prefix: Annotated[str, typer.Option(help="Start of every C name.")] = "net"
    input_: Annotated[
        str | None, typer.Option("--input", help="Shape of one sample, CxHxW, if there is none.")
    ] = None
    dim: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SIZE of an open dimension of an ONNX file, such as sequence=16."),
    ] = None
    whole: Annotated[
        list[str] | None,
        typer.Option(help="NAME of an input whose first dimension counts no samples."),
    ] = None
    bn: Annotated[
        str | None,
        typer.Option(help="What batch norms do: train, frozen or recalibrate.  [default: as is]"),
    ] = None
    output: Annotated[
        str | None,
        typer.Option(
            help="Which result the loss sees, by NAME or INDEX.  [default: logits, or the only one]"
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            help="An .npz with `inputs` (several: by name) and `targets` for golden data."
        ),
    ] = None

    def sizes(self) -> dict[str, str | int]:
        """Settings of the device."""
        if self.dtype is not None:
            types_of(self.dtype)  # a wrong one is told at once
        levels = {"L1": self.l1, "L2": self.l2, "L3": self.l3}
        given = {name: size for name, size in levels.items() if size}
        return {**given, **settings(self.set_ or [])}

    def recipe(self, defaults: Mapping[str, Any]) -> Recipe:
        """The command line first, then the model's own wishes, then the defaults."""
        wishes = {k: v for k, v in defaults.items() if k in Recipe.__dataclass_fields__}
        chosen = {name: getattr(self, name) for name in OF_RECIPE}
        chosen = {**chosen, **parse_losses(self.loss or ()), **_betas(self.betas)}
        given = {key: value for key, value in chosen.items() if value is not None}
        return replace(Recipe(), **overruled(wishes, given))

    def capture_options(self) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "input_shape": _shape(self.input_),
            "data": self.data,
            "output": outputs_of(parse_losses(self.loss or ()).get("losses", ()), self.output),
            "bn": self.bn or "",
            "dims": _dims(self.dim or []),
            "whole": self.whole or (),
        }


def with_options(
    kind: type, before: int = 0, first: int | None = None
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Let a command take a dataclass of options as its first argument, each as an option of its
    own. In the help `before` of them come before the `first` options that the command itself has,
    the others behind."""
    hints, shared = get_type_hints(kind, include_extras=True), fields(kind)

    def decorated(function: Callable[..., int | None]) -> Callable[..., int | None]:
        @wraps(function)
        def command(**given: Any) -> int | None:
            return function(
                kind(**{field.name: given.pop(field.name) for field in shared}), **given
            )

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in shared
        ]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        size = len(own) if first is None else first
        order = [*parameters[:before], *own[:size], *parameters[before:], *own[size:]]
        vars(command)["__signature__"] = inspect.Signature(order)
        del command.__annotations__["options"]  # which typer would look up
        return command

    return decorated


with_model_options = with_options(ModelOptions, before=1, first=1)


def settings(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise GradletError(f"--set {pair}: write it as KEY=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def _shape(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.lower().replace(",", "x").split("x")
    if not all(re.fullmatch(r"0*[1-9][0-9]{0,11}", part) for part in parts):
        raise GradletError(f"--input {text}: write the shape of one sample as for example 3x32x32")
    return [int(part) for part in parts]


def _dims(texts: list[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not re.fullmatch(r"0*[1-9][0-9]{0,8}", value):
            raise GradletError(f"--dim {text}: write it as NAME=SIZE, such as sequence=16")
        found[name] = int(value)
    return found


def _betas(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    try:
        beta1, beta2 = (float(part) for part in text.split(","))
    except ValueError:
        raise GradletError(f"--betas {text}: write two numbers, such as 0.9,0.999") from None
    return {"beta1": beta1, "beta2": beta2}
