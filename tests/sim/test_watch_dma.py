"""Transfers under the watch map: what they may touch, and who may touch what they touch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradlet.sim import FaultKind, Machine, Symbols, explain
from gradlet.sim.binding import STATUS_EXIT, STATUS_FAULT
from tests.sim.scripts import (
    BARRIER,
    FREE,
    IN,
    LIMIT,
    LOAD,
    OUT,
    STATUS,
    STORE,
    WAIT,
    Row,
    copy,
    cycles,
    prepare,
    program,
)

NEAR, FAR = 0x10002000, 0x1C100000


def closed(machine: Machine) -> Machine:
    """Nobody may do anything with 4 kB of L1 and 64 kB of L2, where nothing is written."""
    for address, size in ((NEAR, 0x1000), (FAR, 0x10000)):
        machine.watch(address, size, read=False, write=False, initialised=False)
        machine.watch_dma(address, size, read=False, write=False)
    return machine


def opened(machine: Machine) -> Machine:
    """The same with all permissions; there are values in L2."""
    machine.watch(NEAR, 0x1000, read=True, write=True, initialised=False)
    machine.watch(FAR, 0x10000, read=True, write=True, initialised=True)
    return machine


def message_of(machine: Machine) -> str:
    return explain(machine, STATUS_FAULT, Symbols(program()))


def stops(rows: Sequence[Row], kind: FaultKind, address: int, core: int = 0) -> str:
    machine = opened(prepare(rows))
    assert machine.run(LIMIT) == STATUS_FAULT
    fault = machine.fault()
    assert (fault.kind, fault.address, fault.core) == (kind, address, core)
    return message_of(machine)


def passes(machine: Machine) -> None:
    status = machine.run(LIMIT)
    assert status == STATUS_EXIT, message_of(machine)


LINES = (24, 3, 100)


def granted(machine: Machine, direction: int, *, without: str = "") -> Machine:
    """Exactly what one transfer of LINES needs, or all but one of the permissions."""
    line, lines, pitch = LINES
    spans = [(FAR + pitch * i, line) for i in range(lines)]
    near = [(NEAR, line * lines)]
    source, target = (spans, near) if direction == IN else (near, spans)
    for address, size in source:
        if without != "data":
            machine.watch(address, size, read=False, write=False, initialised=True)
        machine.watch_dma(address, size, read=without != "read", write=False)
    for address, size in target:
        machine.watch_dma(address, size, read=False, write=without != "write")
    return machine


@pytest.mark.parametrize("direction", [IN, OUT])
def test_exactly_what_is_granted_is_enough(direction: int) -> None:
    rows = [copy(NEAR, FAR, *LINES, direction=direction), Row(WAIT)]
    passes(granted(closed(prepare(rows)), direction))


@pytest.mark.parametrize("direction", [IN, OUT])
@pytest.mark.parametrize(
    ("without", "kind", "text"),
    [
        ("read", FaultKind.WATCH_DMA_READ, "which no transfer may read"),
        ("write", FaultKind.WATCH_DMA_WRITE, "which no transfer may write"),
        ("data", FaultKind.WATCH_DMA_UNINITIALISED, "where nobody has written"),
    ],
)
def test_each_permission_is_needed(
    direction: int, without: str, kind: FaultKind, text: str
) -> None:
    rows = [copy(NEAR, FAR, *LINES, direction=direction, core=2), Row(WAIT, core=2)]
    machine = granted(closed(prepare(rows)), direction, without=without)
    assert machine.run(LIMIT) == STATUS_FAULT
    fault = machine.fault()
    writes_near = (direction == IN) == (without == "write")
    assert (fault.kind, fault.core, fault.address) == (kind, 2, NEAR if writes_near else FAR)
    message = message_of(machine)
    assert message.startswith("core 2, pc 0x")
    assert "(main" in message
    assert f"DMA transfer that {'writes' if without == 'write' else 'reads'} 0x" in message
    assert text in message


@pytest.mark.parametrize("lines", [(28, 3, 100), (24, 4, 100), (24, 3, 104), (24, 3, 96)])
def test_one_byte_beyond_is_too_much(lines: tuple[int, int, int]) -> None:
    machine = granted(closed(prepare([copy(NEAR, FAR, *lines), Row(WAIT)])), IN)
    assert machine.run(LIMIT) == STATUS_FAULT
    assert machine.fault().kind in (FaultKind.WATCH_DMA_READ, FaultKind.WATCH_DMA_WRITE)


def test_cores_gain_nothing_by_what_transfers_may_do() -> None:
    machine = granted(closed(prepare([Row(LOAD, near=FAR)])), IN)
    assert machine.run(LIMIT) == STATUS_FAULT
    assert machine.fault().kind is FaultKind.WATCH_READ


def test_what_came_is_there_and_may_go_on() -> None:
    """Into L1, loaded, out of L1 to elsewhere, and in again."""
    there = FAR + 0x8000
    rows = [
        copy(NEAR, FAR, 256),
        Row(WAIT),
        Row(LOAD, near=NEAR + 252),
        copy(NEAR, there, 64, 4, 80, direction=OUT),
        Row(WAIT),
        copy(NEAR + 0x400, there, 64, 4, 80),
        Row(WAIT),
        Row(LOAD, near=NEAR + 0x4FC),
    ]
    machine = opened(prepare(rows))
    machine.watch(there, 0x1000, read=True, write=True, initialised=False)
    passes(machine)


def test_a_load_without_a_wait() -> None:
    message = stops(
        [copy(NEAR, FAR, 1024), Row(LOAD, near=NEAR + 1020)], FaultKind.WATCH_DMA_LOAD, NEAR + 1020
    )
    assert "race with DMA: load at 0x100023fc, which a transfer of core 0 writes" in message


def test_a_load_without_a_wait_when_the_data_is_there_by_luck() -> None:
    """The four bytes have come long before the core looks."""
    pause = [copy(NEAR + 0x800, FAR, 4, 0, 4)] * 40
    stops([copy(NEAR, FAR, 4), *pause, Row(LOAD, near=NEAR)], FaultKind.WATCH_DMA_LOAD, NEAR)


def test_a_store_to_what_still_goes_out() -> None:
    out = copy(NEAR, FAR, 512, direction=OUT)
    before = [copy(NEAR, FAR, 512), Row(WAIT)]
    message = stops(
        [*before, out, Row(STORE, near=NEAR + 508)], FaultKind.WATCH_DMA_STORE, NEAR + 508
    )
    assert "race with DMA: store at" in message
    passes(opened(prepare([*before, out, Row(LOAD, near=NEAR + 508), Row(WAIT)])))
    passes(opened(prepare([*before, out, Row(WAIT), Row(STORE, near=NEAR + 508)])))


def test_a_store_to_what_still_comes() -> None:
    stops([copy(NEAR, FAR, 64), Row(STORE, near=NEAR)], FaultKind.WATCH_DMA_STORE, NEAR)


def test_the_far_side_counts_as_well() -> None:
    first = [copy(NEAR, FAR, 64), Row(WAIT)]
    out = copy(NEAR, FAR + 0x1000, 16, 4, 32, direction=OUT)
    hit, between = FAR + 0x1000 + 32, FAR + 0x1000 + 16
    stops([*first, out, Row(LOAD, near=hit)], FaultKind.WATCH_DMA_LOAD, hit)
    stops([copy(NEAR, FAR, 64), Row(STORE, near=FAR)], FaultKind.WATCH_DMA_STORE, FAR)
    passes(opened(prepare([*first, out, Row(LOAD, near=between), Row(STORE, near=between)])))


def test_another_core_races_too() -> None:
    rows = [
        copy(NEAR, FAR, 4096, core=1),
        Row(BARRIER),
        Row(LOAD, core=3, near=NEAR + 4092),
        Row(BARRIER),
        Row(WAIT, core=1),
    ]
    message = stops(rows, FaultKind.WATCH_DMA_LOAD, NEAR + 4092, core=3)
    assert message.startswith("core 3, pc 0x")
    assert "which a transfer of core 1 writes" in message
    waited = [rows[0], Row(WAIT, core=1), Row(BARRIER), rows[2]]
    passes(opened(prepare(waited)))


@pytest.mark.parametrize(
    "second",
    [
        copy(NEAR + 60, FAR + 0x2000, 64),  # written twice
        copy(NEAR + 60, FAR + 0x2000, 64, direction=OUT),  # read while it is written
    ],
)
def test_transfers_that_get_in_each_others_way(second: Row) -> None:
    first = copy(NEAR, FAR, 64)
    message = stops([first, second], FaultKind.WATCH_DMA_OVERLAP, NEAR + 60)
    assert "as does one of core 0 that nobody has waited for" in message
    machine = opened(prepare([copy(NEAR, FAR, 256), Row(WAIT), first, Row(WAIT), second]))
    passes(machine)


def test_nothing_comes_where_something_still_goes_out() -> None:
    before = [copy(NEAR, FAR, 64), Row(WAIT), copy(NEAR, FAR + 0x1000, 64, direction=OUT)]
    again = copy(NEAR + 32, FAR, 64)
    stops([*before, again], FaultKind.WATCH_DMA_OVERLAP, NEAR + 32)
    passes(opened(prepare([*before, Row(WAIT), again])))


def test_two_transfers_may_read_one_place() -> None:
    rows = [copy(NEAR, FAR, 64), copy(NEAR + 64, FAR, 64), Row(WAIT)]
    passes(opened(prepare(rows)))


def test_a_look_that_finds_it_under_way_is_no_wait() -> None:
    rows = [copy(NEAR, FAR, 4096), Row(STATUS), Row(LOAD, near=NEAR)]
    stops(rows, FaultKind.WATCH_DMA_LOAD, NEAR)


def test_a_counter_that_is_freed() -> None:
    """Done, that counts as a wait; under way, it does not."""
    pause = [copy(NEAR + 0x800, FAR, 4, 0, 4)] * 10
    look = [Row(FREE), Row(LOAD, near=NEAR)]
    passes(opened(prepare([copy(NEAR, FAR, 4), *pause, *look])))
    stops([copy(NEAR, FAR, 4096), *look], FaultKind.WATCH_DMA_LOAD, NEAR)


def test_where_there_is_no_memory_the_command_is_named() -> None:
    machine = opened(prepare([copy(NEAR, 0x30000000, 64, core=1), Row(WAIT, core=1)]))
    assert machine.run(LIMIT) == STATUS_FAULT
    fault = machine.fault()
    assert (fault.kind, fault.core) == (FaultKind.DMA, 1)
    assert "(main" in message_of(machine)
    word = int.from_bytes(machine.read(fault.pc, 4), "little")
    assert word & 0x707F == 0x2023, "not where the last word of the command is stored"


def test_watching_changes_no_cycle() -> None:
    rows = [
        copy(NEAR, FAR, 256, 8, 512),
        copy(NEAR + 0x800, FAR + 0x4000, 1024),
        Row(WAIT),
        copy(NEAR, FAR + 0x8000, 1024, 2, 2000, direction=OUT),
        Row(WAIT),
        Row(LOAD, near=NEAR),
    ]
    watched, free = opened(prepare(rows)), prepare(rows)
    for machine in (watched, free):
        passes(machine)
    assert watched.cycles == free.cycles
    assert cycles(watched, rows) == cycles(free, rows)
    assert watched.dma_counters() == free.dma_counters()


def test_bytes_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="16 bytes at 0x80000000 are not in a memory"):
        prepare([]).watch_dma(0x80000000, 16, read=True, write=True)
