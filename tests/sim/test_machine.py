"""The machine around the cores: devices, counters, faults, limits."""

from __future__ import annotations

import random
import struct

import pytest

from gradlet.sim import (
    FaultKind,
    Machine,
    SimConfig,
    SimError,
    SimResult,
    Symbols,
    explain,
    simulate,
)
from gradlet.sim.binding import ANYBODY, STATUS_BREAK, STATUS_EXIT, STATUS_FAULT, STATUS_LIMIT
from tests.sim.support import (
    CODE_BASE,
    EXIT,
    PROGRAMS,
    assemble,
    b_type,
    elf_of,
    i_type,
    li,
    s_type,
)

LIMIT = 3_000_000


def run(
    name: str, *, cores: int = 8, settings: dict[str, object] | None = None, **defines: int
) -> SimResult:
    config = SimConfig.load(overrides={"cores": cores, **(settings or {})})
    return simulate(assemble(PROGRAMS / f"{name}.S", NC=cores, **defines), config, max_cycles=LIMIT)


@pytest.mark.parametrize("cores", range(1, 17))
def test_any_number_of_cores(cores: int) -> None:
    result = run("cores", cores=cores)
    assert result.exit_code == cores * (cores + 1) // 2
    assert len(result.cores) == cores
    assert all(core.instructions > 20 for core in result.cores)


@pytest.mark.parametrize("fill", [0x57, 0, 0xFF])
def test_what_nobody_has_written(fill: int) -> None:
    """Every byte of the memories and of the registers but zero."""
    machine = Machine(SimConfig.load(overrides={"fill": fill, "l3_bytes": 256}))
    for address in (0x10000000, 0x1000FFFC, 0x1C000000, 0x1C18FFFC, 0x80000000):
        assert machine.read(address, 4) == bytes([fill] * 4)
    machine.close()
    program = [*li(5, 0x10000000), *(s_type(0x23, 2, r, 5, 4 * r) for r in (0, 1, 4, 31)), *EXIT]
    machine = Machine(SimConfig.load(overrides={"fill": fill}))
    assert not machine.load_elf(elf_of(program))
    assert machine.run(LIMIT) == STATUS_EXIT
    assert machine.read(0x10000000, 4) == bytes(4)
    for register in (1, 4, 31):
        assert machine.read(0x10000000 + 4 * register, 4) == bytes([fill] * 4)
    machine.close()


@pytest.mark.parametrize("fpus", [1, 2, 3, 8, 16])
def test_any_number_of_fpus(fpus: int) -> None:
    assert run("cores", settings={"fpus": fpus}).exit_code == 36


@pytest.mark.parametrize("cores", [1, 2, 8, 16])
@pytest.mark.parametrize("mode", [0, 1])
def test_mutual_exclusion(cores: int, mode: int) -> None:
    assert run("mutex", cores=cores, MODE=mode).exit_code == 50 * cores


def test_dispatch_and_software_events() -> None:
    config = SimConfig.load()
    machine = Machine(config)
    machine.load_elf(assemble(PROGRAMS / "dispatch.S", NC=8).read_bytes())
    assert machine.run(LIMIT) == STATUS_EXIT
    marks = struct.unpack("<8I", machine.read(0x10000100, 32))
    assert [marks[i] for i in (1, 3, 5, 7)] == [0x1234] * 4
    assert all(marks[i] & 1 for i in (2, 4, 6))


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("contention", [False, True])
def test_dma(mode: int, contention: bool) -> None:
    rng, untouched = random.Random(1), b"\x57"
    machine = Machine(SimConfig.load(overrides={"contention": contention}))
    machine.load_elf(assemble(PROGRAMS / "dma.S", NC=8, MODE=mode).read_bytes())
    first, second, local = rng.randbytes(12001), rng.randbytes(2000), rng.randbytes(1000)
    machine.write(0x1C100000, first)
    machine.write(0x1C110000, second)
    machine.write(0x10004000, local)
    assert machine.run(LIMIT) == STATUS_EXIT
    assert machine.read(0x10008000, 12000) == first[:12000]
    lines = b"".join(second[200 * i : 200 * i + 96] for i in range(5))
    assert machine.read(0x10001000, 480) == lines
    assert machine.read(0x10002003, 77) == first[1:78]
    assert machine.read(0x10002002, 1) == machine.read(0x10002050, 1) == untouched
    assert machine.read(0x1C120000, 601) == local[:600] + untouched
    for i in range(4):
        line = machine.read(0x1C130000 + 64 * i, 31)
        assert line == local[2 + 30 * i : 32 + 30 * i] + untouched
    assert machine.core_counters(0)[2]["dma"] > 0 or mode == 1


