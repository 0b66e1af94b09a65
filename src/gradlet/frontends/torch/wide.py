"""What widens the PyTorch front end beyond the tables of `ops/`: twins of what works in place,
parts that PyTorch itself takes an operation into, complex numbers as pairs of real ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.frontends.importer import GraphImporter
from gradlet.frontends.parts import inserted, parts_of
from gradlet.frontends.torch.aliases import VIEWS, in_place, op_name
from gradlet.frontends.torch.fold import Folder
from gradlet.ops import TORCH
from gradlet.ops.importer import Call, FromFrontEnd
from gradlet.ops.importers.fourier import Pair, complex_result, pair_of

_BOTH_PARTS = VIEWS | {"clone", "neg", "cat", "sum", "mean", "constant_pad_nd", "div", "stack"}
"""What does to a complex number what it does to each of its parts."""


class WideImporter(GraphImporter):
    """The importer of the exported program (`torch.py`) says what an fx node stands for."""

    graph: Any
    names: dict[str, Any]
    known: Folder
    refused: set[str]

    def take(self, node: Any) -> None:
        raise NotImplementedError

    def handler(self, target: str) -> tuple[str, FromFrontEnd | None]:
        """What converts an operation: of one that works in place, also what its twin has."""
        twin = target.replace("_.", ".", 1) if in_place(target) else target
        if target not in TORCH and twin in TORCH and op_name(twin) not in VIEWS:
            return twin, TORCH[twin]
        return target, TORCH.get(target)

    def is_complex(self, node: Any, handler: FromFrontEnd | None) -> bool:
        """Whether a node computes with complex numbers that no handler of its own knows."""
        values = [self.names.get(operand.name) for operand in node.all_input_nodes]
        known = [self.known.values.get(operand.name) for operand in node.all_input_nodes]
        complex_ = any(isinstance(value, Pair) for value in values)
        complex_ |= any(getattr(value, "is_complex", bool)() for value in known)
        return complex_ and getattr(handler, "__module__", "") != Pair.__module__

    def of_pairs(
        self,
        node: Any,
        target: str,
        args: Sequence[Any],
        shapes: Sequence[str],
        handler: FromFrontEnd | None,
    ) -> str | Sequence[Any] | None:
        """Complex numbers: what mixes their parts, or what does the same with both."""
        made = complex_result(self, op_name(target), args)  # type: ignore[arg-type]
        if made is not None:
            return made
        if handler is None and (parts := self.by_parts(node)) is not None:
            return parts
        if handler is None or op_name(target).rstrip("_") not in _BOTH_PARTS:
            reason = "not supported: complex numbers; take their .real and .imag, or .abs()"
            self.missing.note(self.module, target, shapes, reason, self.code)
            return None
        inputs = [operand for operand in node.all_input_nodes if _is_pair(operand)]
        pairs = {n.name: pair_of(self, n) for n in inputs}  # type: ignore[arg-type]
        results: list[Any] = []
        for part in (0, 1):
            self.names |= {name: pair[part] for name, pair in pairs.items()}
            results.append(self.convert(handler, Call(target, args), shapes))
        self.names |= pairs
        if any(result is None for result in results):
            return None
        if all(isinstance(result, str) for result in results):
            return Pair(*results)
        return [Pair(*parts) for parts in zip(*results, strict=True)]

    def tensors(self, value: Any) -> Any:
        """A tensor, or the two of a complex one."""
        known = self.known.values.get(value.name)
        if known is not None and known.is_complex():
            return Pair(*(self.constant(p.numpy().copy()) for p in (known.real, known.imag)))
        found = self.names.get(value.name)
        return found if isinstance(found, Pair) else self.tensor(value)

    def by_parts(self, node: Any) -> str | Sequence[Any] | None:
        """What PyTorch's own parts of an operation make, if all of them can be taken over."""
        if (parts := parts_of(node)) is None:
            return None
        made, result = inserted(self.graph, node, parts)
        before, had = list(self.missing.lines), set(self.builder.data)
        try:
            for part in made:
                self.take(part)
        except GradletError:
            return None
        new = [value for name, value in self.builder.data.items() if name not in had]
        finite = all(np.isfinite(value).all() for value in new)
        wrong = self.refused.intersection(map(str, made))
        if not finite or self.missing.lines != before or wrong:
            self.missing.lines[:] = before  # the operation is to be named, not its parts
            return None
        if isinstance(result, list | tuple):
            return [self.tensors(item) for item in result]
        made_of: str | Sequence[Any] = self.tensors(result)
        return made_of


def _is_pair(node: Any) -> bool:
    return bool(getattr(node.meta.get("val"), "is_complex", bool)())


def written(node: Any) -> str:
    """The line of the user's code that a node comes from."""
    lines = str(node.meta.get("stack_trace") or "").rstrip().splitlines()
    found = re.match(r'\s*File "(.*)", line (\d+)', lines[-2] if len(lines) > 1 else "")
    if found is None:
        return ""
    return f"{Path(found[1]).name}, line {found[2]}: `{lines[-1].strip()}`"
