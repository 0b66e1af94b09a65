"""Functions with a backward pass of their own: subclasses of `torch.autograd.Function`.

The exporter follows their forward pass alone. Where PyTorch's gradient of that is the one that the
backward pass gives, as in functions that only save memory, nothing is lost. Where it is another, as
in the spikes of spiking networks, whose steps have the gradient of a smooth curve, the function is
written out as `y.detach() + (x - x.detach()) * slope`, if its gradient is a slope for each element.
Any other is refused by name.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError
from gradlet.frontends.importer import Line, Missing
from gradlet.frontends.torch.untraceable import owner_of
from gradlet.frontends.user_code import FOREIGN
from gradlet.support.extras import require_torch

CALLS = 3  # of each function that are looked at
SCALES = (1.0, 4.0)  # what agrees near 0 may not do so further away
NEAR = 1e-4  # gradients are computed in the precision that the function itself works in


WAY_OUT = (
    "a torch.autograd.Function whose backward pass is not the gradient of its forward pass, nor a "
    "slope for each element; no exported program holds it. Write it with ordinary operations: "
    "y.detach() passes no gradient, and y.detach() + (z - z.detach()) has the value of y and the "
    "gradient of z"
)


class _Context:
    """What a function keeps from its forward pass for its backward pass."""

    def __init__(self, wanted: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(wanted)
        self.saved_tensors: tuple[Any, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: Any) -> None: ...

    def mark_non_differentiable(self, *tensors: Any) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...

    def save_for_forward(self, *tensors: Any) -> None: ...


class OwnGradients:
    """The functions that a pass calls, and those of them that have to be written out."""

    def __init__(self) -> None:
        self._calls: dict[Any, list[tuple[Any, ...]]] = {}
        self._slopes: set[Any] = set()
        self._lines: dict[Any, list[Line]] = {}

    @contextmanager
    def noted(self, module: Any) -> Iterator[None]:
        """Calls within are noted, to be looked at afterwards."""
        paths = {id(part): path for path, part in module.named_modules()}

        def note(cls: Any, usual: Callable[..., Any], args: tuple[Any, ...]) -> Any:
            self._lines.setdefault(cls, []).append(_place(cls, args, paths))
            calls = self._calls.setdefault(cls, [])
            if len(calls) < CALLS:
                calls.append(tuple(_copied(arg) for arg in args))
            return usual(*args)

        with _instead(note):
            yield

    def judge(self, name: str) -> None:
        """Find out which are written out; a GradletError names one that cannot be."""
        missing = Missing()
        for cls, calls in self._calls.items():
            if _recomputes(cls) or all(_plain(cls, args) for args in calls):
                continue
            if all(_by_element(cls, args) for args in calls):
                self._slopes.add(cls)
            else:
                missing.lines += self._lines[cls]
        missing.raise_if_any(name)

    @contextmanager
    def written_out(self) -> Iterator[None]:
        """Functions that need it are computed within by operations that the exporter sees."""

        def write(cls: Any, usual: Callable[..., Any], args: tuple[Any, ...]) -> Any:
            if _recomputes(cls):
                inner, _, *rest = args
                return inner(*rest)
            return _with_slopes(cls, args) if cls in self._slopes else usual(*args)

        with _instead(write):
            yield


def _place(cls: Any, args: Sequence[Any], paths: Mapping[int, str]) -> Line:
    """Where a function is called: the module, and the line of its code."""
    shapes = ", ".join(str(list(arg.shape)) for arg in args if _is_tensor(arg))
    frame, where, code = sys._getframe(1), "", ""
    while frame is not None:
        own = owner_of(frame)
        if id(own) in paths and isinstance(own, require_torch().nn.Module):
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            file = Path(frame.f_code.co_filename).name
            where, code = paths[id(own)], f"{file}, line {frame.f_lineno}: `{line}`"
            break
        frame = frame.f_back  # type: ignore[assignment]
    return Line(where, f"{cls.__module__}.{cls.__qualname__}", shapes, WAY_OUT, code)


@contextmanager
def _instead(function: Callable[..., Any]) -> Iterator[None]:
    """Calls of every function end here, also through an `apply` that was kept somewhere: all of
    them ask the class between Function and its implementation, which has none of its own."""
    between = require_torch().autograd.function._SingleLevelFunction

    def apply(cls: Any, *args: Any) -> Any:
        return function(cls, super(between, cls).apply, args)

    between.apply = classmethod(apply)
    try:
        yield
    finally:
        del between.apply


def _recomputes(cls: Any) -> bool:
    """Whether it is PyTorch's own that calls a function now, and again in the backward pass."""
    return cls is require_torch().utils.checkpoint.CheckpointFunction