def test_hardware_counters() -> None:
    assert run("counters", cores=1).exit_code == 0


def test_timer() -> None:
    assert run("timer", cores=1).exit_code == 0


def test_hardware_loops() -> None:
    assert run("loops", cores=1).exit_code == 77 + 5 + 1 + 1 + 3


def test_code_that_changes() -> None:
    assert run("rewrite", cores=1).exit_code == 321


@pytest.mark.parametrize("base", [0x10000100, 0x1C100000])
def test_misaligned_accesses(base: int) -> None:
    assert run("unaligned", cores=2, BASE=base).exit_code == 0


def test_long_output() -> None:
    result = run("flood", cores=1)
    assert result.stdout == "x" * 90000 + "\n"


def test_counters_account_for_every_cycle() -> None:
    """Awake, a core either executes or stalls for a reason that is named."""
    for contention in (False, True):
        result = run("mutex", settings={"contention": contention, "fpus": 4})
        for core in result.cores:
            asleep = sum(core.stalls[name] for name in ("barrier", "dma", "event"))
            awake = core.instructions + sum(core.stalls.values()) - asleep
            # The overhead of p.elw counts as waiting although the core is awake.
            assert 0 <= core.cycles - awake <= 3 * 60, core


def test_same_input_same_result() -> None:
    first, second = (run("mutex") for _ in range(2))
    assert (first.cycles, first.cores) == (second.cycles, second.cores)


def test_machines_do_not_share_state() -> None:
    config = SimConfig.load()
    data = assemble(PROGRAMS / "cores.S", NC=8).read_bytes()
    alone = simulate(data, config).cycles
    machines = [Machine(config) for _ in range(3)]
    for machine in machines:
        machine.load_elf(data)
    for limit in range(100, 20000, 100):
        statuses = [machine.run(limit) for machine in machines]
        if statuses[0] != STATUS_LIMIT:
            break
    assert [machine.cycles for machine in machines] == [alone] * 3
    assert statuses == [STATUS_EXIT] * 3


FAULTS = {
    1: "undefined instruction 0xffffffff",
    2: "load of 4 bytes at the unmapped address 0x20000008",
    3: "store of 4 bytes at the unmapped address 0x1c190000",
    4: "jump to 0x30000000",
    5: "ebreak",
    6: "ecall",
    7: "DMA transfer that touches 0x30000000",
    8: "DMA transfer",
    11: "load of 2 bytes at the unmapped address 0x10204000",
    12: "undefined instruction",
    13: "load of 4 bytes at the unmapped address 0x1000fffe",
}


@pytest.mark.parametrize("mode", FAULTS)
def test_faults_name_core_place_and_reason(mode: int) -> None:
    with pytest.raises(SimError) as caught:
        run("faults", MODE=mode)
    message = str(caught.value)
    assert message.startswith("core 7, pc 0x"), message
    assert FAULTS[mode] in message
    if mode != 4:
        assert "(culprit" in message, message


def test_endless_program_reaches_the_limit() -> None:
    with pytest.raises(SimError, match=f"not done after {LIMIT} cycles"):
        run("faults", MODE=9)


def test_everybody_asleep_is_reported() -> None:
    with pytest.raises(SimError, match="every core sleeps"):
        run("faults", MODE=10)


