"""What comes from a user's own PyTorch code is looked at before anything is done with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradlet.errors import GradletError
from gradlet.ir.builder import MOST_ELEMENTS
from gradlet.support.extras import require_torch

FOREIGN = (Exception, SystemExit)
"""What code of the user's may end with. An interruption from the keyboard is none of them."""


class HardExit(SystemExit):
    """os._exit(), which would end Gradlet with it: at once, and as if all were well."""


@contextmanager
def noticed_exits() -> Iterator[None]:
    """While code of the user's runs, os._exit() ends that code and not the process. A process that
    such code has forked may end itself as it likes."""
    right, own, running = os._exit, os.getpid(), True

    def leave(status: int) -> None:
        if not running or os.getpid() != own:
            right(status)
        raise HardExit(status)

    os._exit = leave  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit, running = right, False


def described(error: BaseException) -> str:
    """In a line: the kind of error and what it says."""
    if isinstance(error, HardExit):
        return f"it calls os._exit({error.code!r})"
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({'' if error.code is None else repr(error.code)})"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def refuse_strange(value: Any, what: str) -> None:
    """Raise unless a tensor is an ordinary one, with all of its numbers in memory."""
    torch = require_torch()
    if value.device.type == "meta":
        raise GradletError(f"{what} is on the device 'meta' and has no values; make it on the CPU")
    if value.layout != torch.strided:
        raise GradletError(f"{what} is {value.layout}; `.to_dense()` makes an ordinary one")
    if value.is_quantized:
        raise GradletError(f"{what} is quantised; `.dequantize()` makes an ordinary one")
    if value.is_complex():
        raise GradletError(
            f"{what} holds complex numbers; real ones are needed. Keep torch.view_as_real(value), "
            f"and let forward begin with torch.view_as_complex of it"
        )
    if getattr(value, "is_nested", False):
        raise GradletError(f"{what} is a nested tensor; pad it to one shape")


def check_module(module: Any, name: str) -> None:
    """Parameters and buffers that can be taken over."""
    torch = require_torch()
    _refuse_gradient_hooks(module, name)
    for path, part in module.named_modules():
        for hidden in (key for key in part._modules if hasattr(torch.nn.Module, key)):
            where = f"module '{path}' of '{name}'" if path else f"model '{name}'"
            raise GradletError(
                f"{where} keeps a module as `self.{hidden}`, which is the name of a method of "
                f"every module; give it another name"
            )
    total = 0
    for kind, items in (
        ("parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        for path, value in items:
            if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
                raise GradletError(
                    f"{kind} '{path}' of '{name}' has no shape yet: call the module once on "
                    f"example inputs, so that its lazy layers are made"
                )
            refuse_strange(value, f"{kind} '{path}' of '{name}'")
            if kind == "parameter" and not value.dtype.is_floating_point:
                raise GradletError(f"parameter '{path}' has dtype {value.dtype}")
            total += value.numel()
    if total > MOST_ELEMENTS:
        raise GradletError(
            f"model '{name}' has {total:,} weights, {4 * total:,} bytes: more than any target "
            f"holds; {MOST_ELEMENTS:,} weights are possible"
        )


def _refuse_gradient_hooks(module: Any, name: str) -> None:
    """They change gradients in PyTorch, and no captured graph shows them."""
    parts = [(f"module '{path}'", part) for path, part in module.named_modules()]
    held = [*parts, *((f"parameter '{path}'", p) for path, p in module.named_parameters())]
    kinds = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    for what, owner in held:
        if any(getattr(owner, kind, None) for kind in kinds):
            raise GradletError(
                f"{what} of '{name}' has a hook that is called with gradients; the program would "
                f"not call it. Take it off (`handle.remove()`) or write what it does into forward"
            )
