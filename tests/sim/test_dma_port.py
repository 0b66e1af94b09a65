"""gl_dma_copy and gl_dma_wait_all, which generated programs move their tiles with."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradlet.errors import GradletError
from gradlet.runtime import includes
from gradlet.sim import DmaCounters, Machine, SimConfig, Symbols
from gradlet.sim.binding import STATUS_EXIT
from gradlet.support.compiler import build_library
from gradlet.targets import target as targets
from tests.sim.c_programs import compile_c
from tests.sim.support import PROGRAMS

IN, OUT = 1 << 17, 0
NEAR, FAR, FARTHER = 0x10004000, 0x1C100000, 0x80100000
NEAR_BYTES, FAR_BYTES = 0x68000, 0x300000
LIMIT = 20_000_000
STARTUP_COMMANDS = 0  # nothing of this program lies in L1
SIZES = {"L1": "512k", "L2": "4M", "L3": "4M"}


@dataclass(frozen=True)
class Copy:
    near: int
    far: int
    line_bytes: int
    lines: int
    pitch: int
    direction: int
    wait: bool = True

    def apply(self, near: bytearray, far: bytearray) -> None:
        """What it is to do, on images of both memories."""
        for line in range(self.lines):
            n, f = self.near + line * self.line_bytes, self.far + line * self.pitch
            if self.direction == IN:
                near[n : n + self.line_bytes] = far[f : f + self.line_bytes]
            else:
                far[f : f + self.line_bytes] = near[n : n + self.line_bytes]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    target = targets.load("pulp-open", cores=2, sizes=SIZES)
    return compile_c(PROGRAMS / "dma_port.c", target, tmp_path_factory.mktemp("dma"))


@dataclass(frozen=True)
class Outcome:
    cycles: list[int]  # of each copy
    dma: DmaCounters


def perform(
    program: bytes, copies: Sequence[Copy], far_base: int = FAR, **settings: object
) -> Outcome:
    """Runs the copies on random memories and compares both."""
    target = targets.load("pulp-open", cores=2, sizes={**SIZES, **settings})  # type: ignore[dict-item]
    machine = Machine(SimConfig.of(target.machine))
    assert machine.load_elf(program) is None
    symbols = Symbols(program)
    table, rows = symbols.address("table"), symbols.address("rows")
    assert table
    assert rows
    rng = random.Random(7)
    near, far = bytearray(rng.randbytes(NEAR_BYTES)), bytearray(rng.randbytes(FAR_BYTES))
    machine.write(NEAR, bytes(near))
    machine.write(far_base, bytes(far))
    begin = machine.dma_counters()
    assert begin == DmaCounters(0, 0, 0, 0, 0, 0, 0)
    machine.write(rows, struct.pack("<I", len(copies)))
    for i, c in enumerate(copies):
        places = (NEAR + c.near, far_base + c.far, c.line_bytes, c.lines, c.pitch, c.direction)
        machine.write(table + 32 * i, struct.pack("<8I", *places, c.wait, 0))
        c.apply(near, far)
    assert machine.run(LIMIT) == STATUS_EXIT, machine.fault()
    assert machine.read(NEAR, NEAR_BYTES) == near
    assert machine.read(far_base, FAR_BYTES) == far
    cycles = [machine.read(table + 32 * i + 28, 4) for i in range(len(copies))]
    outcome = Outcome([struct.unpack("<I", word)[0] for word in cycles], machine.dma_counters())
    machine.close()
    return outcome


SHAPES = [
    # line_bytes, lines, pitch, commands that they take
    (4, 1, 4, 1),
    (4, 1, 0, 1),
    (100, 1, 70000, 1),
    (0, 5, 64, 0),
    (64, 0, 64, 0),
    (12, 3, 20, 1),
    (260, 7, 1028, 1),
    (4, 1000, 8, 1),
    (36, 1000, 36, 1),
    (132, 1000, 1000, 2),
    (4, 3, 65532, 1),
    (4, 3, 65536, 3),
    (2000, 5, 100000, 5),
    (65532, 2, 65532, 1),
    (65536, 3, 65540, 3),
    (131068, 1, 131068, 1),
    (131072, 1, 131072, 2),
    (300000, 1, 300000, 3),
    (140000, 2, 200000, 4),
    (400, 1000, 404, 4),
    (1, 1, 1, 1),
    (30, 4, 64, 1),
]


@pytest.mark.parametrize("far", [FAR, FARTHER])
@pytest.mark.parametrize("direction", [IN, OUT])
@pytest.mark.parametrize(("line", "lines", "pitch", "commands"), SHAPES)
def test_one_copy(
    program: bytes, far: int, direction: int, line: int, lines: int, pitch: int, commands: int
) -> None:
    """No command has more bytes than fit into its length, or a pitch of more than 16 bits."""
    dma = perform(program, [Copy(0x40, 0x1004, line, lines, pitch, direction)], far).dma
    assert dma.commands == commands + STARTUP_COMMANDS
    assert (dma.bytes_in, dma.bytes_out) == (
        (line * lines, 0) if direction == IN else (0, line * lines)
    )
    in_l3 = far == FARTHER
    assert (dma.l3_in, dma.l3_out) == ((dma.bytes_in, dma.bytes_out) if in_l3 else (0, 0))


def many(rng: random.Random, count: int) -> list[Copy]:
    """Copies that do not touch one another, some waited for."""
    copies: list[Copy] = []
    near = far = 0
    while len(copies) < count:
        line, lines = 4 * rng.randrange(1, 100), rng.randrange(0, 30)
        pitch = line + 4 * rng.choice([0, 0, 1, 5, 300])
        direction, wait = rng.choice([IN, OUT]), rng.random() < 0.2
        if near + line * lines > NEAR_BYTES or far + lines * pitch > FAR_BYTES:
            return copies
        copies.append(Copy(near, far, line, lines, pitch, direction, wait))
        near += line * lines + 4 * rng.randrange(3)
        far += lines * pitch + 4 * rng.randrange(3)
    return copies


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("contention", ["on", "off"])
@pytest.mark.parametrize("far", [FAR, FARTHER])
def test_many_copies_under_way(program: bytes, seed: int, contention: str, far: int) -> None:
    """More than the queues take, in both directions at once."""
    copies = many(random.Random(seed), 200)
    assert len(copies) > 20
    perform(program, copies, far, contention=contention)


def test_small_queues(program: bytes) -> None:
    copies = many(random.Random(9), 100)
    small = {"dma_core_queue": 1, "dma_global_queue": 1, "dma_counters": 2, "dma_reads": 1}
    for far in (FAR, FARTHER):
        perform(program, copies, far, **small)


def test_too_few_counters() -> None:
    with pytest.raises(GradletError, match="dma_counters = 3: each of the 4 cores needs one"):
        targets.load("pulp-open", cores=4, sizes={"dma_counters": 3})


def test_what_it_costs(program: bytes) -> None:
    """Starting a copy is a matter of few instructions; nothing to wait for, even fewer."""
    one = Copy(0, 0, 64, 1, 64, IN, wait=False)
    lines = Copy(0x1000, 0x1000, 64, 8, 256, IN, wait=False)
    waited = Copy(0x2000, 0x2000, 1024, 4, 1024, IN)
    nothing = Copy(0, 0, 64, 0, 64, IN)
    copies = [*[one, lines] * 4, *[waited] * 3, *[nothing] * 3]
    cycles = perform(program, copies, contention="off").cycles
    assert cycles[6] <= 25, cycles
    assert cycles[7] <= 28, cycles
    assert 4096 // 8 <= cycles[10] <= 4096 // 8 + 60, cycles
    assert cycles[13] <= 30, cycles


HOST = """#include "gl_port_host.h"
void copy(char *near, char *far, uint32_t line, uint32_t lines, uint32_t pitch, uint32_t in);
void copy(char *near, char *far, uint32_t line, uint32_t lines, uint32_t pitch, uint32_t in)
{
    gl_dma_copy(near, far, line, lines, pitch, in ? GL_DMA_IN : GL_DMA_OUT);
    gl_dma_wait_all();
}
"""


def test_the_host_port_does_the_same(tmp_path: Path) -> None:
    (tmp_path / "copy.c").write_text(HOST)
    path = build_library([tmp_path / "copy.c"], tmp_path / "copy.so", include=includes("pulp"))
    library = ctypes.CDLL(str(path))
    rng = random.Random(3)
    near, far = bytearray(rng.randbytes(NEAR_BYTES)), bytearray(rng.randbytes(FAR_BYTES))
    c_near = (ctypes.c_char * NEAR_BYTES).from_buffer_copy(near)
    c_far = (ctypes.c_char * FAR_BYTES).from_buffer_copy(far)
    for number, (line, lines, pitch, _) in enumerate(SHAPES):
        copy = Copy(0, 0, line, lines, pitch, IN if number % 2 else OUT)
        copy.apply(near, far)
        library.copy(c_near, c_far, line, lines, pitch, copy.direction)
        assert c_near.raw == bytes(near)
        assert c_far.raw == bytes(far)