def test_fault_of_the_fabric_controller() -> None:
    with pytest.raises(SimError, match=r"fabric controller, pc 0x1c010000 .* undefined"):
        simulate(elf_of([0xFFFFFFFF]), SimConfig.load(), max_cycles=LIMIT)


def test_limit_is_exact_and_a_run_can_go_on() -> None:
    data = assemble(PROGRAMS / "mutex.S", NC=8).read_bytes()
    config = SimConfig.load()
    whole = simulate(data, config)
    machine = Machine(config)
    machine.load_elf(data)
    for limit in (1, 17, 333, 1000):
        assert machine.run(limit) == STATUS_LIMIT
        assert machine.cycles == limit
    assert machine.run(LIMIT) == STATUS_EXIT
    assert (machine.cycles, machine.exit_code) == (whole.cycles, whole.exit_code)


def test_trace() -> None:
    lines: list[str] = []
    config = SimConfig.load(overrides={"cores": 2})
    elf = assemble(PROGRAMS / "cores.S", NC=2)
    result = simulate(elf, config, trace=lines.append)
    assert simulate(elf, config).cycles == result.cycles
    assert sum(" main" in line for line in lines) > 10
    of_core_1 = [line for line in lines if line.split()[1] == "1"]
    assert len(of_core_1) == result.cores[1].instructions
    assert any(line.split()[1] == "fc" and "wfi" in line for line in lines)
    assert any("p.elw" in line for line in lines)
    assert any("main+" in line and "t1=" in line for line in lines)


def test_trace_longer_than_its_buffer() -> None:
    count = 0

    def take(line: str) -> None:
        nonlocal count
        count += 1

    config = SimConfig.load(overrides={"cores": 16})
    result = simulate(assemble(PROGRAMS / "mutex.S", NC=16), config, trace=take)
    assert count > sum(core.instructions for core in result.cores) > 4500


def watched(**permissions: bool) -> Machine:
    machine = Machine(SimConfig.load())
    machine.load_elf(assemble(PROGRAMS / "mark.S", NC=8).read_bytes())
    machine.watch(0x10000200, 32, read=True, write=True, initialised=False)
    machine.watch(0x1000020C, 4, **permissions)
    return machine


def test_watch_lets_pass_what_is_allowed() -> None:
    machine = watched(read=True, write=True, initialised=False)
    assert machine.run(LIMIT) == STATUS_EXIT


@pytest.mark.parametrize(
    ("permissions", "kind"),
    [
        ({"read": True, "write": False, "initialised": True}, FaultKind.WATCH_WRITE),
        ({"read": False, "write": True, "initialised": True}, FaultKind.WATCH_READ),
    ],
)
def test_watch_stops_what_is_not(permissions: dict[str, bool], kind: FaultKind) -> None:
    machine = watched(**permissions)
    assert machine.run(LIMIT) == STATUS_FAULT
    fault = machine.fault()
    assert (fault.kind, fault.core, fault.address) == (kind, 3, 0x1000020C)


def test_watch_finds_reads_of_bytes_nobody_wrote() -> None:
    code = [
        *li(5, 0x10200040),
        *li(6, CODE_BASE + 44),
        s_type(0x23, 2, 6, 5, 0),
        i_type(0x13, 0, 6, 0, 1),
        s_type(0x23, 2, 6, 5, -0x38),
        0x10500073,
        0x10500073,
        0x10500073,
        0x10500073,
        *li(7, 0x10000300),
        i_type(3, 2, 8, 7, 0),
        *EXIT,
    ]
    machine = Machine(SimConfig.load())
    machine.load_elf(elf_of(code))
    machine.watch(0x10000300, 4, read=True, write=True, initialised=False)
    assert machine.run(LIMIT) == STATUS_FAULT
    assert (machine.fault().kind, machine.fault().address) == (
        FaultKind.WATCH_UNINITIALISED,
        0x10000300,
    )


