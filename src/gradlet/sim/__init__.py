"""Cycle-level simulator of the PULP-open cluster: runs the same ELF as GVSoC and silicon."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from .binding import (
    STATUS_DEADLOCK,
    STATUS_DRAIN,
    STATUS_EXIT,
    STATUS_FAULT,
    STATUS_LIMIT,
    DmaCounters,
    Fault,
    FaultKind,
    Machine,
    TraceEntry,
)
from .config import ConfigError, SimConfig
from .elf import Symbols
from .result import CoreResult, SimError, SimResult

__all__ = [
    "ConfigError",
    "CoreResult",
    "DmaCounters",
    "Fault",
    "FaultKind",
    "Machine",
    "SimConfig",
    "SimError",
    "SimResult",
    "Symbols",
    "TraceEntry",
    "explain",
    "simulate",
]

REGISTERS = (
    "zero",
    "ra",
    "sp",
    "gp",
    "tp",
    "t0",
    "t1",
    "t2",
    "s0",
    "s1",
    "a0",
    "a1",
    "a2",
    "a3",
    "a4",
    "a5",
    "a6",
    "a7",
    "s2",
    "s3",
    "s4",
    "s5",
    "s6",
    "s7",
    "s8",
    "s9",
    "s10",
    "s11",
    "t3",
    "t4",
    "t5",
    "t6",
)
DEFAULT_MAX_CYCLES = 10_000_000_000
GUARD = 4 * bytes.fromhex("ac57fe5a")
"""What start-up code puts behind each stack. Bytes that are all alike are older."""


def simulate(
    elf: Path | bytes,
    target: SimConfig,
    *,
    max_cycles: int = DEFAULT_MAX_CYCLES,
    trace: Callable[[str], None] | None = None,
    prepare: Callable[[Machine, Symbols], None] | None = None,
) -> SimResult:
    """Run a bare-metal program to its exit.

    `prepare` is called before the first cycle, with the program loaded; `trace` receives one line
    per executed instruction. A program that faults, sleeps for ever or exceeds `max_cycles` raises
    SimError, whose message names core, pc, symbol and reason.
    """
    data = elf if isinstance(elf, bytes) else Path(elf).read_bytes()
    machine = Machine(target)
    try:
        return _run(machine, data, max_cycles, trace, prepare)
    finally:
        machine.close()


def _run(
    machine: Machine,
    data: bytes,
    max_cycles: int,
    trace: Callable[[str], None] | None,
    prepare: Callable[[Machine, Symbols], None] | None,
) -> SimResult:
    cores = machine.config.cores
    if problem := machine.load_elf(data):
        raise SimError(problem)
    symbols = Symbols(data)
    if prepare is not None:
        prepare(machine, symbols)
    machine.set_trace(trace is not None)
    printed = bytearray()
    start = time.perf_counter()
    status = STATUS_DRAIN
    while status == STATUS_DRAIN:
        status = machine.run(max_cycles)
        printed += machine.take_stdout()
        if trace is not None:
            for entry in machine.take_trace():
                trace(format_trace(entry, symbols, cores))
    seconds = time.perf_counter() - start
    if status != STATUS_EXIT:
        raise SimError(explain(machine, status, symbols))
    return SimResult(
        exit_code=machine.exit_code,
        stdout=printed.decode(errors="replace"),
        cycles=machine.cycles,
        cores=tuple(CoreResult(*machine.core_counters(i)) for i in range(cores)),
        seconds=seconds,
    )


def core_name(core: int, cores: int) -> str:
    """How messages call a hart: the fabric controller comes after the cores of the cluster."""
    return f"core {core}" if core < cores else "fabric controller"


def format_trace(entry: TraceEntry, symbols: Symbols, cores: int) -> str:
    """One line of an instruction trace."""
    written = f"  {REGISTERS[entry.rd]}={entry.value:#x}" if 0 < entry.rd < 32 else ""
    name = entry.name.replace("_", ".")
    who = str(entry.core) if entry.core < cores else "fc"
    return (
        f"{entry.cycle:>10} {who:>2} {entry.pc:08x} {entry.opcode:0>8x} "
        f"{symbols.name(entry.pc):<24} {name}{written}"
    )


def overflowed(machine: Machine, symbols: Symbols) -> list[int]:
    """Cores that wrote over the guard behind their stack, which our start-up code puts there."""
    end, size = symbols.address("gl_stacks_end"), symbols.address("gl_stack")
    if not end or not size:
        return []
    guards = [machine.read(end - size * (core + 1), 16) for core in range(machine.config.cores)]
    return [core for core, guard in enumerate(guards) if guard != GUARD and len(set(guard)) > 1]


def explain(machine: Machine, status: int, symbols: Symbols) -> str:
    """Why a run ended where it should not, and whether a stack overflowed before."""
    reason = _reason(machine, status, symbols)
    size = symbols.address("gl_stack")
    for core in overflowed(machine, symbols):
        reason += f"; the stack of core {core} has overflowed, it has {size} bytes"
    return reason


def _reason(machine: Machine, status: int, symbols: Symbols) -> str:
    if status == STATUS_EXIT:
        return (
            f"the program ended by itself at cycle {machine.cycles}, exit code {machine.exit_code}"
        )
    if status == STATUS_LIMIT:
        return f"the program is not done after {machine.cycles} cycles (the limit)"
    if status == STATUS_DEADLOCK:
        return f"every core sleeps at cycle {machine.cycles} and no event can wake it up"
    if status != STATUS_FAULT:
        return f"the simulator stopped for an unknown reason ({status})"
    fault = machine.fault()
    reason = fault.kind.value.format(**dataclasses.asdict(fault))
    where = core_name(fault.core, machine.config.cores)
    return (
        f"{where}, pc {fault.pc:#010x} ({symbols.name(fault.pc)}), cycle {machine.cycles}: {reason}"
    )
