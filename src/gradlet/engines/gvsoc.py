"""GVSoC engine: the golden program of a project on the user's own installation of GVSoC.

It is the same program that the simulator and silicon run: it brings its samples along, prints the
loss and the cycles of each step, and compares with the golden data by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from gradlet.codegen.golden import sample_count
from gradlet.codegen.project import Project
from gradlet.engines.device import build_golden, require_device
from gradlet.engines.model import Run
from gradlet.errors import GradletError
from gradlet.planner.model import Plan
from gradlet.support.cache import held_by, scratch_folder

VARIABLE = "GRADLET_GVSOC"
MODEL = "pulp-open"
MAX_CORES = 8
SIZES = {"L1": 64 * 1024, "L2": 1536 * 1024}
"""Of GVSoC's pulp-open, whose memories cannot be changed from outside."""
LINE = re.compile(r"^step \d+: loss \S+ = 0x([0-9a-f]{8}), cycles (\d+)", flags=re.MULTILINE)


def find(given: str | Path | None = None) -> Path | None:
    """The command: as given, else by GRADLET_GVSOC, else on the PATH. A folder may hold it."""
    name = given or os.environ.get(VARIABLE)
    if not name:
        found = shutil.which("gvsoc")
        return Path(found) if found else None
    for place in ("install/bin/gvsoc", "bin/gvsoc", "gvsoc", ""):
        path = Path(name) / place
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def run(project: Project, *, steps: int = 1, gvsoc: str | Path | None = None) -> Run:
    """Train for some steps on the samples of golden.h; a failed golden check is an error."""
    require_device(project, "gvsoc")
    _check(project.plan, steps)
    with scratch_folder() as folder:
        elf = build_golden(project, folder / "golden.elf", steps=steps)
        text = execute(elf, gvsoc)
    if "PASS" not in text:
        raise GradletError(f"the golden check of '{project.folder}' fails on GVSoC:\n{text}")
    lines = LINE.findall(text)
    if len(lines) != steps:
        raise GradletError(f"GVSoC printed {len(lines)} steps instead of {steps}:\n{text}")
    bits = np.array([int(loss, 16) for loss, _ in lines], np.uint32)
    return Run(
        "gvsoc",
        steps,
        tuple(float(loss) for loss in bits.view(np.float32)),
        tuple(int(cycles) for _, cycles in lines),
    )


def _check(plan: Plan, steps: int) -> None:
    target = plan.target
    if target.gvsoc != MODEL:
        raise GradletError(f"GVSoC's {MODEL} is no '{target.name}'; the engine sim can run it")
    if target.cores > MAX_CORES:
        raise GradletError(f"GVSoC's {MODEL} has {MAX_CORES} cores, the project {target.cores}")
    for memory in target.memories:
        if memory.size > SIZES.get(memory.name, 0):
            raise GradletError(
                f"GVSoC's {MODEL} has {SIZES.get(memory.name, 0):,} bytes of {memory.name}, the "
                f"project was built for {memory.size:,}; the engine sim can run it"
            )
    held, there = sample_count(plan), min(len(v) for v in plan.graph.samples.values())
    if held < there and steps * plan.graph.accumulate > held:
        raise GradletError(
            f"the program holds {held} samples, enough for {held // plan.graph.accumulate} steps; "
            f"{steps} were asked for. The engine sim has no such limit"
        )


def execute(elf: Path, gvsoc: str | Path | None = None) -> str:
    """What a program prints on GVSoC."""
    command = find(gvsoc)
    if command is None:
        raise GradletError(
            "GVSoC is not here: there is no command `gvsoc` on the PATH. Name it by "
            f"--gvsoc PATH or by the variable {VARIABLE}; the engine sim needs no installation"
        )
    with scratch_folder() as work:
        done = subprocess.run(
            [str(command), f"--target={MODEL}", f"--work-dir={work}", f"--binary={elf}", "run"],
            capture_output=True,
            text=True,
            check=False,
            cwd=work,
            pass_fds=held_by(work),
        )
    if "tensors checked" not in done.stdout:
        said = (done.stdout + done.stderr).strip()[-1500:]
        raise GradletError(f"{command} did not run the program (status {done.returncode}):\n{said}")
    return done.stdout
