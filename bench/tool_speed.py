"""What the tool itself costs: seconds, memory and bytes of building and verifying some models.

Each command runs in a process of its own, and twice: the second finds in the cache what the first
compiled. Processor time is that of all processes together; other programs on the machine stretch
the wall clock, but hardly that. Peak memory is that of the largest process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import finish, parser, stderr
from rich.table import Table

MODELS = Path(__file__).with_name("tool_models.py")
PULP = ("--target", "pulp-open", "--l2", "8M", "--l3", "64M")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "dense": ("dense", ("--target", "host")),
    "wav2letter": ("wav2letter", ("--target", "host")),
    "liquid": ("liquid", ("--target", "host")),
    "liquid-pulp": ("liquid", PULP),
    "closed-form-pulp": ("closed_form", PULP),
    "albert-pulp": ("albert", PULP),
    "encoder-pulp": ("encoder", PULP),
}


@dataclass(frozen=True)
class Cost:
    """Of one command: wall clock and processor seconds, bytes of its largest process, status."""

    wall: float
    processor: float
    peak: int
    status: int


def cost(command: Sequence[str], environment: dict[str, str]) -> Cost:
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "gradlet", *command],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, process.returncode)


def measure(case: str, folder: Path) -> dict[str, Any]:
    model, options = CASES[case]
    project, environment = folder / "project", {"GRADLET_CACHE": str(folder / "cache")}
    row: dict[str, Any] = {"case": case}
    commands = {
        "build": ["build", f"{MODELS}:{model}", "-o", str(project), *options],
        "verify": ["verify", str(project)],
    }
    for name, command in commands.items():
        for run in ("cold", "warm"):
            found = cost(command, environment)
            row[f"{name}_{run}"] = round(found.wall, 2)
            row[f"{name}_{run}_processor"] = round(found.processor, 2)
            row[f"{name}_peak"] = max(row.get(f"{name}_peak", 0), found.peak)
            row[f"{name}_status"] = found.status
    row["bytes"] = {
        path.relative_to(project).as_posix(): path.stat().st_size
        for path in sorted(project.rglob("*"))
        if path.is_file()
    }
    row["project_bytes"] = sum(row["bytes"].values())
    return row


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    columns = (
        "model",
        "build s",
        "warm",
        "CPU",
        "MB",
        "verify s",
        "warm",
        "CPU",
        "MB",
        "project kB",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        cells = [row["case"]]
        for name in ("build", "verify"):
            cells += [f"{row[f'{name}_{run}']:.1f}" for run in ("cold", "warm", "warm_processor")]
            cells.append(f"{row[f'{name}_peak'] / 1e6:.0f}")
        table.add_row(*cells, f"{row['project_bytes'] / 1e3:,.0f}")
    return table


def main() -> None:
    options = parser(__doc__ or "")
    options.set_defaults(models=list(CASES))
    arguments = options.parse_args()
    rows = []
    for name in arguments.models:
        stderr.print(name)
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, Path(folder)))
    finish("tool_speed", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
