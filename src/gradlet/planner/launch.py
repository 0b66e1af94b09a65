"""Launches: which kernels a call runs, over which operands, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradlet.kernels.catalogue import Kernel
from gradlet.ops.base import Size

FIRST, LATER, LAST, EVERY = "first", "later", "last", "every"
"""Tiles of a sum: those that start it, those that are added to it, those that complete it; or all.
Without a sum over tiles every tile is a first and a last one."""

Ref = int | None
"""An operand: its place among the outputs and the inputs of the call, where its tensor and its view
are; partial sums have views behind these. None for one that is left out."""


@dataclass(frozen=True)
class When:
    """At which tiles a launch runs. first_along: a predicate, the numbers of axes along which it
    runs for the first step only."""

    tiles: str = EVERY
    first_along: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """A kernel that all cores enter. sizes: what it gets, by tile class; of a call without tiles
    there is one. barrier: the cores wait for one another before it; else each core goes on to it
    from the launch before. repeat: it runs so often, with the number of the repetition."""

    kernel: Kernel
    operands: tuple[Ref, ...]
    sizes: tuple[Mapping[str, Size], ...]
    when: When = When()
    barrier: bool = True
    repeat: int = 1

    @property
    def sizes_key(self) -> str:
        """Equal for launches that get the same sizes. A text: 0.0 and -0.0 are not the same."""
        return f"{self.kernel.family} {dict(self.sizes[0])}"


def launch_from_json(value: Mapping[str, Any]) -> Launch:
    return Launch(
        Kernel(**value["kernel"]),
        tuple(value["operands"]),
        _sizes_from_json(value["sizes"]),
        When(value["when"]["tiles"], tuple(value["when"]["first_along"])),
        value["barrier"],
        value["repeat"],
    )


def _sizes_from_json(value: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Size], ...]:
    return tuple(
        {k: tuple(v) if isinstance(v, list) else v for k, v in item.items()} for item in value
    )
