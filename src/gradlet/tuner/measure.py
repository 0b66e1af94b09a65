"""What candidates cost on the simulated cluster, from the first copy to past the last."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from gradlet.errors import GradletError
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import Paused
from gradlet.planner.tiling import TileView, Tiling
from gradlet.sim import SimError
from gradlet.targets.target import Target
from gradlet.tuner.image import Place, table_image
from gradlet.tuner.program import Function

ALIGN = 16
NO_FIT = -1
UNLIMITED = 1_000_000_000
"""Cycles of a candidate that is measured to its end, however slow."""
LOOKS = ((0.15, 2.0), (0.3, 1.5), (0.45, 1.35), (0.6, 1.2), (0.8, 1.1), (1.0, 1.0))
"""(part of its limit, factor): when a candidate has taken that part, it is given up if it would
take so many times its limit at the pace of what it has fetched so far. Regions are fetched before
they are needed, so that this seems too quick rather than too slow."""


@dataclass(frozen=True)
class Job:
    """One candidate. in_l1: for each operand that is used in place, whether it lies in L1; bytes of
    every operand by position; farthest: the positions of those in the memory behind that of the
    program."""

    kernel: Kernel
    tiling: Tiling
    repeat: int
    functions: Mapping[str, Function]
    in_l1: tuple[bool, ...]
    bytes: tuple[int, ...]
    scratch: int = 0
    farthest: tuple[int, ...] = ()


class TileRunner(Paused):
    """A machine with the program of the candidates, for one of them."""

    def cycles(self, job: Job, limit: int) -> int:
        """Or NO_FIT, or -limit if it takes longer than that."""
        try:
            l1, home, farthest = self._memories()
            image = self._image(job, self._places(job, l1, home, farthest))
            table, copy = home.take(len(image)), l1.take(len(image))
        except _NoRoom:
            return NO_FIT
        self.machine.write(table, image)
        job_words = struct.pack("<IIIi", table, copy, len(image), job.tiling.count)
        self.machine.write(self.place("gl_runner"), job_words)
        self.reach("gl_runner_go")
        begin, before = self.machine.cycles, self._fetched()
        whole = fetched_bytes(job.tiling)
        for share, factor in LOOKS:
            if self.reach("gl_runner_end", begin + int(limit * share)):
                return self.machine.cycles - begin
            if (self._fetched() - before) * factor < whole * share:
                break
        return -limit

    def _fetched(self) -> int:
        return self.machine.dma_counters().bytes_in

    def _image(self, job: Job, places: Sequence[Place]) -> bytes:
        functions = {role: self.place(function.name) for role, function in job.functions.items()}
        return table_image(job.tiling, functions, places)

    def _memories(self) -> tuple[_Bump, _Bump, _Bump]:
        """What the program leaves of the nearest memory, of its own, and the farthest."""
        l1_memory, home, last = (
            self.target.memories[0],
            self.target.home,
            self.target.memories[-1],
        )
        stacks = self.target.stack * self.target.cores
        l1 = _Bump(self.place("gl_l1_used"), l1_memory.base + l1_memory.size - stacks)
        l1_image = self.place("gl_l1_end") - self.place("gl_l1_start")
        program = max(self.place("gl_data_end"), self.place("gl_l1_image") + l1_image)
        own = _Bump(max(home.base + self.target.code, program), home.base + home.size)
        return l1, own, _Bump(last.base, last.base + last.size) if last != home else own

    def _places(self, job: Job, l1: _Bump, home: _Bump, farthest: _Bump) -> list[Place]:
        """Operands one behind the other, in the memories where the plan has them."""
        places = []
        for position, view in enumerate(job.tiling.views):
            backing = farthest if position in job.farthest else home
            if view is None:
                places.append(Place())
            elif view.buffer:
                stages = tuple(l1.take(view.stage_bytes) for _ in range(view.stages))
                stored = view.load or view.store
                places.append(
                    Place(backing.take(job.bytes[position]) if stored else stages[0], stages)
                )
            else:
                memory = l1 if job.in_l1[position] else backing
                places.append(Place(memory.take(job.bytes[position])))
        if job.scratch:
            places.append(Place(l1.take(job.scratch)))
        return places


class _NoRoom(Exception):
    """A candidate that does not fit."""


class _Bump:
    def __init__(self, begin: int, end: int) -> None:
        self.next, self.end = -(-begin // ALIGN) * ALIGN, end

    def take(self, size: int) -> int:
        at = self.next
        self.next = at + -(-size // ALIGN) * ALIGN
        if self.next > self.end:
            raise _NoRoom
        return at


def fetched_bytes(tiling: Tiling) -> float:
    """What a tiled call copies to L1."""
    total = 0.0
    for view in tiling.views:
        if view and view.load:
            inner = max(view.axes, default=-1)
            times = prod(axis.count for axis in tiling.axes[: inner + 1])
            total += times * view.item * prod(_mean_extents(view, tiling))
    return total


def _mean_extents(view: TileView, tiling: Tiling) -> list[float]:
    """Of its regions, which are smaller at the ends of axes."""
    found = [float(extent) for extent in view.shape]
    for number, span in view.spans:
        axis = tiling.axes[number]
        ranges = [view.along(span, axis.range(at)) for at in range(axis.count)]
        found[span.dim] = sum(high - low for low, high in ranges) / axis.count
    return found


def measure(elf: bytes, target: Target, jobs: Sequence[Job], limits: Sequence[int]) -> list[int]:
    """Each on a machine of its own, so that none depends on what ran before. All operands are zero,
    which is a label or an index that every kernel can take."""
    zeros = tuple((name, 0 if name == "fill" else value) for name, value in target.machine)
    results = []
    for job, limit in zip(jobs, limits, strict=True):
        with TileRunner(elf, replace(target, machine=zeros)) as runner:
            try:
                results.append(runner.cycles(job, limit))
            except SimError as error:
                raise GradletError(f"{job.kernel.name}: {error}") from None
    return results
