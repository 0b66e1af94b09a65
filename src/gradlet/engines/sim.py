"""Simulator engine: the project's own C as a bare-metal program on the simulated cluster.

The program is not changed for being looked at. It pauses where a step begins or ends and where a
kernel is entered; the first core to get there has passed the barrier behind the call before, so
that all results of that call are in memory, and nothing of the next.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from gradlet.codegen.project import Project
from gradlet.engines.device import build_steps, require_device
from gradlet.engines.host import initial_values, shown, views
from gradlet.engines.model import Cost, Run
from gradlet.engines.sanitizer import Sanitizer
from gradlet.errors import GradletError, InternalError
from gradlet.ir.graph import Array
from gradlet.planner.model import REGIONS, Plan
from gradlet.planner.parts import parts
from gradlet.planner.walk import entries
from gradlet.sim import DEFAULT_MAX_CYCLES, Machine, SimConfig, SimError, Symbols, explain
from gradlet.sim.binding import STALLS, STATUS_BREAK, STATUS_DRAIN
from gradlet.support.cache import scratch_folder


def run(
    project: Project,
    *,
    steps: int = 1,
    watch: bool = False,
    states: bool = False,
    overrides: Mapping[str, Array] | None = None,
    samples: Mapping[str, Array] | None = None,
    sanitize: bool = False,
    max_cycles: int = DEFAULT_MAX_CYCLES,
    program: bytes = b"",
) -> Run:
    """Train from the initial weights, or from `overrides`, as the host engine does.

    sanitize stops at the first access that the plan does not allow; cycles are the same.
    program: what `build_steps` has built, if it is there.
    """
    require_device(project, "sim")
    elf = program or _built(project)
    session = Session(project.plan, elf, sanitize=sanitize, max_cycles=max_cycles)
    try:
        return _train(session, steps, samples, overrides, watch=watch, states=states)
    finally:
        session.machine.close()


def _built(project: Project) -> bytes:
    with scratch_folder() as folder:
        return build_steps(project, folder / "steps.elf").read_bytes()


def _train(
    session: Session,
    steps: int,
    samples: Mapping[str, Array] | None,
    overrides: Mapping[str, Array] | None,
    *,
    watch: bool,
    states: bool,
) -> Run:
    plan = session.plan
    graph = plan.graph
    fed_names = [name for name in graph.fed if name in plan.buffer_of()]
    source = {**graph.samples, **(samples or {})}
    kept = [*(old for old, _ in graph.updates if states), *graph.outputs]
    session.boot({**initial_values(plan), **(overrides or {})})
    losses, cycles, seconds, after = [], [], [], []
    answers = []
    fed = 0
    for step in range(steps):
        begin = time.perf_counter()
        loss, spent = 0.0, 0
        session.start_counting()
        for micro in range(graph.accumulate):
            last = micro == graph.accumulate - 1
            for name in fed_names:
                session.put(name, source[name][fed % len(source[name])])
            fed += 1
            spent += session.step(update=last, record=watch and step == 0 and last)
            answers.append(session.loss)
            loss += session.loss
        losses.append(loss / graph.accumulate)
        cycles.append(spent)
        seconds.append(time.perf_counter() - begin)
        after.append({name: session.get(name) for name in kept})
    return Run(
        "sim",
        steps,
        tuple(losses),
        tuple(cycles),
        tuple(seconds),
        answers=tuple(answers),
        tensors=session.tensors,
        states=tuple(after),
        nodes=tuple(cost(count, count["cycles"]) for count in session.costs),
        cores=session.core_costs() if steps else (),
    )


class Session:
    """A plan's program on a machine, from pause to pause."""

    def __init__(self, plan: Plan, elf: bytes, *, sanitize: bool, max_cycles: int) -> None:
        self.plan = plan
        self.views = views(plan)
        self.machine = Machine(SimConfig.of(plan.target.machine))
        self.symbols = Symbols(elf)
        self.max_cycles = max_cycles
        self.tensors: dict[str, Array] = {}
        self.loss = 0.0
        self.milestone = 0
        self.passed = [0] * (plan.target.cores + 1)  # milestones, by core
        self.costs: list[Counter[str]] = []
        self.counting: tuple[int, int, Counter[str]] | None = None
        if problem := self.machine.load_elf(elf):
            raise InternalError(f"the program of '{plan.graph.name}': {problem}")
        self.regions = {
            region: self.symbols.address(f"{plan.prefix}_{region}") for region in REGIONS
        }
        self.before = self.place("gl_before_step")
        self.after = self.place("gl_after_step")
        self.begin = self.place(f"{plan.prefix}_train_step")
        self.tiles = self.place("gl_tiles_run") if plan.tilings else 0
        self.entered = [list(entries(call)) for call in plan.calls]
        self.kernels = {
            kernel: self.place(kernel.symbol(plan.prefix))
            for call in plan.calls
            for kernel in call.kernels
        }
        pauses = {self.before, self.after, self.begin, self.tiles, *self.kernels.values()}
        for address in pauses - {0}:
            self.machine.break_at(address)
        self.sanitizer = Sanitizer(plan, self.machine, self.symbols) if sanitize else None

    def place(self, symbol: str) -> int:
        address = self.symbols.address(symbol)
        if address is None:
            raise GradletError(f"the program has no {symbol}; build the project again")
        return address

    def address(self, name: str) -> int:
        buffer = self.plan.buffer_of()[name]
        return (self.regions[buffer.region] or 0) + buffer.offset

    def get(self, name: str) -> Array:
        tensor = self.plan.graph.tensors[name]
        data = self.machine.read(self.address(name), tensor.bytes)
        found = np.frombuffer(data, tensor.element.numpy).reshape(tensor.shape)
        return tensor.element.loaded(found).copy()

    def put(self, name: str, value: Array) -> None:
        tensor = self.plan.graph.tensors[name]
        data = np.ascontiguousarray(tensor.element.stored(value)).tobytes()
        assert len(data) == tensor.bytes, f"{name}: {len(data)} bytes instead of {tensor.bytes}"
        self.machine.write(self.address(name), data)
        if self.sanitizer:
            self.sanitizer.was_fed(name)

    def boot(self, values: Mapping[str, Array]) -> None:
        """Run the start-up code, then put the initial values into place."""
        self.reach(self.before)
        if self.sanitizer:
            self.sanitizer.begin()
        for name, value in values.items():
            self.put(name, value)

    def step(self, *, update: bool, record: bool) -> int:
        """One call of train_step, up to where the next one is fed; returns its cycles."""
        members = parts(self.plan.graph, self.plan.calls)
        sequence = [
            index
            for name, indices in members.items()
            for index in indices
            if name != "update" or update
        ]
        self.reach(self.begin)
        begin = self.machine.cycles
        for index, following in pairwise([None, *sequence, None]):
            if index is not None:
                self._run(index, answers=index == sequence[-1])
            entry = None if following is None else self._entry(following)
            self.reach(self.after if entry is None else entry)
            if index is not None and record:
                self._record(index)
            self._count(following)
        spent = self.machine.cycles - begin
        self.loss = float(self.get(self.plan.graph.loss).reshape(-1)[0])
        if self.sanitizer:
            self.sanitizer.leave()
        self.reach(self.before)
        return spent

    def _entry(self, index: int) -> int:
        """Where a call begins: with its first tile's copies, or in its kernel."""
        call = self.plan.calls[index]
        return self.tiles if call.tiling else self.kernels[call.kernel]

    def _run(self, index: int, *, answers: bool) -> None:
        """From the beginning of a call into its last kernel."""
        tiled = self.plan.calls[index].tiling is not None
        if self.sanitizer:
            self.sanitizer.enter(index, answers=answers)
        for number, entry in enumerate(self.entered[index]):
            if tiled or number > 0:
                self.reach(self.kernels[entry.kernel])
            if self.sanitizer and (tiled or number > 0):
                self.sanitizer.next_kernel(entry)

    def reach(self, address: int) -> None:
        """Run until the first core gets to the next milestone, which must be at this address."""
        self.milestone += 1
        while max(self.passed) < self.milestone:
            status = self.machine.run(self.max_cycles)
            self.machine.take_stdout()
            if status not in (STATUS_BREAK, STATUS_DRAIN):
                reason = explain(self.machine, status, self.symbols)
                raise SimError(self.sanitizer.explain(reason) if self.sanitizer else reason)
            for core, pc in self.machine.take_breaks():
                self.passed[core] += 1
                if self.passed[core] == self.milestone and pc != address:
                    raise SimError(
                        f"core {core} is at {self.symbols.name(pc)}, where the plan has "
                        f"{self.symbols.name(address)}"
                    )

    def _record(self, index: int) -> None:
        for name in shown(self.plan, self.plan.calls[index].outputs, self.views):
            self.tensors[name] = self.get(name)

    def start_counting(self) -> None:
        self.costs = [Counter() for _ in self.plan.calls]
        self.at_start = self._counters()

    def _count(self, following: int | None) -> None:
        """Close the account of the call that has run, open that of the next."""
        now, counters = self.machine.cycles, total(self._counters())
        copying = self.machine.dma_counters()
        counters.update({"transfers": copying.busy, "waiting": copying.waited})
        if self.counting is not None:
            index, since, before = self.counting
            self.costs[index].update({"cycles": now - since})
            self.costs[index].update({k: counters[k] - before[k] for k in counters})
        self.counting = None if following is None else (following, now, counters)

    def _counters(self) -> list[Counter[str]]:
        counters = []
        for core in range(self.plan.target.cores):
            instructions, cycles, stalls = self.machine.core_counters(core)
            counters.append(Counter({"instructions": instructions, "awake": cycles, **stalls}))
        return counters

    def core_costs(self) -> tuple[Cost, ...]:
        """Of each core since start_counting; its cycles are those that it was awake."""
        since = zip(self._counters(), self.at_start, strict=True)
        counts = [Counter({k: now[k] - then[k] for k in now}) for now, then in since]
        return tuple(cost(count, count["awake"]) for count in counts)


def total(counters: list[Counter[str]]) -> Counter[str]:
    result: Counter[str] = Counter()
    for counter in counters:
        result.update(counter)
    return result


def cost(count: Counter[str], cycles: int) -> Cost:
    stalls = {name: count[name] for name in STALLS}
    return Cost(cycles, count["instructions"], stalls, count["transfers"], count["waiting"])
