"""The oracle's own table of operators: name in ONNX -> a function of PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Function = Callable[["Operator", Sequence[Any]], Any]
TABLE: dict[str, Function] = {}


class NotWritten(Exception):
    """A form of an operator that the table lacks."""


@dataclass(frozen=True)
class Operator:
    """One node of the file: what it is and what it is told."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    proto: Any
    opset: int

    def get(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)


def operator(*kinds: str) -> Callable[[Function], Function]:
    def note(function: Function) -> Function:
        TABLE.update(dict.fromkeys(kinds, function))
        return function

    return note


def at(args: Sequence[Any], index: int) -> Any:
    """An operand, or None if it is left out."""
    return args[index] if index < len(args) else None


def whole(value: Any) -> list[int]:
    """A tensor of whole numbers as a list."""
    return [int(number) for number in value.reshape(-1).tolist()]
