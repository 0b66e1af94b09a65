"""Whether a captured graph computes what the module computes, in float64 and without dropout."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradlet.capture.user_code import FOREIGN, described
from gradlet.errors import GradletError, InternalError
from gradlet.extras import require_torch
from gradlet.graph import Graph
from gradlet.ops.dropout import ACTIVE, dropout_state
from gradlet.reference import evaluate, wide
from gradlet.tolerance import agrees_forward

FLOAT64 = 1e-3
"""Two ways to compute the same in float64 differ by less than this share of float32's errors; their
roundings are 2e-9 of those."""


@contextmanager
def plain_attention() -> Iterator[None]:
    """PyTorch's layers as they are written down: without the fused short cut for inference, which
    no exporter splits up, and without a look at the values of a mask, which none can follow."""
    torch = require_torch()
    layers, mha = torch.nn.modules.transformer, torch.backends.mha
    enabled, detect = mha.get_fastpath_enabled(), layers._detect_is_causal_mask
    mha.set_fastpath_enabled(False)
    layers._detect_is_causal_mask = _as_told
    try:
        yield
    finally:
        mha.set_fastpath_enabled(enabled)
        layers._detect_is_causal_mask = detect


def _as_told(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether a mask is causal is a hint to fused kernels; the mask itself is applied anyway."""
    return bool(is_causal)


def check_against_module(
    graph: Graph, module: Any, examples: tuple[Any, ...], *, rounded: bool
) -> None:
    """`rounded` says that constants were computed in single precision on the way."""
    outputs = _module_outputs(module, examples)
    values = {name: wide(value) for name, value in graph.data.items()}
    values.update({name: wide(value[0]) for name, value in graph.samples.items()})
    if state := dropout_state(graph):
        values[state] = values[state].copy()
        values[state][ACTIVE] = 0
    start = dict(values)
    evaluate(graph, values, ("forward",))
    for name, output in zip(graph.outputs, outputs, strict=True):
        expected = output.detach().numpy()
        if not np.isfinite(expected).all():
            raise GradletError(
                f"model '{graph.name}' gives NaN or infinity on its own example inputs (output "
                f"'{name}'); a mask that blocks a whole row of a softmax does that"
            )
        scale = max(float(np.abs(expected).max()), 1e-30)
        # float32 weights are exact in float64, so only the order of summation differs
        error = np.abs(values[name] - expected)
        if error.max() <= 1e-9 * scale:
            continue
        # a result near 0 is the rest of larger terms: what float32 would leave of them tells
        share = 1.0 if rounded else FLOAT64
        if not agrees_forward(graph, start, {name: expected}, share=share):
            raise InternalError(
                f"the captured graph of '{graph.name}' does not compute what the module computes "
                f"(output '{name}'); please report this model"
            )


def copied(module: Any) -> Any:
    """A deep copy; what a hook computed from parameters (old weight_norm) is copied by value."""
    torch = require_torch()
    computed = {
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    computed |= {id(b): b.detach().clone() for b in module.buffers() if not b.is_leaf}
    try:
        return copy.deepcopy(module, computed)
    except FOREIGN as error:
        raise GradletError(
            f"a {type(module).__name__} cannot be copied: {described(error)}\nIt may keep a tensor "
            f"that was computed from its parameters; keep a detached one, or compute it in forward"
        ) from None


def same_epsilon(module: Any) -> None:
    """In double precision what it is in single, where the default depends on the dtype."""
    torch = require_torch()
    for part in module.modules():
        if isinstance(part, torch.nn.RMSNorm) and part.eps is None:
            part.eps = torch.finfo(torch.float32).eps


def _module_outputs(module: Any, examples: tuple[Any, ...]) -> list[Any]:
    torch = require_torch()
    module = copied(module).float().double().cpu()  # the weights are taken over as float32
    same_epsilon(module)
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.eval()
    inputs = [v.detach().double() if v.dtype.is_floating_point else v for v in examples]
    with torch.no_grad(), plain_attention(), _without_dropout():
        result = module(*inputs)
    outputs = result if isinstance(result, tuple | list) else (result,)
    return [output for output in outputs if output is not None]


def _without_dropout() -> Any:
    """Dropout that is no layer of its own, as in attention: its draws keep everything."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch = require_torch()

    class KeepAll(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.bernoulli_.float:
                return args[0].fill_(args[1])  # PyTorch divides the draws by what stays on average
            if func is torch.ops.aten.native_dropout.default:
                return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
            return func(*args, **(kwargs or {}))

    return KeepAll()
