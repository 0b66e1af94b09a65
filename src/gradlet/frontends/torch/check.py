"""Whether a captured graph computes what the module computes, in float64 and without dropout."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradlet.errors import GradletError, InternalError
from gradlet.frontends.calling import Calling
from gradlet.frontends.passes.whole_numbers import check_indices
from gradlet.frontends.recording_modes import first_of_equals
from gradlet.frontends.user_code import FOREIGN, described
from gradlet.ir.graph import Graph
from gradlet.ops.dropout import ACTIVE, dropout_state
from gradlet.oracle.interpreter import evaluate, wide
from gradlet.oracle.tolerance import agrees_forward
from gradlet.support.extras import require_torch

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
    graph: Graph, module: Any, call: Calling, examples: tuple[Any, ...], *, rounded: bool
) -> None:
    """`rounded` says that constants were computed in single precision on the way."""
    outputs, single = _module_outputs(module, call, examples, graph.name)
    values = {name: wide(value) for name, value in graph.data.items()}
    values.update({name: wide(value[0]) for name, value in graph.samples.items()})
    if state := dropout_state(graph):
        values[state] = values[state].copy()
        values[state][ACTIVE] = 0
    start = dict(values)
    evaluate(graph, values, ("forward",))
    check_indices(graph, values)
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
        share = 1.0 if rounded or single else FLOAT64
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


def in_type(module: Any, dtype: Any) -> Any:
    """By the method of that name: some packages take any other `to` for one to a device."""
    methods = {"torch.float64": "double", "torch.float32": "float"}
    name = methods.get(str(dtype))
    return getattr(module, name)() if name else module.to(dtype)


def same_epsilon(module: Any) -> None:
    """In double precision what it is in single, where the default depends on the dtype."""
    torch = require_torch()
    for part in module.modules():
        if isinstance(part, torch.nn.RMSNorm) and part.eps is None:
            part.eps = torch.finfo(torch.float32).eps


def _module_outputs(
    module: Any, call: Calling, examples: tuple[Any, ...], name: str
) -> tuple[list[Any], bool]:
    """What the module computes, and whether in single precision. Some only take tensors of the type
    that they make themselves, which is the default one or float32 whatever it is; and some add up
    masks of the lowest number that there is, which is one of float32 in the program."""
    torch = require_torch()
    default = torch.get_default_dtype()
    attempts = ((torch.float64, default), (torch.float64, torch.float64), (torch.float32, default))
    for dtype, made in attempts:
        torch.set_default_dtype(made)
        try:
            found = _passes(module, call, examples, name, dtype)
            if dtype == torch.float32 or all(value.isfinite().all() for value in found):
                return found, dtype == torch.float32
        except GradletError:
            raise
        except FOREIGN as error:
            failure = described(error)
        finally:
            torch.set_default_dtype(default)
    raise GradletError(f"model '{name}' fails in PyTorch itself in its second pass: {failure}")


def _passes(
    module: Any, call: Calling, examples: tuple[Any, ...], name: str, dtype: Any
) -> list[Any]:
    """The results of a pass, which those of a second one have to be as well."""
    torch = require_torch()
    module = in_type(copied(module).float(), dtype).cpu()  # the weights are taken over as float32
    same_epsilon(module)
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.eval()
    inputs = [v.detach().to(dtype) if v.dtype.is_floating_point else v for v in examples]
    buffers = {path: buffer.clone() for path, buffer in module.named_buffers()}
    with torch.enable_grad(), _plainly(), first_of_equals():
        first = [value.detach().clone() for value in call(module, inputs)]  # which may be buffers
        for path, buffer in module.named_buffers():  # a graph has what becomes of these
            buffer.data = buffers.get(path, buffer.data)  # of whatever shape it was
        before = _plain_attributes(module)
        again = call(module, inputs)
    if not _alike(first, again):
        changed = [n for n, v in _plain_attributes(module).items() if before.get(n) != v]
        listed = f" (such as {', '.join(changed[:4])})" if changed else ""
        raise GradletError(
            f"model '{name}' computes something else in its second pass from the same inputs: it "
            f"keeps values of its own from pass to pass{listed}. The program would compute every "
            f"pass as the first; leave them out, or keep them in buffers"
        )
    return first


def _alike(first: list[Any], again: list[Any]) -> bool:
    if [tuple(value.shape) for value in first] != [tuple(value.shape) for value in again]:
        return False
    close = require_torch().allclose
    return all(close(a, b, rtol=1e-9, equal_nan=True) for a, b in zip(first, again, strict=True))


def _plain_attributes(module: Any) -> dict[str, Any]:
    """Numbers and words that a module keeps, by their paths."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, int | float | str)
    }


@contextmanager
def _plainly() -> Iterator[None]:
    """Attention as it is written down, and nothing dropped."""
    with plain_attention(), _without_alpha_dropout(), _without_dropout():
        yield


def _without_alpha_dropout() -> Any:
    """Seen as a whole: of the draws that it is made of none keeps the mean."""
    from torch.overrides import TorchFunctionMode

    class Passed(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "alpha_dropout" in getattr(func, "__name__", ""):
                return args[0] if args else kwargs["input"]
            return func(*args, **(kwargs or {}))

    return Passed()


def _without_dropout() -> Any:
    """Dropout that is no layer of its own, as in attention: its draws keep everything."""
    from torch.utils._python_dispatch import TorchDispatchMode

    torch = require_torch()

    drawn: dict[int, Any] = {}  # by address; rounded down after an offset they decide: not here

    def noted(value: Any) -> Any:
        drawn[value.data_ptr()] = value
        return value

    class KeepAll(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.bernoulli_.float:
                keep = args[1] if len(args) > 1 else 0.5
                return args[0].fill_(keep)  # PyTorch divides the draws by what stays on average
            if func is torch.ops.aten.bernoulli.default:
                return args[0].clone()
            if func is torch.ops.aten.native_dropout.default:
                return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
            if func in (torch.ops.aten.rand.default, torch.ops.aten.rand_like.default):
                return noted(func(*args, **(kwargs or {})).zero_())
            known = any(a.data_ptr() in drawn for a in args if isinstance(a, torch.Tensor))
            if known and func._opname in ("floor", "floor_"):
                return args[0]
            result = func(*args, **(kwargs or {}))
            return noted(result) if known and func._opname in ("add", "add_") else result

    return KeepAll()
