"""The cycle model against the reference: every calibration program, every configuration."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import statistics
import struct
from pathlib import Path
from typing import Any

import pytest

from gradlet.sim import SimConfig, SimResult, simulate
from tests.sim.support import CALIBRATION, assemble

REFERENCE = json.loads((CALIBRATION / "results.json").read_text())
PROGRAMS = sorted(REFERENCE["programs"])
CONFIGURATIONS = {
    name: {"fpus": value["fpu"], "contention": value["contention"]}
    for name, value in REFERENCE["configs"].items()
}
LINE = re.compile(r"(\S+) cold=(\d+) warm=(\d+) ins=(\d+)(?: sum=(\w+))?$")
MAX_CYCLES = 50_000_000


@functools.cache
def run(program: str, configuration: str, pad: int = 0) -> SimResult:
    config = SimConfig.load("pulp-open", CONFIGURATIONS[configuration])
    elf = assemble(CALIBRATION / f"{program}.S", PAD=pad)
    return simulate(elf, config, max_cycles=MAX_CYCLES)


def regions(result: SimResult) -> dict[str, dict[str, Any]]:
    found = {}
    for line in result.stdout.splitlines():
        match = LINE.match(line)
        assert match, line
        name, cold, warm, ins, checksum = match.groups()
        found[name] = {"cold": int(cold), "warm": int(warm), "ins": int(ins), "sum": checksum}
    return found


def polls(region: str) -> bool:
    """Whether the count of instructions depends on the timing of a DMA transfer."""
    return "poll" in region


def image_digest(elf: Path) -> str:
    data = elf.read_bytes()
    (offset,) = struct.unpack_from("<I", data, 28)
    size, count = struct.unpack_from("<HH", data, 42)
    digest = hashlib.sha256()
    for i in range(count):
        kind, at, address, _, length = struct.unpack_from("<5I", data, offset + i * size)
        if kind == 1 and length:
            digest.update(struct.pack("<I", address) + data[at : at + length])
    return digest.hexdigest()


@pytest.mark.parametrize("program", PROGRAMS)
def test_image_is_the_one_that_was_measured(program: str) -> None:
    elf = assemble(CALIBRATION / f"{program}.S", PAD=0)
    assert image_digest(elf) == REFERENCE["programs"][program]["image_sha256"]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str, configuration: str) -> None:
    reference = REFERENCE["programs"][program]
    result = run(program, configuration)
    assert result.exit_code == reference["runs"][configuration]["exit"]
    found = regions(result)
    assert found.keys() == reference["regions"].keys()
    for name, expected in reference["regions"].items():
        figures = expected[configuration]
        assert found[name]["sum"] == figures["sum"], name
        if not polls(name):
            assert found[name]["ins"] == figures["ins"], name
        low = high = figures["warm"]
        if figures["noisy"]:
            shifted = [value - pad for pad, value in enumerate(figures["warm_pad"])]
            low, high = min(shifted), max(shifted)
        warm = found[name]["warm"]
        assert low - (0.05 * low + 6) <= warm <= high + 0.05 * high + 6, (name, warm, low, high)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_median_error(configuration: str) -> None:
    errors = []
    for program in PROGRAMS:
        for name, found in regions(run(program, configuration)).items():
            figures = REFERENCE["programs"][program]["regions"][name][configuration]
            errors.append(abs(found["warm"] - figures["warm"]) / figures["warm"])
    assert len(errors) == sum(len(p["regions"]) for p in REFERENCE["programs"].values())
    assert statistics.median(errors) <= 0.01


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_output_is_the_reference_to_the_letter(configuration: str) -> None:
    """Stricter than asked: cold, warm, instructions and checksums agree in every region."""
    for program in PROGRAMS:
        expected = REFERENCE["programs"][program]["runs"][configuration]["stdout"]
        assert run(program, configuration).stdout == expected, program


@pytest.mark.parametrize("program", ["icache8", "mm_4x4", "tcdm_stride", "dma_cores8", "fpu_share"])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_other_alignments(program: str, configuration: str) -> None:
    """Nops at the start of every region shift code and phases: the model must follow."""
    for pad in (1, 6):
        for name, found in regions(run(program, configuration, pad)).items():
            figures = REFERENCE["programs"][program]["regions"][name][configuration]
            assert found["warm"] == figures["warm_pad"][pad], (name, pad)
            assert found["cold"] == figures["cold_pad"][pad], (name, pad)
