"""What the tool itself costs: seconds, memory and bytes of building and verifying some models.

Each command runs in a process of its own, and twice: the second finds in the cache what the first
compiled. Processor time is that of all processes together; other programs on the machine stretch
the wall clock, but hardly that. Peak memory is that of the largest process. All commands of a model
together are stopped after `--seconds` of the clock, and its row says so. The rows are written as
they come. What takes minutes is measured if it is asked for: `--models wav2letter`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import finish, parser, save, stderr
from rich.table import Table

MODELS = Path(__file__).with_name("tool_models.py")
PULP = ("--target", "pulp-open", "--l2", "8M", "--l3", "64M")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "dense": ("dense", ("--target", "host")),
    "liquid": ("liquid", ("--target", "host")),
    "liquid-pulp": ("liquid", PULP),
    "closed-form-pulp": ("closed_form", PULP),
    "albert-pulp": ("albert", PULP),
    "encoder-pulp": ("encoder", PULP),
}
LARGE: dict[str, tuple[str, tuple[str, ...]]] = {
    "wav2letter": ("wav2letter", ("--target", "host")),
}
SECONDS = 120.0
NAME = "tool_speed"


@dataclass(frozen=True)
class Cost:
    """Of one command: wall clock and processor seconds, bytes of its largest process, status."""

    wall: float
    processor: float
    peak: int
    status: int


def cost(command: Sequence[str], environment: dict[str, str], seconds: float) -> Cost:
    """A command that takes longer is ended, with all that it has started."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "gradlet", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
        start_new_session=True,
    )

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(max(seconds, 0.0), end)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begin
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, process.returncode)


def measure(case: str, folder: Path, seconds: float) -> dict[str, Any]:
    model, options = {**CASES, **LARGE}[case]
    project, environment = folder / "project", {"GRADLET_CACHE": str(folder / "cache")}
    row: dict[str, Any] = {"case": case, "outcome": "done"}
    commands = {
        "build": ["build", f"{MODELS}:{model}", "-o", str(project), *options],
        "verify": ["verify", str(project)],
    }
    until = time.monotonic() + seconds
    for name, run in ((name, run) for name in commands for run in ("cold", "warm")):
        found = cost(commands[name], environment, until - time.monotonic())
        if time.monotonic() >= until:
            row["outcome"] = f"stopped in {name} ({run}) after {seconds:.0f} s"
            break
        row[f"{name}_{run}"] = round(found.wall, 2)
        row[f"{name}_{run}_processor"] = round(found.processor, 2)
        row[f"{name}_peak"] = max(row.get(f"{name}_peak", 0), found.peak)
        row[f"{name}_status"] = found.status
        stderr.print(f"  {name}, {run}: {found.wall:.1f} s")
        if found.status:
            row["outcome"] = f"{name} ({run}) ends with status {found.status}"
            break
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
        "outcome",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "outcome") else "right")
    for row in rows:
        cells = [row["case"]]
        for name in ("build", "verify"):
            keys = (f"{name}_{run}" for run in ("cold", "warm", "warm_processor"))
            cells += [f"{row[key]:.1f}" if key in row else "" for key in keys]
            peak = row.get(f"{name}_peak")
            cells.append(f"{peak / 1e6:.0f}" if peak else "")
        table.add_row(*cells, f"{row['project_bytes'] / 1e3:,.0f}", row["outcome"])
    return table


def main() -> None:
    options = parser(__doc__ or "")
    options.set_defaults(models=list(CASES))
    options.add_argument("--seconds", type=float, default=SECONDS, help="of one model at most")
    arguments = options.parse_args()
    if unknown := set(arguments.models) - {*CASES, *LARGE}:
        options.error(f"no such model: {', '.join(sorted(unknown))}; there are {[*CASES, *LARGE]}")
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(arguments.models, 1):
        stderr.print(f"{name} ({number} of {len(arguments.models)})")
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, Path(folder), arguments.seconds))
        save(NAME, rows)
    finish(NAME, rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
