"""Cycles of single units, measured on GVSoC's pulp-open with the same program."""

from __future__ import annotations

from gradlet.sim import SimConfig, simulate
from tests.sim.support import PROGRAMS, assemble
from tests.sim.test_calibration import regions

MEASURED = {  # (cold, warm)
    "div_by_0": (91, 19),
    "rem_by_0": (57, 25),
    "divu_by_0": (191, 151),
    "remu_by_0": (189, 151),
    "divu_by_1": (189, 151),
    "pack_over_load": (123, 29),
    "pack_of_load": (129, 37),
}


def test_cycles_of_units() -> None:
    result = simulate(assemble(PROGRAMS / "units.S"), SimConfig.load("pulp-open"))
    found = {name: (f["cold"], f["warm"]) for name, f in regions(result).items()}
    assert found == MEASURED
