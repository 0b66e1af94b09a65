"""The C core, called through cffi."""

from __future__ import annotations

import dataclasses
import enum
import functools
import mmap
import os
import re
from collections.abc import Iterator
from typing import Any

from gradlet.support.cache import cache_folder

from . import build
from .config import ConfigError, SimConfig

STDOUT_BYTES = 1 << 16
TRACE_RECORDS = 1 << 12

STATUS_EXIT, STATUS_FAULT, STATUS_LIMIT, STATUS_DEADLOCK, STATUS_DRAIN, STATUS_BREAK = range(1, 7)
STALLS = (
    "load_use",
    "tcdm_contention",
    "fpu_contention",
    "fpu_latency",
    "icache",
    "branch",
    "multicycle",
    "memory",
    "misaligned",
    "barrier",
    "dma",
    "event",
)
ELF_ERRORS = {
    1: "this is no ELF file",
    2: "this is no 32-bit little-endian RISC-V program",
    3: "the file is cut short or damaged",
    4: "a segment lies outside the memories",
}

ANYBODY = 30
"""In place of a core: bytes that all may store to."""
NOT_THERE = "{size} bytes at {address:#010x} are not in a memory"
_FIELDS = [field.name for field in dataclasses.fields(SimConfig)]
_TYPES = f"""
typedef struct {{ int32_t {", ".join([*_FIELDS, "stdout_bytes", "trace_records"])}; }} SimConfig;
typedef struct {{ int32_t kind, core; uint32_t pc, address, size, opcode; int32_t other; }} Fault;
typedef struct {{ uint64_t cycle; uint32_t core, pc, opcode, value; const char *name;
                  uint32_t rd, unused; }} TraceRecord;
typedef struct Sim Sim;
"""


@functools.cache
def ffi() -> Any:
    """Made when a program first runs: loading cffi takes longer than `gradlet --help` should."""
    import cffi

    header = (build.source_directory() / "sim.h").read_text()
    interface = cffi.FFI()
    interface.cdef(_TYPES)
    interface.cdef(re.split("#pragma GCC visibility .*\n", header)[1])
    return interface


@functools.cache
def _library(path: str) -> Any:
    return ffi().dlopen(path)


def library() -> Any:
    """The loaded core; GRADLET_SIM_LIBRARY names another build of it, for tests."""
    return _library(os.environ.get("GRADLET_SIM_LIBRARY") or _built(str(cache_folder())))


@functools.cache
def _built(folder: str) -> str:
    """Whether the sources have changed is seen once per process; that takes longer than a start."""
    return str(build.library())


class FaultKind(enum.Enum):
    """Why a run stopped, in the order of the C core; the values are the messages."""

    NONE = "no fault"
    ILLEGAL = "undefined instruction {opcode:#x}"
    FETCH = "jump to {address:#010x}, where there is no memory"
    LOAD = "load of {size} bytes at the unmapped address {address:#010x}"
    STORE = "store of {size} bytes at the unmapped address {address:#010x}"
    DMA = "DMA transfer that touches {address:#010x}, where there is no memory, or has empty lines"
    ENVIRONMENT_CALL = "ecall, for which there is no environment"
    BREAKPOINT = "ebreak"
    WATCH_READ = "load at {address:#010x}, which this code may not read"
    WATCH_WRITE = "store at {address:#010x}, which this code may not write"
    WATCH_UNINITIALISED = "load at {address:#010x}, where nobody has written"
    WATCH_RACE = "store at {address:#010x}, where another core has stored in this phase"
    WATCH_DMA_READ = "DMA transfer that reads {address:#010x}, which no transfer may read"
    WATCH_DMA_WRITE = "DMA transfer that writes {address:#010x}, which no transfer may write"
    WATCH_DMA_UNINITIALISED = "DMA transfer that reads {address:#010x}, where nobody has written"
    WATCH_DMA_LOAD = (
        "race with DMA: load at {address:#010x}, which a transfer of core {other} writes "
        "that nobody has waited for"
    )
    WATCH_DMA_STORE = (
        "race with DMA: store at {address:#010x}, which a transfer of core {other} reads or writes "
        "that nobody has waited for"
    )
    WATCH_DMA_OVERLAP = (
        "race with DMA: transfer that touches {address:#010x}, as does one of core {other} that "
        "nobody has waited for, and one of them writes"
    )


