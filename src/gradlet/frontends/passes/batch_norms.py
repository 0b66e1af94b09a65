"""What the batch norms of a module do in training, if they are to do something else.

train        as PyTorch has it: the statistics of the batch normalise, running ones follow
frozen       the running statistics normalise and stay as they are; weight and bias are trained
recalibrate  the running statistics take their step towards those of the batch, and then normalise;
             they count as constants, so that no gradient passes through them
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradlet.errors import GradletError
from gradlet.support.extras import require_torch

MODES = ("train", "frozen", "recalibrate")


def check_mode(mode: str) -> None:
    if mode and mode not in MODES:
        raise GradletError(f"--bn {mode}: batch norms can be {', '.join(MODES)}")


def switch(module: Any, mode: str) -> None:
    """Turn the batch norms that have running statistics, whatever the rest of the module does."""
    kind = require_torch().nn.modules.batchnorm._BatchNorm
    for part in module.modules() if mode else ():
        if isinstance(part, kind) and part.running_mean is not None:
            part.train(mode != "frozen")


def refuse_cumulative(module: Any, mode: str, name: str) -> None:
    """Running statistics that are the mean over all batches so far follow by a count of them, which
    a program does not keep."""
    kind = require_torch().nn.modules.batchnorm._BatchNorm
    for path, part in module.named_modules():
        if not isinstance(part, kind) or part.running_mean is None or part.momentum is not None:
            continue
        if mode in ("train", "recalibrate") or (not mode and part.training):
            where = f"module '{path}' of '{name}'" if path else f"model '{name}'"
            raise GradletError(
                f"{where} is a batch norm with momentum=None, whose running statistics are the "
                f"mean over all batches so far; a program does not count them. Give it a momentum "
                f"(norm.momentum = 0.1), or leave the statistics as they are: --bn frozen"
            )


@contextmanager
def batch_norms(mode: str, *, traced: bool) -> Iterator[None]:
    """PyTorch's function does as told. In a traced pass one that recalibrates is told apart by the
    switch of cuDNN, which means nothing here: a tracer would divide by 0 where a channel has one
    value."""
    torch = require_torch()
    functional = torch.nn.functional
    plain = functional.batch_norm

    def norm(
        x: Any,
        mean: Any,
        var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        stepping = training and mean is not None
        if stepping and mode == "frozen":
            return plain(x, mean, var, weight, bias, False, momentum, eps)
        if traced and (stepping or not training):
            return torch.batch_norm(x, weight, bias, mean, var, False, momentum, eps, not stepping)
        if not stepping:
            return plain(x, mean, var, weight, bias, training, momentum, eps)
        _step(x, mean, var, momentum)
        return plain(x, mean.clone(), var.clone(), weight, bias, False, momentum, eps)

    if mode in ("frozen", "recalibrate"):
        functional.batch_norm = norm
    try:
        yield
    finally:
        functional.batch_norm = plain


def _step(x: Any, mean: Any, var: Any, momentum: float) -> None:
    """Running statistics follow those of the batch; one value alone tells nothing of variance."""
    torch = require_torch()
    with torch.no_grad():
        values = x.detach().transpose(0, 1).reshape(x.shape[1], -1)
        mean.copy_((1 - momentum) * mean + momentum * values.mean(1))
        if values.shape[1] > 1:
            var.copy_((1 - momentum) * var + momentum * values.var(1))


def place_of(error: BaseException, module: Any, kind: Any = None) -> str:
    """The batch norm, or other kind of module, that an error was raised in, by its path."""
    paths = {id(part): path for path, part in module.named_modules()}
    kind = kind or require_torch().nn.modules.batchnorm._BatchNorm
    trace, found = error.__traceback__, ""
    while trace is not None:
        part = trace.tb_frame.f_locals.get("self")
        if isinstance(part, kind):
            found = paths.get(id(part), found)
        trace = trace.tb_next
    return found