def _copied(value: Any) -> Any:
    return value.detach().clone() if _is_tensor(value) else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, require_torch().Tensor)


def _has_gradient(value: Any) -> bool:
    return _is_tensor(value) and value.dtype.is_floating_point


def _forward(cls: Any, args: Sequence[Any]) -> tuple[Any, _Context]:
    torch = require_torch()
    context = _Context([_has_gradient(arg) for arg in args])
    if torch.autograd.function._is_setup_context_defined(cls.setup_context):
        result = cls.forward(*args)
        cls.setup_context(context, tuple(args), result)
    else:
        result = cls.forward(context, *args)
    return result, context


def _backward(cls: Any, context: _Context, gradient: Any) -> tuple[Any, ...]:
    own = vars(cls).get("vjp") or cls.backward
    given = (own.__func__ if isinstance(own, staticmethod) else own)(context, gradient)
    return given if isinstance(given, tuple) else (given,)


def _plain(cls: Any, args: Sequence[Any]) -> bool:
    """Whether PyTorch's gradient of the forward pass is that of the backward pass."""
    torch = require_torch()
    for scale in SCALES:
        own, plain = (_leaves(args, scale) for _ in range(2))
        try:
            expected = cls.apply(*_changeable(own))
            drawn = _drawn(expected)
            with torch.enable_grad():
                found = _forward(cls, _changeable(plain))[0]
            if not _same(_gradients(expected, own, drawn), _gradients(found, plain, drawn)):
                return False
        except FOREIGN:
            if scale == 1.0:
                return False
    return True


def _leaves(args: Sequence[Any], scale: float) -> list[Any]:
    return [(arg * scale).requires_grad_() if _has_gradient(arg) else _copied(arg) for arg in args]


def _changeable(args: Sequence[Any]) -> list[Any]:
    """Copies that a function may write to, and that pass their gradients on."""
    return [arg.clone() if _has_gradient(arg) else arg for arg in args]


def _results(value: Any) -> list[Any]:
    items = value if isinstance(value, tuple | list) else [value]
    return [item for item in items if _has_gradient(item)]


def _drawn(value: Any) -> list[Any]:
    torch = require_torch()
    chance = torch.Generator().manual_seed(0)
    return [torch.randn(v.shape, generator=chance).to(v.dtype) for v in _results(value)]


def _gradients(value: Any, args: Sequence[Any], drawn: Sequence[Any]) -> list[Any]:
    """Of what the results add up to, each element times a drawn number."""
    torch = require_torch()
    leaves = [arg for arg in args if _has_gradient(arg)]
    pairs = [(v, d) for v, d in zip(_results(value), drawn, strict=True) if v.requires_grad]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    results, weights = zip(*pairs, strict=True)
    found = torch.autograd.grad(results, leaves, weights, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, found, strict=True)
    ]


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    for left, right in ((x.detach(), y.detach()) for x, y in zip(a, b, strict=True)):
        if left.shape != right.shape:
            return False
        size = max(float(left.abs().max()), float(right.abs().max())) if left.numel() else 0.0
        if not require_torch().allclose(left, right, rtol=NEAR, atol=NEAR * size, equal_nan=True):
            return False
    return True


def _by_element(cls: Any, args: Sequence[Any]) -> bool:
    """Whether its own gradient is that of the way in which it would be written out."""
    for scale in SCALES:
        own, written = (_leaves(args, scale) for _ in range(2))
        try:
            expected = cls.apply(*_changeable(own))
            found = _with_slopes(cls, _changeable(written))
            drawn = _drawn(expected)
            same = _same(_results(expected), _results(found))
            if not same or not _same(
                _gradients(expected, own, drawn), _gradients(found, written, drawn)
            ):
                return False
        except FOREIGN:
            return False
    return True


def _with_slopes(cls: Any, args: Sequence[Any]) -> Any:
    """The value of the forward pass, with the slopes of the backward pass."""
    torch = require_torch()
    held = [arg.detach() if _has_gradient(arg) else arg for arg in args]
    value, context = _forward(cls, held)
    slopes = _backward(cls, context, torch.ones_like(value))
    result = value.detach()
    for arg, slope in zip(args, slopes, strict=False):
        if _has_gradient(arg) and slope is not None:
            if slope.shape != arg.shape or arg.shape != value.shape:
                raise GradletError(f"{cls.__qualname__} has no slope for each element")
            result = result + (arg - arg.detach()) * slope.detach()
    return result
