"""What a simulation gives back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gradlet.errors import GradletError


class SimError(GradletError):
    """The program did something that the machine cannot do, or never came to its end."""


@dataclasses.dataclass(frozen=True)
class CoreResult:
    """Counters of one core. `cycles` excludes the time in which it slept."""

    instructions: int
    cycles: int
    stalls: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class SimResult:
    """Outcome of a program that reached its exit."""

    exit_code: int
    stdout: str
    cycles: int
    cores: tuple[CoreResult, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The document that `gradlet sim --json` prints."""
        return {
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "cycles": self.cycles,
            "cores": [dataclasses.asdict(core) for core in self.cores],
            "seconds": self.seconds,
        }

    def summary(self) -> str:
        """A table of the counters, for people."""
        names = [n for n in self.cores[0].stalls if any(core.stalls[n] for core in self.cores)]
        head = f"{'core':>4} {'instructions':>12} {'cycles':>10}"
        rows = [head + "".join(f" {name:>15}" for name in names)]
        for index, core in enumerate(self.cores):
            row = f"{index:>4} {core.instructions:>12} {core.cycles:>10}"
            rows.append(row + "".join(f" {core.stalls[name]:>15}" for name in names))
        end = f"exit code {self.exit_code} after {self.cycles} cycles ({self.seconds:.2f} s)"
        return "\n".join([end, *rows])
