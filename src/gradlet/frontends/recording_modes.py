"""What a module may do while it is recorded: dropout takes our masks, other draws end it, and of
equal elements the first comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array
from gradlet.ops.dropout import uniform
from gradlet.support.extras import require_torch


class Refused(GradletError):
    """Why a module is not recorded."""


@contextmanager
def our_dropout(step: int) -> Iterator[Callable[[Any, float | None], Any]]:
    """Dropout loses what the program loses: by seed, step, number of the layer, and place. Gives
    what fills a tensor with draws of 1 by a probability, or of numbers from 0 to 1."""
    torch = require_torch()
    functional = torch.nn.functional
    count = iter(range(2**31))

    def dropping(by_channel: bool) -> Callable[..., Any]:
        def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if not training or p == 0:
                return x
            group = int(np.prod(x.shape[2:], dtype=int)) if by_channel else 1
            stay = torch.from_numpy(_stays(p, next(count), step, x.numel(), group))
            result = torch.where(stay.reshape(x.shape), x * (1 / (1 - p) if p < 1 else 0.0), 0.0)
            return x.copy_(result) if inplace else result

        return dropout

    def draws(x: Any, keep: float | None) -> Any:
        state = np.array([0, step, 1])
        if keep is None:
            values = uniform(next(count), state, x.numel())
        elif keep < 1:
            values = _stays(1 - keep, next(count), step, x.numel())
        else:
            return x.fill_(1)
        return x.copy_(torch.from_numpy(values.astype(np.float64)).reshape(x.shape))

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
    recurrent = torch._VF
    layers = {
        name: _layer_by_layer(getattr(recurrent, name), drop)
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    }
    with _replaced(functional, replaced), _replaced(recurrent, layers):
        yield draws


def _stays(p: float, salt: int, step: int, count: int, group: int = 1) -> Array:
    """What the program should keep: its numbers, beside the module's p. They have 24 bits, and so
    has p then."""
    numbers = uniform(salt, np.array([0, step, 1]), -(-count // group)).repeat(group)[:count]
    stay: Array = numbers >= np.rint(p * 2.0**24) / 2.0**24
    return stay


@contextmanager
def _replaced(owner: Any, functions: Mapping[str, Any]) -> Iterator[None]:
    old = {name: getattr(owner, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(owner, name, function)
        yield
    finally:
        for name, function in old.items():
            setattr(owner, name, function)


def _layer_by_layer(function: Callable[..., Any], drop: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent function whose layers are called one by one, so that dropout between them, which
    is drawn inside PyTorch otherwise, can be ours."""
    torch = require_torch()

    def layered(*args: Any) -> Any:
        x, states, weights, biased, layers, dropout, training, both, batch_first = args
        if not (training and dropout and layers > 1 and isinstance(weights, list | tuple)):
            return function(*args)
        directions, each = (2 if both else 1), len(weights) // layers
        final = []
        for layer in range(layers):
            own = slice(layer * directions, (layer + 1) * directions)
            given = tuple(s[own] for s in states) if isinstance(states, tuple) else states[own]
            held = weights[layer * each : (layer + 1) * each]
            x, *after = function(x, given, held, biased, 1, 0.0, False, both, batch_first)
            final.append(after)
            if layer + 1 < layers:
                x = drop(x, dropout)
        return (x, *(torch.cat(values) for values in zip(*final, strict=True)))

    return layered


def watched(draws: Callable[[Any, float | None], Any], *, single: bool) -> Any:
    """What decides by chance takes our draws, nothing else is drawn, and nothing is narrower than
    asked for."""
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
            if func is torch.ops.aten.bernoulli_.float:
                return draws(args[0], float(args[1] if len(args) > 1 else 0.5))
            if func is torch.ops.aten.bernoulli.default:
                return draws(args[0].clone(), float(args[0].reshape(-1)[0]))
            if func in (torch.ops.aten.rand.default, torch.ops.aten.rand_like.default):
                return draws(func(*args, **(kwargs or {})), None)
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


def first_of_equals() -> Any:
    """Of equal elements that comes first which stands first, as in the program. PyTorch promises no
    order of them unless a sort is stable, and takes one or another."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch = require_torch()
    aten = torch.ops.aten

    def ordered(x: Any, axis: int, descending: bool) -> tuple[Any, Any]:
        pair: tuple[Any, Any] = aten.sort.stable(x, stable=True, dim=axis, descending=descending)
        return pair

    def stable(x: Any, _: Any = None, dim: int = -1, descending: bool = False, **rest: Any) -> Any:
        return ordered(x, dim, descending)

    def first(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        return tuple(part.narrow(dim, 0, k).clone() for part in ordered(x, dim, largest))

    def one(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
        parts = (part.narrow(dim, k - 1, 1).clone() for part in ordered(x, dim, False))
        return tuple(part if keepdim else part.squeeze(dim) for part in parts)

    def middle(x: Any, dim: int, keepdim: bool = False) -> Any:
        return one(x, (x.shape[dim] - 1) // 2 + 1, dim, keepdim)

    chosen = {
        aten.sort.default: lambda x, dim=-1, descending=False: ordered(x, dim, descending),
        aten.sort.stable: stable,
        aten.topk.default: first,
        aten.kthvalue.default: one,
        aten.median.dim: middle,
    }

    class FirstOfEquals(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in chosen and args[0].dim() and not args[0].isnan().any():
                func = chosen[func]
            return func(*args, **(kwargs or {}))

    return FirstOfEquals()


class Narrow(Exception):
    """The module computes in single precision of its own accord."""


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Some operations draw only if a probability says so."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            given = kwargs.get(argument.name, argument.default_value)
            return bool(args[index] if index < len(args) else given)
    return True
