"""Scripts for programs/script.c: what each core does, row by row, on a machine of the test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from gradlet.sim import Machine, SimConfig, Symbols
from gradlet.targets import target as targets
from tests.sim.c_programs import compile_c
from tests.sim.support import PROGRAMS

COPY, WAIT, LOAD, STORE, BARRIER, STATUS, FREE = range(7)
IN, OUT = 1 << 17, 0
CORES = 4
ROW = struct.Struct("<9I")
LIMIT = 3_000_000


@dataclass(frozen=True)
class Row:
    what: int
    core: int = 0
    near: int = 0
    far: int = 0
    line_bytes: int = 0
    lines: int = 1
    pitch: int = 0
    direction: int = IN


def copy(near: int, far: int, line: int, lines: int = 1, pitch: int = 0, **more: int) -> Row:
    return Row(COPY, near=near, far=far, line_bytes=line, lines=lines, pitch=pitch, **more)


@cache
def program() -> bytes:
    with TemporaryDirectory() as folder:
        target = targets.load("pulp-open", cores=CORES)
        return compile_c(PROGRAMS / "script.c", target, Path(folder))


def address(name: str) -> int:
    place = Symbols(program()).address(name)
    assert place
    return place


def prepare(rows: Sequence[Row], **settings: object) -> Machine:
    """A machine that will perform them; the caller may watch it, and runs it."""
    settings = {"cores": CORES, "contention": False, **settings}
    machine = Machine(SimConfig.load(overrides=settings))
    assert machine.load_elf(program()) is None
    machine.write(address("rows"), struct.pack("<I", len(rows)))
    for i, r in enumerate(rows):
        fields = (r.what, r.core, r.near, r.far, r.line_bytes, r.lines, r.pitch, r.direction, 0)
        machine.write(address("table") + ROW.size * i, ROW.pack(*fields))
    return machine


def cycles(machine: Machine, rows: Sequence[Row]) -> list[int]:
    """What each row took."""
    table = machine.read(address("table"), ROW.size * len(rows))
    return [row[-1] for row in ROW.iter_unpack(table)]
