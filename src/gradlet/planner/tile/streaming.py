"""Kernels that fetch an operand from backing memory by themselves: no view on it takes any room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradlet.ir.graph import Site
from gradlet.kernels.catalogue import Kernel, candidates, fetched, streamed, variant_of
from gradlet.kernels.catalogue import operands as formal
from gradlet.kernels.traits import released
from gradlet.ops import OPS
from gradlet.ops.base import Size
from gradlet.planner.model import Call
from gradlet.planner.tile.search import Operand


def fetching(
    site: Site, call: Call, operands: Sequence[Operand | None], isa: tuple[str, ...]
) -> list[tuple[Call, list[Operand | None]]]:
    """The call with each such kernel, the best one first, and its operands without a view on what
    that fetches."""
    kernel, first = call.kernel, len(call.outputs)
    outputs, inputs = formal(kernel)
    pairs = (
        *zip(inputs, operands[first:], strict=False),
        *(
            (o, operand)
            for o, operand in zip(outputs, operands, strict=False)
            if operand and operand.load
        ),
    )
    buffered = [formal.name for formal, operand in pairs if operand and operand.buffered]
    same = (kernel.family, kernel.mode, kernel.epilogue, call.sizes, isa, kernel.dtype)
    found = []
    for other in reversed(candidates(*same, streamed=buffered)):
        made = len(outputs)
        own = {n if n < made else first + n - made for n in streamed(other)}
        seen = [
            replace(
                operand, buffered=False, fetched=True, anywhere=bool(backing_sizes(site, other))
            )
            if operand and n in own
            else operand
            for n, operand in enumerate(operands)
        ]
        if own:
            found.append((call.by(other), seen))
    return found


def quicker(call: Call, than: Call) -> bool:
    """Whether a call with a kernel that fetches operands itself is to be preferred to copies of
    whole regions."""
    return variant_of(call.kernel).rank > variant_of(than.kernel).rank


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
