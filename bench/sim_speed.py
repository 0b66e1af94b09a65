"""How fast the simulator is: an fp32 matrix product on 8 cores and on 1 core.

Writes one JSON document: cluster cycles per second (8 cores), instructions per second (1 core),
and the same for the other settings that users choose.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from gradlet.sim import SimConfig, simulate  # noqa: E402

ASSEMBLE = [
    "-target",
    "riscv32-freestanding-none",
    "-mcpu=generic_rv32+m+c+zicsr+zfinx",
    "-mabi=ilp32",
    "-nostdlib",
    "-static",
    "-g0",
    "-mno-relax",
    f"-Wl,-T,{HERE / 'sim_speed.ld'}",
]
TARGETS = {"cluster_cycles_per_second": 5e6, "instructions_per_second": 60e6}


def assemble(directory: Path, cores: int, repeat: int) -> Path:
    """The benchmark program for this many cores."""
    output = directory / f"speed{cores}.elf"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            *ASSEMBLE,
            f"-DNC={cores}",
            f"-DREPEAT={repeat}",
            str(HERE / "sim_speed.S"),
            "-o",
            str(output),
        ],
        check=True,
    )
    return output


def measure(elf: Path, config: SimConfig, runs: int) -> dict[str, float]:
    """Best of several runs: the machine may be busy with something else."""
    results = [simulate(elf, config) for _ in range(runs)]
    best = min(results, key=lambda result: result.seconds)
    instructions = sum(core.instructions for core in best.cores)
    return {
        "cycles": best.cycles,
        "instructions": instructions,
        "seconds": best.seconds,
        "cluster_cycles_per_second": best.cycles / best.seconds,
        "instructions_per_second": instructions / best.seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="where to write the JSON (else stdout)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=60, help="products per run on 8 cores")
    arguments = parser.parse_args()
    cases: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        many = assemble(Path(name), 8, arguments.repeat)
        one = assemble(Path(name), 1, max(1, arguments.repeat // 8))
        table: list[tuple[str, Path, dict[str, object]]] = [
            ("8 cores", many, {}),
            ("8 cores, contention off", many, {"contention": False}),
            ("8 cores, 4 FPUs", many, {"fpus": 4}),
            ("1 core", one, {"cores": 1}),
            ("1 core of 8", one, {}),
        ]
        for label, elf, settings in table:
            config = SimConfig.load(overrides=settings)
            cases[label] = measure(elf, config, arguments.runs)
    speed = cases["8 cores"]["cluster_cycles_per_second"]
    rate = cases["1 core"]["instructions_per_second"]
    document = {"cases": cases, "targets": TARGETS, "pass": speed >= 5e6 and rate >= 60e6}
    text = json.dumps(document, indent=2)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    else:
        print(text)
    return 0 if document["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
