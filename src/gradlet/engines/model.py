"""What every engine answers: run(project, ...) -> Run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradlet.ir.graph import Array


@dataclass(frozen=True)
class Cost:
    """What something cost on a simulated device; the stalls are cycles by cause.

    transfers: cycles in which data were copied between memories; waiting: in which a core had to
    wait for that.
    """

    cycles: int
    instructions: int
    stalls: Mapping[str, int]
    transfers: int = 0
    waiting: int = 0

    def to_json(self) -> dict[str, Any]:
        copying = {"transfers": self.transfers, "waiting": self.waiting} if self.transfers else {}
        return {
            **copying,
            "cycles": self.cycles,
            "instructions": self.instructions,
            "stalls": {cause: count for cause, count in self.stalls.items() if count},
        }


@dataclass(frozen=True)
class Run:
    """Losses per step, times, and the tensors that were asked for.

    cycles are exact counts of a simulated device and absent where only a clock is; tensors holds
    every value of the first step, states every trained state after each step. answers is what each
    call of train_step returned: several per step, where gradients are accumulated. settings is what
    the setters have written, parameters what the project's table of them shows. nodes has what each
    call of the plan cost in the last step, all cores together; cores what each core did in it.
    """

    engine: str
    steps: int
    loss: tuple[float, ...]
    cycles: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    answers: tuple[float, ...] = ()
    tensors: Mapping[str, Array] = field(default_factory=dict)
    states: tuple[Mapping[str, Array], ...] = ()
    outputs: tuple[Mapping[str, Array], ...] = ()
    settings: Mapping[str, Array] = field(default_factory=dict)
    parameters: tuple[tuple[str, Array], ...] = ()
    nodes: tuple[Cost, ...] = ()
    cores: tuple[Cost, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine,
            "steps": self.steps,
            "loss": list(self.loss),
            "cycles": list(self.cycles) or None,
            "seconds": list(self.seconds),
            "cores": [core.to_json() for core in self.cores] or None,
        }
