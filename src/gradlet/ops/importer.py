"""How op files say what the front ends call their ops: tables from names to functions.

Beside an op stands how PyTorch (`aten` overloads), ONNX and TOML files spell it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Attrs, Node, Shape


class Importer(Protocol):
    """What a front end offers to the op files: operands by position, and a place to write."""

    module: str
    recalibrate: bool

    def tensor(self, value: Any) -> str: ...

    def tensors(self, value: Any) -> Any:
        """A tensor, or the two of a complex one (`ops/importers/fourier.py`)."""
        ...

    def param(self, value: Any) -> str: ...

    def shape(self, name: str) -> Shape: ...

    def dtype(self, name: str) -> str: ...

    def kind(self, value: Any) -> str:
        """What the model holds an operand for: a bool, an int or a float."""
        ...

    def add(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str: ...

    def add_many(
        self, op: str, inputs: Sequence[str], attrs: Attrs | None = None
    ) -> tuple[str, ...]: ...

    def constant(self, array: Array) -> str: ...

    def count(self, kind: str) -> int:
        """0, 1, 2, ... for each kind, to tell apart what is alike."""
        ...

    def state(self, name: str, array: Array) -> str:
        """A tensor that is kept from step to step; made when it is first asked for."""
        ...

    def fixed(self, value: Any) -> Array | None:
        """The value of an operand that depends on neither data nor weights, else None."""
        ...

    def static(self, value: Any) -> Array:
        """The value of an operand that must be known when the model is captured."""
        ...

    def stored(self, value: Any) -> Array | None:
        """A weight as the file stores it, or None if it is computed."""
        ...

    def piece(self, value: Any, suffix: str, places: Array) -> str:
        """A weight that takes the place of some elements of a stored one, in another order."""
        ...

    def producer(self, name: str) -> Node | None:
        """The node that made a tensor, if any."""
        ...

    def update(self, old: str, new: str) -> None:
        """From now on a stored tensor is a state, which the forward pass replaces by another."""
        ...

    def unsupported(self, reason: str) -> GradletError: ...


@dataclass(frozen=True)
class Call:
    """A front-end operation: positional operands and named attributes, as it has them."""

    target: str
    args: Sequence[Any]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    results: int = 1  # how many the front end expects, where it says so

    def arg(self, index: int, default: Any = None) -> Any:
        if index < len(self.args) and self.args[index] is not None:
            return self.args[index]
        return default

    def need(self, name: str) -> Any:
        if name not in self.attrs:
            raise GradletError(f"{self.target}: '{name}' is missing")
        return self.attrs[name]


FromFrontEnd = Callable[[Importer, Call], "str | Sequence[str]"]
TORCH: dict[str, FromFrontEnd] = {}
ONNX: dict[str, FromFrontEnd] = {}


TOML: dict[str, FromFrontEnd] = {}


def _spelled(
    table: dict[str, FromFrontEnd], targets: tuple[str, ...]
) -> Callable[[FromFrontEnd], FromFrontEnd]:
    def note(function: FromFrontEnd) -> FromFrontEnd:
        taken = table.keys() & set(targets)
        if taken:  # which of two files is read last would decide
            raise ValueError(f"{', '.join(sorted(taken))}: two op files convert it")
        table.update(dict.fromkeys(targets, function))
        return function

    return note


def from_torch(*targets: str) -> Callable[[FromFrontEnd], FromFrontEnd]:
    return _spelled(TORCH, targets)


def from_onnx(*targets: str) -> Callable[[FromFrontEnd], FromFrontEnd]:
    return _spelled(ONNX, targets)


def from_toml(*targets: str) -> Callable[[FromFrontEnd], FromFrontEnd]:
    return _spelled(TOML, targets)
