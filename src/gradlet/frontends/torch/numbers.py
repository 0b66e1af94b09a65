"""Python numbers that a model makes of its own tensors: `torch.arange(1, x.dim()).tolist()`.

The exporter knows shapes and no values, so it gives up there, or follows a number without knowing
it. Those that come neither from the inputs nor from the parameters nor from chance are the same in
every pass: they are noted in an eager pass and told again, in the same order, while it is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from gradlet.support.extras import require_torch


@dataclass(frozen=True)
class Number:
    """One call that made numbers of a tensor. `known`: any other pass makes the same."""

    function: Any
    shape: tuple[int, ...]
    value: Any
    known: bool


@dataclass
class _Origin:
    """The storages that hold what depends on inputs, parameters or chance. They are kept, so that
    none takes the address of another."""

    storages: dict[int, Any] = field(default_factory=dict)

    def taint(self, value: Any) -> None:
        storage = value.untyped_storage()
        self.storages[storage._cdata] = storage

    def tainted(self, value: Any) -> bool:
        return value.untyped_storage()._cdata in self.storages


def _makers() -> set[Any]:
    """What makes Python values of tensors."""
    torch = require_torch()
    tensor = torch.Tensor
    methods = (tensor.item, tensor.tolist, tensor.__int__, tensor.__float__, tensor.__bool__)
    return {*methods, tensor.__index__, tensor.is_nonzero, torch.is_nonzero, torch.equal}


def noted(run: Callable[[], Any], unknown: Sequence[Any] | None) -> tuple[Any, list[Number]]:
    """What an eager pass returns, and the numbers that it made. `unknown` are the tensors that may
    be others next time; None follows none, which takes a hundredth of the time."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    torch = require_torch()
    origin, numbers, makers = _Origin(), [], _makers()
    for value in unknown or ():
        origin.taint(value)

    class Follow(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            drawn = torch.Tag.nondeterministic_seeded in func.tags
            if drawn or any(map(origin.tainted, _tensors((args, kwargs)))):
                for value in _tensors(result):
                    origin.taint(value)
            return result

    class Note(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in makers:
                known = not any(map(origin.tainted, _tensors((args, kwargs))))
                numbers.append(Number(func, tuple(args[0].shape), result, known))
            return result

    with nullcontext() if unknown is None else Follow(), Note():
        result = run()
    return result, numbers


@contextmanager
def told(numbers: Sequence[Number]) -> Iterator[None]:
    """Calls that make numbers give the known ones, as long as they come in the same order."""
    from torch.overrides import TorchFunctionMode

    torch = require_torch()
    fake = torch._subclasses.FakeTensor
    makers, rest, as_list = _makers(), list(numbers), fake.tolist

    def number(func: Any, value: Any) -> Number | None:
        found = rest.pop(0) if rest else None
        if found and (found.function is not func or found.shape != tuple(value.shape)):
            rest.clear()  # the model does something else when it is exported
            found = None
        return found if found and found.known else None

    class Tell(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in makers and (found := number(func, args[0])):
                return found.value
            return func(*args, **(kwargs or {}))

    def tolist(value: Any) -> Any:  # which the exporter's tensors have of their own
        found = number(torch.Tensor.tolist, value)
        return found.value if found else as_list(value)

    fake.tolist = tolist
    try:
        with Tell():
            yield
    finally:
        fake.tolist = as_list


def _tensors(tree: Any) -> list[Any]:
    torch = require_torch()
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
