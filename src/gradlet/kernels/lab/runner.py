"""Kernels on the simulated cluster, call by call: any operands, any sizes, results and cycles.

One program has all the kernels and is compiled once; between two calls it waits for the next job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.program import program, require_runner, stretched
from gradlet.ops.base import Size
from gradlet.runtime import KERNEL_RUNNER
from gradlet.sim import Machine, SimConfig, SimError, Symbols, explain
from gradlet.sim.binding import STATUS_BREAK, STATUS_DRAIN, STATUS_LIMIT
from gradlet.targets.target import Target

MILESTONES = ("gl_runner_wait", "gl_runner_go", "gl_runner_end")
ARGUMENTS = 16
LIMIT = 2_000_000_000
GUARD = 32
"""Bytes between operands that nobody may touch, where accesses are checked."""


@dataclass(frozen=True)
class Outcome:
    """What a call left in its outputs, and what it cost from its call to past its barrier."""

    outputs: tuple[Array, ...]
    cycles: int
    instructions: tuple[int, ...]  # by core
    stalls: tuple[Mapping[str, int], ...]  # by core, by cause


def _together(steps: Sequence[Outcome]) -> Outcome:
    """The steps of one kernel as a single call."""
    if len(steps) == 1:
        return steps[0]
    counts = zip(*(step.instructions for step in steps), strict=True)
    causes = zip(*(step.stalls for step in steps), strict=True)
    return Outcome(
        steps[-1].outputs,
        sum(step.cycles for step in steps),
        tuple(map(sum, counts)),
        tuple({name: sum(own[name] for own in stalls) for name in stalls[0]} for stalls in causes),
    )


@lru_cache(maxsize=4)
def _symbols(elf: bytes) -> Symbols:
    return Symbols(elf)


class Paused:
    """A program that stops at milestones, between which the machine belongs to its owner."""

    def __init__(self, elf: bytes, target: Target) -> None:
        self.symbols = _symbols(elf)
        stack = self.symbols.address("gl_stack") or 0
        self.target = target if stack == target.stack else stretched(target, stack)
        target = self.target
        self.machine = Machine(SimConfig.of(target.machine))
        if problem := self.machine.load_elf(elf):
            raise GradletError(problem)
        self.passed = [0] * (target.cores + 1)
        self.milestone = 0
        for name in MILESTONES:
            self.machine.break_at(self.place(name))
        self.reach("gl_runner_wait")

    def close(self) -> None:
        self.machine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def place(self, symbol: str) -> int:
        address = self.symbols.address(symbol)
        if address is None:
            raise GradletError(f"the program of kernels has no {symbol}")
        return address

    def reach(self, symbol: str, limit: int = LIMIT) -> bool:
        """Run until the first core comes to the next milestone, which is this one; False if that
        is behind the limit."""
        self.milestone += 1
        while max(self.passed) < self.milestone:
            if not self._go_on(limit, symbol):
                self.milestone -= 1  # still the next one
                return False
        return True

    def _go_on(self, limit: int, symbol: str = "") -> bool:
        """Run until some cores come to a milestone; False if none does up to the limit."""
        status = self.machine.run(limit)
        self.machine.take_stdout()
        if status == STATUS_LIMIT and limit < LIMIT:
            return False
        if status not in (STATUS_BREAK, STATUS_DRAIN):
            raise SimError(explain(self.machine, status, self.symbols))
        for core, pc in self.machine.take_breaks():
            self.passed[core] += 1
            if symbol and self.passed[core] == self.milestone and pc != self.place(symbol):
                raise SimError(f"core {core} is at {self.symbols.name(pc)}, not at {symbol}")
        return True


class KernelRunner(Paused):
    """A machine with a program of kernels; `call` runs one of them on all cores."""

    def __init__(
        self, used: Sequence[Kernel], target: Target, *, shift: int = 0, sanitize: bool = False
    ) -> None:
        require_runner(target, KERNEL_RUNNER)
        super().__init__(program(used, target, shift), target)
        self.sanitize = sanitize
        if sanitize:
            self._shut()

    def call(
        self,
        kernel: Kernel,
        outputs: Sequence[Array | None],
        inputs: Sequence[Array | None],
        sizes: Mapping[str, Size],
        *,
        in_place: Mapping[int, int] | None = None,
        known: Sequence[int] = (),
        repeat: int = 1,
        level: str = "",
        align: int = 4,
    ) -> Outcome:
        """One call. An output's array has its initial contents; with `in_place` (output: input) it
        lies where that input does. known: outputs that the kernel reads before it writes them.
        repeat: the steps of an op that has several; the cost is that of the last. level: the
        memory for operands, else the nearest; scratch is in L1, what the kernel must fetch itself
        never is."""
        l1 = self.target.memories[0].name
        settings = np.array(size_words(kernel, sizes), np.int32)
        spots = l1_spots = _Spots(*self._room(l1), align, self._gap)
        at_sizes = self._put(spots, settings)
        if level not in ("", l1):
            spots = _Spots(*self._room(level), align, self._gap)
        far, made = catalogue.streamed(kernel), len(outputs)
        behind = _Spots(*self._room(self.target.home.name), align, self._gap)
        at_inputs = [
            self._put(behind if made + n in far else spots, value) for n, value in enumerate(inputs)
        ]
        shared = {output: at_inputs[i] for output, i in (in_place or {}).items()}
        at_outputs = [
            shared[i] if i in shared else self._put(behind if i in far else spots, value)
            for i, value in enumerate(outputs)
        ]
        scratch = catalogue.scratch_bytes(kernel, sizes, self.target.cores)
        at_scratch = [l1_spots.take(scratch)] if scratch else []
        words = [self.place(kernel.name), *at_outputs, *at_inputs, *at_scratch]
        granted = []
        copied: list[tuple[int, int]] = []
        if self.sanitize:
            spans, results = _spans(at_inputs, inputs), _spans(at_outputs, outputs)
            copied = self._fetches(kernel, spans, results, [(at, scratch) for at in at_scratch])
            if catalogue.updated(kernel) or in_place:
                known = range(len(outputs))
            granted = self._grant(
                [(at_sizes, settings.nbytes), *spans.values()],
                list(results.values()),
                [(at, scratch) for at in at_scratch],
                {at_outputs[index] for index in known},
            )
        stepped, outcomes = catalogue.stepped(kernel), []
        for step in range(repeat * catalogue.variant_of(kernel).steps):
            own = [*words, *([step] if stepped else []), at_sizes]
            self.machine.write(self.place("gl_runner"), np.array(own, np.uint32).tobytes())
            outcomes.append(self._run(list(zip(at_outputs, outputs, strict=True))))
        self._withdraw(granted, copied)
        return _together(outcomes[-catalogue.variant_of(kernel).steps :])

    def _fetches(
        self,
        kernel: Kernel,
        inputs: dict[int, tuple[int, int]],
        outputs: dict[int, tuple[int, int]],
        scratch: list[tuple[int, int]],
    ) -> list[tuple[int, int]]:
        """Grants the kernel's own transfers; what only these may touch leaves the spans."""
        far, made = catalogue.streamed(kernel), len(catalogue.operands(kernel)[0])
        if far:
            sources = [inputs.pop(n - made) for n in far if n >= made]
            replaced = [outputs.pop(n) for n in far if n < made]
            return self._grant_copies(sources, replaced, *scratch[0])
        if loose := catalogue.fetched(kernel, catalogue.MAY):  # from wherever they are
            return self._grant_copies([inputs[n] for n in loose], [], *scratch[0])
        return []

    def _withdraw(
        self, granted: Sequence[tuple[int, int]], copied: Sequence[tuple[int, int]]
    ) -> None:
        """What one call might touch, the next one may not."""
        for address, size in granted:
            self.machine.watch(address, size, read=False, write=False, initialised=True)
        for address, size in copied:
            self.machine.watch_dma(address, size, read=False, write=False)

    def _run(self, results: list[tuple[int, Array | None]]) -> Outcome:
        if self.sanitize:
            self.machine.watch_new_phase()
        self.reach("gl_runner_go")
        before = self._counters()
        self.reach("gl_runner_end")
        after = self._counters()
        self.reach("gl_runner_wait")
        while min(self.passed[: self.target.cores]) < self.milestone:
            self._go_on(LIMIT)  # those that are behind have not told their cycles yet
        cycles = self.machine.read(self.place("gl_runner") + 4 + 4 * ARGUMENTS, 4 * 16)
        return Outcome(
            tuple(
                np.frombuffer(self.machine.read(at, v.nbytes), v.dtype).reshape(v.shape).copy()
                for at, v in results
                if v is not None
            ),
            int(np.frombuffer(cycles, np.uint32)[: self.target.cores].max()),
            tuple(b[0] - a[0] for a, b in zip(before, after, strict=True)),
            tuple(
                {name: b[2][name] - a[2][name] for name in a[2]}
                for a, b in zip(before, after, strict=True)
            ),
        )

    def _put(self, spots: _Spots, value: Array | None) -> int:
        """The place of an operand, filled; 0 where there is none."""
        if value is None:
            return 0
        at = spots.take(value.nbytes)
        self.machine.write(at, np.ascontiguousarray(value).tobytes())
        return at

    def _counters(self) -> list[tuple[int, int, dict[str, int]]]:
        return [self.machine.core_counters(core) for core in range(self.target.cores)]

    @property
    def _gap(self) -> int:
        return GUARD if self.sanitize else 0

    def _room(self, level: str) -> tuple[int, int]:
        """Where operands may lie in that memory."""
        memory = next((m for m in self.target.memories if m.name == level), None)
        if memory is None:
            raise GradletError(f"'{self.target.name}' has no memory '{level}'")
        end = memory.base + memory.size
        if memory == self.target.memories[0]:
            begin = -(-self.place("gl_l1_used") // 64) * 64 + self._gap
            return begin, end - self.target.stack * self.target.cores
        return memory.base + self.target.code, end

    # What may be touched

    def _shut(self) -> None:
        """Everything but the program, its variables, and the stacks."""
        for memory in self.target.memories:
            self.machine.shut(memory.base, memory.size)
        for begin, end, write in (
            ("gl_program", "gl_program_end", False),
            ("gl_data", "gl_data_end", True),
            ("gl_l1_start", "gl_l1_used", True),
        ):
            size = self.place(end) - self.place(begin)
            if size:
                self.machine.watch(
                    self.place(begin), size, read=True, write=write, initialised=True
                )

    def _grant(
        self,
        inputs: list[tuple[int, int]],
        outputs: list[tuple[int, int]],
        scratch: list[tuple[int, int]],
        known: set[int],
    ) -> list[tuple[int, int]]:
        """What this call may do; known: where outputs have values before, which it updates."""
        watch = self.machine.watch
        self.machine.own_stacks(self.place("gl_stacks_end"), self.target.stack)
        for span in inputs:
            watch(*span, read=True, write=False, initialised=True)
        for span in outputs:
            watch(*span, read=True, write=True, initialised=span[0] in known)
        for span in scratch:
            watch(*span, read=True, write=True, initialised=False)
        return [*inputs, *outputs, *scratch]

    def _grant_copies(
        self,
        sources: list[tuple[int, int]],
        replaced: list[tuple[int, int]],
        scratch: int,
        size: int,
    ) -> list[tuple[int, int]]:
        """Transfers of the kernel's own, between there and its scratch; cores have no access
        there."""
        for address, length in (*sources, *replaced):
            self.machine.watch(address, length, read=False, write=False, initialised=True)
            self.machine.watch_dma(address, length, read=True, write=(address, length) in replaced)
        self.machine.watch_dma(scratch, size, read=bool(replaced), write=True)
        return [*sources, *replaced, (scratch, size)]


class _Spots:
    """Places for operands, one behind the other."""

    def __init__(self, begin: int, end: int, align: int, gap: int) -> None:
        self.begin, self.next, self.end, self.align, self.gap = begin, begin, end, align, gap

    def take(self, size: int) -> int:
        at = -(-self.next // self.align) * self.align
        self.next = at + size + self.gap
        if self.next > self.end:
            raise GradletError(
                f"the operands of a kernel need {self.next - self.begin:,} bytes and more, there "
                f"are {self.end - self.begin:,}"
            )
        return at


def size_words(kernel: Kernel, sizes: Mapping[str, Size]) -> list[int]:
    """The sizes as the kernel's struct has them."""
    family = catalogue.families()[kernel.family]
    words: list[int] = []
    for name, _ in family.sizes:
        value = sizes[name]
        for number in value if isinstance(value, tuple) else (value,):
            fraction = name in family.fractions
            words.append(int(np.float32(number).view(np.int32)) if fraction else int(number))
    return words


def _spans(places: Sequence[int], values: Sequence[Array | None]) -> dict[int, tuple[int, int]]:
    """Of the operands that are there, by number."""
    pairs = enumerate(zip(places, values, strict=True))
    return {n: (at, value.nbytes) for n, (at, value) in pairs if value is not None}
