"""Runs a case on the simulated cluster with each kernel that fits, at several code alignments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.kernels import catalogue, traits
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.cases import Case
from gradlet.kernels.lab.native import NativeReference, same_bits
from gradlet.kernels.lab.program import require_runner
from gradlet.kernels.lab.runner import KernelRunner, Outcome
from gradlet.runtime import KERNEL_RUNNER
from gradlet.support.cache import scratch_folder
from gradlet.targets.target import Target

ALIGNMENTS = 8


@dataclass(frozen=True)
class Row:
    """One kernel. Cycles count from the call to past the closing barrier, all caches warm."""

    kernel: str
    macs: int
    cycles: int  # median over the alignments
    least: int
    most: int
    instructions: int  # of all cores, at the median
    busiest: int  # of the core with the most
    stalls: dict[str, float]  # by cause, of all cycles of all cores
    same_bits: bool  # as its C on this machine
    right: bool  # within the tolerance of float64

    @property
    def mac_per_cycle(self) -> float:
        return self.macs / self.cycles

    @property
    def passed(self) -> bool:
        return self.same_bits and self.right

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "cycles": self.cycles,
            "mac_per_cycle": round(self.mac_per_cycle, 4),
            "range": [self.least, self.most],
            "instructions_per_mac": round(self.instructions / self.macs, 4),
            "issue_limit": round(self.busiest / self.cycles, 4),
            "stalls": self.stalls,
            "same_bits": self.same_bits,
            "right": self.right,
        }


@dataclass(frozen=True)
class Report:
    case: Case
    target: Target
    rows: tuple[Row, ...]  # the quickest first
    too_large: tuple[
        tuple[str, int], ...
    ] = ()  # kernels whose scratch finds no room, bytes of both

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        best = self.rows[0].to_json()
        return {
            "case": self.case.label,
            "target": self.target.name,
            "cores": self.target.cores,
            "macs": self.case.macs,
            "best": {key: best[key] for key in ("kernel", "cycles", "mac_per_cycle", "range")},
            "all": [row.to_json() for row in self.rows],
            "too_large": dict(self.too_large),
        }


def measure(
    case: Case,
    target: Target,
    *,
    alignments: int = ALIGNMENTS,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Every kernel that computes the case on this target, ranked."""
    _require_room(case, target)
    mode = catalogue.families()[case.family].modes[case.mode]
    streamed = [operand.name for operand in (*mode.outputs, *mode.inputs)]
    how, dtype = (case.family, case.mode, case.epilogue), case.element.name
    known = catalogue.candidates(*how, case.sizes, target.isa, dtype, streamed=streamed)
    needed = {kernel: _l1_bytes(case, kernel, target) for kernel in known}
    room = target.room(target.memories[0]) - SLACK
    found = [kernel for kernel in known if needed[kernel] <= room]
    outcomes: dict[Kernel, list[Outcome]] = {kernel: [] for kernel in found}
    for shift in range(alignments):
        progress(f"{case.label}: {len(found)} kernels, alignment {shift + 1} of {alignments}")
        with KernelRunner(found, target, shift=shift) as runner:
            for kernel in found:
                for _ in range(3):  # twice for the caches
                    last = runner.call(kernel, case.outputs, case.inputs, case.sizes)
                outcomes[kernel].append(last)
    progress(f"{case.label}: the C of {len(found)} kernels on this machine")
    with scratch_folder() as folder:
        natives = NativeReference(found, folder, target.cores)
        rows = [_row(case, kernel, outcomes[kernel], natives) for kernel in found]
    too_large = tuple((kernel.name, n) for kernel, n in needed.items() if kernel not in found)
    return Report(case, target, tuple(sorted(rows, key=lambda row: row.cycles)), too_large)


def _l1_bytes(case: Case, kernel: Kernel, target: Target) -> int:
    """Of operands and scratch; what the kernel fetches itself lies in backing memory."""
    scratch = catalogue.scratch_bytes(kernel, case.sizes, target.cores)
    fetched = [(*case.outputs, *case.inputs)[n] for n in catalogue.streamed(kernel)]
    gone = sum(value.nbytes for value in fetched if value is not None)
    return case.bytes - gone + scratch


def _row(case: Case, kernel: Kernel, outcomes: list[Outcome], natives: NativeReference) -> Row:
    wanted = natives.call(kernel, case.outputs, case.inputs, case.sizes)
    cycles = [outcome.cycles for outcome in outcomes]
    middle = outcomes[cycles.index(median_low(cycles))]
    causes = {name for stalls in middle.stalls for name in stalls}
    spent = {name: sum(stalls[name] for stalls in middle.stalls) for name in sorted(causes)}
    whole = middle.cycles * len(middle.stalls)
    error = np.abs(case.element.loaded(middle.outputs[0]) - case.expected)
    return Row(
        kernel.name,
        case.macs,
        middle.cycles,
        min(cycles),
        max(cycles),
        sum(middle.instructions),
        max(middle.instructions),
        {name: round(count / whole, 4) for name, count in spent.items() if count},
        all(same_bits(outcome.outputs, wanted) for outcome in outcomes),
        bool((error <= case.tolerance * traits.growth(kernel).factor).all()),
    )


def _require_room(case: Case, target: Target) -> None:
    require_runner(target, KERNEL_RUNNER)
    l1 = target.memories[0]
    if case.bytes > target.room(l1) - SLACK:
        wanted = -(-(case.bytes + l1.size - target.room(l1) + SLACK) // 1024)
        raise GradletError(
            f"{case.label}: the operands take {case.bytes:,} bytes, {l1.name} has "
            f"{target.room(l1) - SLACK:,}; --{l1.name.lower()} {wanted}k is enough"
        )


SLACK = 512
"""For the words of the program itself."""
