"""The optional third memory, and what the DMA counts."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gradlet.sim import FaultKind, Machine, SimConfig, Symbols
from gradlet.sim.binding import STATUS_EXIT, STATUS_FAULT
from gradlet.targets import target as targets
from tests.sim.c_programs import compile_c
from tests.sim.scripts import BARRIER, IN, LIMIT, LOAD, OUT, STORE, WAIT, Row, copy, cycles, prepare
from tests.sim.support import PROGRAMS, elf_of

NEAR, FAR, FARTHER = 0x10002000, 0x1C100000, 0x80000000
SIZE = 0x100000
POLL = 6  # cycles of one round of waiting
BETWEEN = 300  # of the script between two rows, cold caches included


def run(*rows: Row, **settings: object) -> tuple[list[int], Machine]:
    machine = prepare(rows, **{"l3_bytes": SIZE, **settings})
    assert machine.run(LIMIT) == STATUS_EXIT, machine.fault()
    return cycles(machine, rows), machine


def moved(*copies: Row, **settings: object) -> int:
    """Cycles from the first of these copies to the end of all, code in the caches."""
    machine = run(*copies, Row(WAIT), *copies, Row(WAIT), **settings)[1]
    alone = run(*copies, Row(WAIT), **settings)[1]
    return machine.dma_counters().busy - alone.dma_counters().busy


@pytest.mark.parametrize("what", [LOAD, STORE])
@pytest.mark.parametrize("latency", [0, 37, 100])
def test_access_of_a_core(what: int, latency: int) -> None:
    rows = [Row(what, near=FAR), Row(what, near=FARTHER)] * 3
    spent, machine = run(*rows, l3_latency=latency)
    assert spent[5] - spent[4] == latency - machine.config.l2_latency
    assert run(Row(STORE, near=FARTHER + SIZE - 4))[1].read(FARTHER + SIZE - 4, 4) == b"\1\0\0\0"


def test_it_is_not_there_unless_it_has_a_size() -> None:
    assert SimConfig.load().l3_bytes == 0
    for row, kind in (
        (Row(LOAD, near=FARTHER), FaultKind.LOAD),
        (Row(STORE, near=FARTHER), FaultKind.STORE),
        (copy(NEAR, FARTHER, 16), FaultKind.DMA),
    ):
        machine = prepare([row, Row(WAIT)])
        assert machine.run(LIMIT) == STATUS_FAULT
        assert (machine.fault().kind, machine.fault().address) == (kind, FARTHER)
        with pytest.raises(ValueError, match="not in a memory"):
            machine.read(FARTHER, 4)


def test_no_code_runs_there() -> None:
    machine = Machine(SimConfig.load(overrides={"l3_bytes": SIZE}))
    assert machine.load_elf(elf_of([0x13] * 4, base=FARTHER)) is None
    assert machine.run(LIMIT) == STATUS_FAULT
    assert machine.fault().kind is FaultKind.FETCH


@pytest.mark.parametrize("direction", [IN, OUT])
@pytest.mark.parametrize(("setup", "rate"), [(100, 2), (0, 2), (30, 1), (100, 4)])
def test_consecutive_bytes_take_the_setup_once(direction: int, setup: int, rate: int) -> None:
    settings = {"dma_l3_setup": setup, "dma_l3_rate": rate}
    for size in (4, 256, 260, 1024, 8192):
        spent = moved(copy(NEAR, FARTHER + 8, size, direction=direction), **settings)
        least = setup + size // rate
        # before the bus, a burst is read from L1; behind it, the last one goes there
        assert least <= spent <= least + 256 // 8 + 16, (size, spent)


@pytest.mark.parametrize("direction", [IN, OUT])
@pytest.mark.parametrize(("line", "lines", "pitch"), [(4, 50, 8), (64, 16, 100), (300, 7, 304)])
def test_every_line_takes_the_setup(direction: int, line: int, lines: int, pitch: int) -> None:
    spent = moved(copy(NEAR, FARTHER, line, lines, pitch, direction=direction))
    least = lines * (100 + line // 2)
    assert least <= spent <= least + 64, spent


def test_a_transfer_that_continues_another_streams() -> None:
    first, more = copy(NEAR, FARTHER, 1024), copy(NEAR + 1024, FARTHER + 1024, 64)
    assert moved(first, more) <= moved(first) + 64 // 2 + 8
    elsewhere = copy(NEAR + 1024, FARTHER + 1028, 64)
    back = copy(NEAR + 1024, FARTHER + 1024, 64, direction=OUT)
    assert moved(first, elsewhere) >= moved(first) + 100
    assert moved(first, back) >= moved(first) + 100
    assert moved(first, Row(WAIT), more) >= moved(first) + 100


def test_one_bus_for_both_directions() -> None:
    into = copy(NEAR, FARTHER, 4096)
    out = copy(NEAR + 0x2000, FARTHER + 0x2000, 4096, direction=OUT)
    assert moved(into, out) >= moved(into) + moved(out) - 200
    near_only = [copy(NEAR, FAR, 4096), copy(NEAR + 0x2000, FAR + 0x2000, 4096, direction=OUT)]
    assert moved(*near_only) < 4096 // 8 + BETWEEN + 60  # L2 takes both at once


def test_transfers_of_l2_are_not_slowed_down_otherwise() -> None:
    """Behind a transfer of L3 in the queue, in the other direction, or before it."""
    slow, quick = copy(NEAR, FARTHER, 4096), copy(NEAR + 0x2000, FAR, 4096)
    out = copy(NEAR + 0x2000, FAR, 4096, direction=OUT)
    alone, little = moved(slow), 40
    assert moved(slow, quick) <= alone + moved(quick) + little
    assert moved(quick, slow) <= alone + moved(quick) + little
    assert moved(slow, out) <= alone + little
    # waited for at once, those of L2 that stand before are as quick as ever
    wait = [Row(WAIT)]
    first = run(quick, *wait, quick, *wait)[0]
    assert abs(run(slow, *wait, quick, *wait)[0][3] - first[3]) <= POLL


def test_a_core_waits_for_its_own_copies_only() -> None:
    rows = [
        copy(NEAR, FARTHER, 32768, core=1),
        Row(BARRIER),
        copy(NEAR + 0x9000, FAR, 64, core=2, direction=OUT),
        Row(WAIT, core=2),
        Row(WAIT, core=3),
        Row(WAIT, core=1),
    ]
    spent, _ = run(*rows)
    assert max(spent[3:5]) < 300
    assert spent[5] > 32768 // 2 - 1500


def test_time_that_is_hidden() -> None:
    transfer, work = copy(NEAR, FAR, 4096), [Row(LOAD, near=FAR)] * 30
    _, machine = run(transfer, Row(WAIT))
    counters = machine.dma_counters()
    assert counters.commands == 1
    assert (counters.bytes_in, counters.bytes_out) == (4096, 0)
    assert 4096 // 8 <= counters.busy <= 4096 // 8 + 40
    assert 4096 // 8 - BETWEEN < counters.waited <= counters.busy
    _, machine = run(transfer, *work, Row(WAIT))
    assert machine.dma_counters().busy == counters.busy
    assert machine.dma_counters().waited == 0


def test_time_of_several_cores_is_counted_once() -> None:
    copies = [copy(NEAR + 0x1000 * i, FAR + 0x1000 * i, 4096, core=i) for i in range(4)]
    waits = [Row(WAIT, core=i) for i in range(4)]
    _, machine = run(*copies, *waits)
    counters = machine.dma_counters()
    assert 4 * 4096 // 8 - 2 * BETWEEN < counters.waited <= counters.busy < 4 * 4096 // 8 + BETWEEN


def test_time_under_way_is_counted_once() -> None:
    into, out = copy(NEAR, FAR, 4096), copy(NEAR + 0x2000, FAR + 0x2000, 4096, direction=OUT)
    both = run(into, out, Row(WAIT))[1].dma_counters()
    assert both.busy < 4096 // 8 + BETWEEN + 60
    assert (both.bytes_in, both.bytes_out, both.commands) == (4096, 4096, 2)
    later = run(into, Row(WAIT), out, Row(WAIT))[1].dma_counters()
    assert 2 * 4096 // 8 <= later.busy < 1200


def test_a_transfer_under_way_is_counted_so_far() -> None:
    machine = prepare([copy(NEAR, FARTHER, 32768), Row(WAIT)], l3_bytes=SIZE)
    machine.run(10_000)
    before = machine.dma_counters()
    assert 0 < before.bytes_in < 32768
    machine.run(10_500)
    assert machine.dma_counters().busy == before.busy + 500
    assert machine.dma_counters().bytes_in - before.bytes_in in range(256, 1537, 4)


def test_watching_covers_it() -> None:
    machine = prepare([copy(NEAR, FARTHER, 64), Row(WAIT)], l3_bytes=SIZE)
    machine.watch(FARTHER, SIZE, read=True, write=True, initialised=False)
    assert machine.run(LIMIT) == STATUS_FAULT
    assert machine.fault().kind is FaultKind.WATCH_DMA_UNINITIALISED
    machine = prepare([copy(NEAR, FARTHER, 64), Row(STORE, near=FARTHER + 60)], l3_bytes=SIZE)
    machine.watch(FARTHER, SIZE, read=True, write=True, initialised=True)
    assert machine.run(LIMIT) == STATUS_FAULT
    assert machine.fault().kind is FaultKind.WATCH_DMA_STORE


@pytest.mark.parametrize("cores", [1, 3])
def test_a_program_with_data_in_three_memories(cores: int, tmp_path: Path) -> None:
    target = targets.load("pulp-open", cores=cores, sizes={"L3": "64k"})
    elf = compile_c(PROGRAMS / "three_memories.c", target, tmp_path)
    machine = Machine(SimConfig.of(target.machine))
    assert machine.load_elf(elf) is None
    assert machine.run(LIMIT) == STATUS_EXIT
    assert machine.exit_code == {1: 111, 3: 333}[cores]
    space = Symbols(elf).address("farther_space")
    assert space
    assert FARTHER <= space < FARTHER + 0x10000
    assert struct.unpack("<3I", machine.read(space, 12)) == (111, 222, 333)
    assert struct.unpack("<2I", machine.read(space + 4088, 8)) == (1000, 2000)
    absent = Machine(SimConfig.load(overrides={"cores": cores}))
    assert absent.load_elf(elf) == "a segment lies outside the memories"
