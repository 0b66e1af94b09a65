"""Kernels that fetch an operand from backing memory by themselves: no view on it takes any room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradlet.ir.graph import Site
from gradlet.kernels.catalogue import Kernel, candidates, families, fetched
from gradlet.kernels.traits import released
from gradlet.ops import OPS
from gradlet.ops.base import Size
from gradlet.planner.model import Call
from gradlet.planner.tile.search import Operand


def fetching(
    call: Call, operands: Sequence[Operand | None], isa: tuple[str, ...]
) -> list[tuple[Call, list[Operand | None]]]:
    """The call with each such kernel, and its operands without a view on what that fetches."""
    kernel, first = call.kernel, len(call.outputs)
    inputs = families()[kernel.family].modes[kernel.mode].inputs
    pairs = zip(inputs, operands[first:], strict=False)
    buffered = [i.name for i, operand in pairs if operand and operand.buffered]
    same = (kernel.family, kernel.mode, kernel.epilogue, call.sizes, isa, kernel.dtype)
    found = []
    for other in candidates(*same, streamed=buffered):
        own = {first + number for number in fetched(other)}
        seen = [
            replace(operand, buffered=False, fetched=True) if operand and n in own else operand
            for n, operand in enumerate(operands)
        ]
        if own:
            found.append((call.by(other), seen))
    return found


def releasing(call: Call, operands: Sequence[Operand | None]) -> list[Operand | None]:
    """The operands as the kernel of the call sees them that reads some in its first step alone."""
    first = len(call.outputs)
    own = {first + number for number in released(call.kernel)}
    return [
        replace(operand, released=n in own) if operand else None
        for n, operand in enumerate(operands)
    ]


def backing_sizes(site: Site, kernel: Kernel) -> dict[str, Size]:
    """What a kernel has to know of the operands that it fetches itself."""
    found: dict[str, Size] = {}
    for number in fetched(kernel):
        found.update(OPS[site.node.op].backing_sizes(site, number))
    return found