def test_watch_finds_races() -> None:
    data = assemble(PROGRAMS / "race.S", NC=4).read_bytes()
    machine = Machine(SimConfig.load(overrides={"cores": 4}))
    machine.load_elf(data)
    machine.watch(0x10000200, 4, read=True, write=True, initialised=True)
    assert machine.run(LIMIT) == STATUS_FAULT
    fault = machine.fault()
    assert (fault.kind, fault.address) == (FaultKind.WATCH_RACE, 0x10000200)
    message = explain(machine, STATUS_FAULT, Symbols(data))
    assert "(second_store)" in message
    assert "another core" in message


def test_where_anybody_may_store_there_are_no_races() -> None:
    machine = Machine(SimConfig.load(overrides={"cores": 4}))
    machine.load_elf(assemble(PROGRAMS / "race.S", NC=4).read_bytes())
    machine.watch(0x10000200, 4, read=True, write=True, initialised=True, owner=ANYBODY)
    machine.watch_new_phase()
    assert machine.run(LIMIT) == STATUS_EXIT
    machine.close()


def test_breakpoints_separate_phases() -> None:
    """The same program is fine if a new phase begins where its barrier is."""
    data = assemble(PROGRAMS / "race.S", NC=4).read_bytes()
    place = Symbols(data).address("after_barrier")
    assert place
    machine = Machine(SimConfig.load(overrides={"cores": 4}))
    machine.load_elf(data)
    machine.watch(0x10000200, 4, read=True, write=True, initialised=True)
    machine.break_at(place)
    seen: list[int] = []
    while (status := machine.run(LIMIT)) == STATUS_BREAK:
        for core, pc in machine.take_breaks():
            assert pc == place
            if not seen:
                machine.watch_new_phase()
            seen.append(core)
    assert status == STATUS_EXIT
    assert sorted(seen) == [0, 1, 2, 3]
    assert machine.exit_code == 2


def test_breakpoints_can_be_taken_away() -> None:
    data = assemble(PROGRAMS / "loops.S", NC=1).read_bytes()
    machine = Machine(SimConfig.load(overrides={"cores": 1}))
    machine.load_elf(data)
    place = Symbols(data).address("main")
    assert place
    machine.break_at(place)
    assert machine.run(LIMIT) == STATUS_BREAK
    assert machine.take_breaks() == [(0, place)]
    machine.break_at(place, on=False)
    assert machine.run(LIMIT) == STATUS_EXIT
    assert machine.exit_code == 87
    with pytest.raises(ValueError, match="0x30000000"):
        machine.break_at(0x30000000)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "cut short"),
        (20, "cut short"),
        (60, "cut short"),
        (90, "cut short"),
    ],
)
def test_truncated_elf(size: int, message: str) -> None:
    with pytest.raises(SimError, match=message):
        simulate(elf_of(EXIT)[:size], SimConfig.load(), max_cycles=LIMIT)


def test_other_files() -> None:
    with pytest.raises(SimError, match="no ELF file"):
        simulate(b"#!/bin/sh\n" + bytes(100), SimConfig.load(), max_cycles=LIMIT)
    other = bytearray(elf_of(EXIT))
    other[18] = 62
    with pytest.raises(SimError, match="RISC-V"):
        simulate(bytes(other), SimConfig.load(), max_cycles=LIMIT)
    with pytest.raises(SimError, match="outside"):
        simulate(elf_of(EXIT, base=0x9000000), SimConfig.load(), max_cycles=LIMIT)


def test_smaller_memories() -> None:
    config = SimConfig.load(overrides={"l1_bytes": "32k", "cores": 1})
    code = [*li(5, 0x1000FFFC), i_type(3, 2, 6, 5, 0), *EXIT]
    with pytest.raises(SimError, match="unmapped address 0x1000fffc"):
        simulate(elf_of(code), config, max_cycles=LIMIT)


def test_code_in_l1() -> None:
    """The fabric controller may run from L1, and so may the cores."""
    loop = [i_type(0x13, 0, 5, 5, -1), b_type(1, 5, 0, -4)]
    code = [*li(5, 10), *loop, *EXIT]
    result = simulate(elf_of(code, base=0x10000400), SimConfig.load(), max_cycles=LIMIT)
    assert result.exit_code == 0
