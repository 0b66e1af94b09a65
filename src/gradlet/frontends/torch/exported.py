"""A user's module as a program of `torch.export`; what stands in the way is said beforehand."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import wraps
from io import StringIO
from typing import Any

from gradlet.errors import GradletError
from gradlet.frontends.calling import Calling
from gradlet.frontends.passes.batch_norms import place_of
from gradlet.frontends.torch.check import copied, plain_attention
from gradlet.frontends.torch.numbers import Number, noted, told
from gradlet.frontends.torch.own_gradients import OwnGradients
from gradlet.frontends.torch.untraceable import modules_may_fail, untraceable
from gradlet.frontends.user_code import FOREIGN, described
from gradlet.frontends.ways_out import OF_BOOLS
from gradlet.support.extras import require_torch


def checked_examples(call: Calling, tensors: list[Any]) -> tuple[Any, ...]:
    """Example inputs of a kind that can be fed, floats as float32."""
    torch = require_torch()
    kinds = (torch.int64, torch.int32)
    for name, value in zip(call.names, tensors, strict=True):
        if not value.dtype.is_floating_point and value.dtype not in kinds:
            raise GradletError(
                f"example input '{name}' has dtype {value.dtype}; floats, or indices of type int64 "
                f"or int32, are needed" + (f": {OF_BOOLS}" if value.dtype == torch.bool else "")
            )
        if (value.ndim == 0 and name not in call.whole) or value.numel() == 0:
            shape = list(value.shape)
            raise GradletError(
                f"example input '{name}' has no samples: shape {shape}. One that comes as it is "
                f"with every batch is named by --whole {name} (in Python, whole='{name}')"
            )
    return tuple(v.float() if v.dtype.is_floating_point else v for v in tensors)


def exported(module: Any, call: Calling, examples: tuple[Any, ...], name: str) -> Any:
    torch = require_torch()
    module = copied(module).float().cpu()
    _experts_by_gathering(module)
    examples = tuple(value.detach().clone() for value in examples)
    own = OwnGradients()
    numbers = _run_once(module, call, examples, name, own)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with (
                plain_attention(),
                _plain_autocast(),
                _modules_stay(),
                own.written_out(),
                modules_may_fail(),
                redirect_stderr(StringIO()),
                _no_log(),
            ):
                return torch.export.export(_telling(call.into(module), numbers), examples)
    except GradletError:
        raise
    except FOREIGN as error:
        raise untraceable(error, module, name) from None


@contextmanager
def _no_log() -> Iterator[None]:
    """What the exporter writes into its log, past stderr as it is now, is in our message."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _experts_by_gathering(module: Any) -> None:
    """Mixtures of experts of Hugging Face sort the samples by expert, in groups whose sizes depend
    on the data; they can also gather the weights of each sample's expert, which computes the same.
    """
    for part in module.modules():
        config: Any = getattr(part, "config", None)
        if getattr(config, "_experts_implementation", None) in ("eager", "grouped_mm"):
            config._experts_implementation = "batched_mm"


def _telling(module: Any, numbers: Sequence[Number]) -> Any:
    """In its own forward, so that the exporter does not see the calls that are answered first."""
    forward = module.forward

    @wraps(forward)
    def inner(*tensors: Any) -> Any:
        with told(numbers):
            return forward(*tensors)

    if numbers:
        module.forward = inner
    return module


@contextmanager
def _plain_autocast() -> Iterator[None]:
    """Regions of autocast that change nothing are not there: the exporter forgets any no_grad that
    is inside of one."""
    autocast = require_torch().amp.autocast_mode.autocast
    enter, leave = autocast.__enter__, autocast.__exit__

    def idle(region: Any) -> bool:
        return not region._enabled or region.device != "cpu"

    autocast.__enter__ = lambda self: self if idle(self) else enter(self)
    autocast.__exit__ = lambda self, *error: None if idle(self) else leave(self, *error)
    try:
        yield
    finally:
        autocast.__enter__, autocast.__exit__ = enter, leave


@contextmanager
def _modules_stay() -> Iterator[None]:
    """A module that forward sends to a device is there: all are on one, in float32."""
    torch = require_torch()
    usual = torch.nn.Module.to

    def stay(module: Any, *args: Any, **options: Any) -> Any:
        dtype = torch._C._nn._parse_to(*args, **options)[1]
        return module if dtype in (None, torch.float32) else usual(module, *args, **options)

    torch.nn.Module.to = stay
    try:
        yield
    finally:
        torch.nn.Module.to = usual


def _run_once(
    module: Any, call: Calling, examples: tuple[Any, ...], name: str, own: OwnGradients
) -> list[Number]:
    """Of a copy: a pass may change buffers. Returns the numbers that it makes of tensors; `own`
    learns of functions with a backward pass of their own."""
    module = copied(module)
    before = {path: buffer.clone() for path, buffer in module.named_buffers()}

    def run(unknown: Sequence[Any] | None) -> tuple[Any, list[Number]]:
        return noted(lambda: call.run(module, examples), unknown)

    try:
        with require_torch().enable_grad():
            with own.noted(module):
                result, numbers = run(None)
            if numbers:
                changed = [b for path, b in module.named_buffers() if _differ(b, before.get(path))]
                unknown = (*examples, *module.parameters(), *changed)
                numbers = run(unknown)[1]
    except FOREIGN as error:
        if "more than 1 value per channel" in str(error):
            raise GradletError(
                f"module '{place_of(error, module)}' of '{name}' is a batch norm in training, and "
                f"a batch of 1 has one value for each of its channels, which has no variance. Give "
                f"it a batch (--batch 2 or more), or choose what it does with one: --bn frozen "
                f"(running statistics as they are, weight and bias trained) or --bn recalibrate "
                f"(running statistics follow, and normalise)"
            ) from None
        shapes = ", ".join(str(list(value.shape)) for value in examples)
        raise GradletError(
            f"model '{name}' fails in PyTorch itself on inputs {shapes}: {described(error)}"
            f"{_about_samples(call)}"
        ) from None
    call.taken(result)
    own.judge(name)
    return numbers


def _about_samples(call: Calling) -> str:
    """A hint at inputs whose first dimension may count something else."""
    counts = {n: c for n, c in zip(call.names, call.samples, strict=True) if n not in call.whole}
    if len(set(counts.values())) < 2:
        return ""
    listed = ", ".join(f"{count} in '{name}'" for name, count in counts.items())
    return (
        f"\nThe first dimension of an input counts samples, of which a batch is taken: {listed}. "
        f"Name each where it counts something else, as in the state of a recurrent layer: --whole "
        f"NAME (in Python, whole=['NAME'])"
    )


def _differ(value: Any, before: Any) -> bool:
    return before is None or not require_torch().equal(value, before)
