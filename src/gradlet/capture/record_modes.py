"""What a module may do while it is recorded: dropout takes our masks, other draws end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.extras import require_torch
from gradlet.ops.dropout import kept


class Refused(GradletError):
    """Why a module is not recorded."""


@contextmanager
def our_dropout(step: int) -> Iterator[None]:
    """Dropout loses what the program loses: by seed, step, number of the layer, and place. What is
    drawn inside PyTorch's own code, as in a recurrent layer, cannot be set."""
    torch = require_torch()
    functional = torch.nn.functional
    count = iter(range(2**31))

    def dropping(by_channel: bool) -> Callable[..., Any]:
        def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if not training or p == 0:
                return x
            group = int(np.prod(x.shape[2:], dtype=int)) if by_channel else 1
            attrs = {"p": float(p), "group": group, "salt": next(count)}
            stay = torch.from_numpy(kept(attrs, np.array([0, step, 1]), x.numel()))
            result = torch.where(stay.reshape(x.shape), x * (1 / (1 - p) if p < 1 else 0.0), 0.0)
            return x.copy_(result) if inplace else result

        return dropout

    attend = functional.scaled_dot_product_attention
    drop = dropping(False)

    def attention(q: Any, k: Any, v: Any, *args: Any, **options: Any) -> Any:
        names = ("attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args, strict=False)), **options}
        if not given.get("dropout_p") or given.get("is_causal") or given.get("enable_gqa"):
            return attend(q, k, v, *args, **options)
        scores = q @ k.transpose(-2, -1) * (given.get("scale") or q.shape[-1] ** -0.5)
        mask = given.get("attn_mask")
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -np.inf)
        elif mask is not None:
            scores = scores + mask
        return drop(scores.softmax(-1), given["dropout_p"]) @ v

    whole = ("dropout1d", "dropout2d", "dropout3d")
    replaced = {"dropout": drop, "scaled_dot_product_attention": attention}
    replaced |= {name: dropping(True) for name in whole}
    old = {name: getattr(functional, name) for name in replaced}
    try:
        for name, function in replaced.items():
            setattr(functional, name, function)
        yield
    finally:
        for name, function in old.items():
            setattr(functional, name, function)


def watched(*, single: bool) -> Any:
    """Nothing else is drawn, and nothing is narrower than asked for."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch = require_torch()
    narrow = (
        (torch.float16, torch.bfloat16)
        if single
        else (torch.float16, torch.bfloat16, torch.float32)
    )

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs or {}):
                raise Refused(f"its forward pass draws random numbers ({func._schema.name})")
            result = func(*args, **(kwargs or {}))
            for value in result if isinstance(result, tuple | list) else (result,):
                if isinstance(value, torch.Tensor) and value.dtype in narrow:
                    raise Narrow
            return result

    return Watch()


def dense_gradients() -> Any:
    """Gradients are handed on as they lie in memory by default. PyTorch's batch norm takes the
    gradient of a batch of 1, if it was transposed, for one that was not, and computes nonsense."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch = require_torch()

    class Dense(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func._schema.name.endswith("_backward"):
                args = [a.contiguous() if isinstance(a, torch.Tensor) else a for a in args]
            return func(*args, **(kwargs or {}))

    return Dense()


class Narrow(Exception):
    """The module computes in single precision of its own accord."""


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Some operations draw only if a probability says so."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            given = kwargs.get(argument.name, argument.default_value)
            return bool(args[index] if index < len(args) else given)
    return True