@dataclasses.dataclass(frozen=True)
class Fault:
    """What stopped a run; `core` equal to the number of cores is the fabric controller.

    Of a DMA transfer, core and pc are those of its command. other: the core that has started the
    transfer which is in the way.
    """

    kind: FaultKind
    core: int
    pc: int
    address: int
    size: int
    opcode: int
    other: int = 0


@dataclasses.dataclass(frozen=True)
class DmaCounters:
    """What the DMA has done since the start.

    busy: cycles with a transfer under way. waited: those in which some core waited, from a look at
    the status that finds its own transfers under way to one that does not; the rest was hidden.
    l3_in and l3_out are parts of bytes_in (into L1) and bytes_out.
    """

    busy: int
    waited: int
    commands: int
    bytes_in: int
    bytes_out: int
    l3_in: int
    l3_out: int


@dataclasses.dataclass(frozen=True)
class TraceEntry:
    """One executed instruction; `value` is what rd holds afterwards (rd 32: none)."""

    cycle: int
    core: int
    pc: int
    opcode: int
    name: str
    rd: int
    value: int


class Machine:
    """One simulator, in memory of its own that the kernel provides page by page."""

    def __init__(self, config: SimConfig) -> None:
        self._lib = library()
        self.config = config
        record = ffi().new("SimConfig *")
        for name in _FIELDS:
            setattr(record, name, int(getattr(config, name)))
        record.stdout_bytes = STDOUT_BYTES
        record.trace_records = TRACE_RECORDS
        size = self._lib.sim_bytes(record)
        if size == 0:
            raise ConfigError(f"these settings are out of range: {config}")
        self._memory = mmap.mmap(-1, size)
        self._view = ffi().from_buffer(self._memory, require_writable=True)
        self._sim = self._lib.sim_create(self._view, record)

    def close(self) -> None:
        """Give the memory back now; it goes with the object otherwise."""
        if not self._memory.closed:
            self._lib.sim_destroy(self._sim)
            ffi().release(self._view)
            self._memory.close()

    def load_elf(self, data: bytes) -> str | None:
        """Load a program; returns what is wrong with it, if anything."""
        error = self._lib.sim_load_elf(self._sim, data, len(data))
        return ELF_ERRORS[error] if error else None

    def run(self, max_cycles: int) -> int:
        """Run up to this cycle; returns a STATUS."""
        return int(self._lib.sim_run(self._sim, max_cycles))

    @property
    def cycles(self) -> int:
        return int(self._lib.sim_cycles(self._sim))

    @property
    def exit_code(self) -> int:
        return int(self._lib.sim_exit_code(self._sim))

    def fault(self) -> Fault:
        """What stopped the run, after STATUS_FAULT."""
        out = ffi().new("Fault *")
        self._lib.sim_fault(self._sim, out)
        places = (out.core, out.pc, out.address, out.size, out.opcode, out.other)
        return Fault(list(FaultKind)[out.kind], *places)

    def take_stdout(self) -> bytes:
        """What the program has printed since the last call."""
        buffer = ffi().new("char[]", STDOUT_BYTES)
        count = self._lib.sim_take_stdout(self._sim, buffer, STDOUT_BYTES)
        return bytes(ffi().buffer(buffer, count))

    def set_trace(self, on: bool) -> None:
        self._lib.sim_set_trace(self._sim, int(on))

    def take_trace(self) -> Iterator[TraceEntry]:
        """The instructions executed since the last call."""
        records = ffi().new("TraceRecord[]", TRACE_RECORDS)
        count = self._lib.sim_take_trace(self._sim, records, TRACE_RECORDS)
        for i in range(count):
            entry = records[i]
            name = ffi().string(entry.name).decode()
            yield TraceEntry(
                entry.cycle, entry.core, entry.pc, entry.opcode, name, entry.rd, entry.value
            )

    def core_counters(self, core: int) -> tuple[int, int, dict[str, int]]:
        """Instructions, cycles awake, and the stalls by kind."""
        out = ffi().new("uint64_t[]", 3 + len(STALLS))
        self._lib.sim_core_counters(self._sim, core, out)
        return int(out[0]), int(out[1]), {name: int(out[3 + i]) for i, name in enumerate(STALLS)}

    def dma_counters(self) -> DmaCounters:
        out = ffi().new("uint64_t[]", len(dataclasses.fields(DmaCounters)))
        self._lib.sim_dma_counters(self._sim, out)
        return DmaCounters(*map(int, out))

    def read(self, address: int, size: int) -> bytes:
        """Bytes of a memory."""
        out = ffi().new("uint8_t[]", max(size, 1))
        if self._lib.sim_read(self._sim, address, out, size):
            raise ValueError(NOT_THERE.format(size=size, address=address))
        return bytes(ffi().buffer(out, size))

    def write(self, address: int, data: bytes) -> None:
        """Change bytes of a memory."""
        if self._lib.sim_write(self._sim, address, data, len(data)):
            raise ValueError(NOT_THERE.format(size=len(data), address=address))

    def watch(
        self,
        address: int,
        size: int,
        *,
        read: bool,
        write: bool,
        initialised: bool | None,
        owner: int = -1,
    ) -> None:
        """Say what the cores may do with these bytes; a violation is a fault.

        initialised: whether there are values to read; None leaves that as it is. owner: the only
        core that may store there, until the next phase; ANYBODY: all of them, in any order.
        """
        known = 8 if initialised is None else int(initialised) << 2
        permissions = int(read) | int(write) << 1 | known
        if self._lib.sim_watch(self._sim, address, size, permissions, owner):
            raise ValueError(NOT_THERE.format(size=size, address=address))

    def watch_dma(self, address: int, size: int, *, read: bool, write: bool) -> None:
        """Say what transfers may do with these bytes, which is everything at first.

        In any case they may read only what has been written, and what they write is initialised
        then. From its command on until a core sees in the status that its counter is at zero, or
        frees it, no core may load what a transfer writes or store to what it touches, and no other
        transfer may touch what one of both writes.
        """
        if self._lib.sim_watch_dma(self._sim, address, size, int(read) | int(write) << 1):
            raise ValueError(NOT_THERE.format(size=size, address=address))

    def shut(self, address: int, size: int) -> None:
        """Nobody may touch these bytes, and none of them holds a value."""
        self.watch(address, size, read=False, write=False, initialised=False)
        self.watch_dma(address, size, read=False, write=False)

    def own_stacks(self, top: int, size: int, guard: int = 0) -> None:
        """To each core its own, for one phase; nobody may write to the guard at its end."""
        for core in range(self.config.cores):
            low = top - size * (core + 1)
            if guard:
                self.watch(low, guard, read=True, write=False, initialised=True)
            given = (low + guard, size - guard)
            self.watch(*given, read=True, write=True, initialised=True, owner=core)

    @property
    def barriers(self) -> int:
        """How many times all had arrived at a barrier."""
        return int(self._lib.sim_barriers(self._sim))

    def watch_new_phase(self) -> None:
        """After a barrier: bytes that one core has written may be written by another."""
        self._lib.sim_watch_new_phase(self._sim)

    def break_at(self, address: int, on: bool = True) -> None:
        """Pause the run (STATUS_BREAK) whenever a core is about to execute this address."""
        if address & 1 or self._lib.sim_break(self._sim, address, int(on)):
            raise ValueError(f"there is no code at {address:#010x}")

    def take_breaks(self) -> list[tuple[int, int]]:
        """The cores that have come to a breakpoint since the last call, with their pc."""
        mask = int(self._lib.sim_take_breaks(self._sim))
        return [
            (core, int(self._lib.sim_core_pc(self._sim, core)))
            for core in range(self.config.cores + 1)
            if mask >> core & 1
        ]
