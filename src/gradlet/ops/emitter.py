"""What the gradients of an op are written with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gradlet.ir.graph import Attrs, Shape

Names = Sequence[str]
Gradients = dict[str, str]
"""Of inputs, by the names of their slots."""


class Emitter(Protocol):
    def add(self, op: str, inputs: Names, attrs: Attrs | None = None) -> str: ...

    def add_many(self, op: str, inputs: Names, attrs: Attrs | None = None) -> tuple[str, ...]: ...

    def shape(self, name: str) -> Shape: ...
