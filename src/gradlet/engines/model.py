"""What every engine answers: run(project, ...) -> Run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradlet.graph import Array


@dataclass(frozen=True)
class Run:
    """Losses per step, times, and the tensors that were asked for.

    cycles are exact counts of a simulated device and absent where only a clock is; tensors holds
    every value of the first step, states every trained state after each step.
    """

    engine: str
    steps: int
    loss: tuple[float, ...]
    cycles: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    tensors: Mapping[str, Array] = field(default_factory=dict)
    states: tuple[Mapping[str, Array], ...] = ()
    outputs: tuple[Mapping[str, Array], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "steps": self.steps,
            "loss": list(self.loss),
            "cycles": list(self.cycles) or None,
            "seconds": list(self.seconds),
        }
