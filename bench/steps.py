"""Cycles of whole training steps on the simulated cluster: as planned, and tuned.

tutorial-cnn with all data in L1, deep-ae, ds-cnn and resnet8 with 64 kB of L1 and data in L2;
resnet8 on one core as well.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from common import finish, parser, stderr
from rich.table import Table

import gradlet
from gradlet.tuner.project import tune_project

CASES = (
    ("tutorial-cnn", "256k", 8),
    ("deep-ae", "64k", 8),
    ("ds-cnn", "64k", 8),
    ("resnet8", "64k", 8),
    ("resnet8", "64k", 1),
)


def measure(name: str, l1: str, cores: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        project = gradlet.build(f"zoo:{name}", Path(folder) / "p", memories={"L1": l1}, cores=cores)
        value = tune_project(project).to_json()
    kept = ("before_cycles", "after_cycles", "gain", "mac_per_cycle", "transfers", "evaluations")
    return {"model": name, "l1": l1, "cores": cores, **{key: value[key] for key in kept}}


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in ("model", "L1", "cores", "planned", "tuned", "MAC/cycle", "of copying hidden"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        hidden = f"{100 * row['transfers']['hidden']:.1f} %" if row["transfers"] else ""
        cycles = (f"{row['before_cycles']:,}", f"{row['after_cycles']:,}")
        rate = f"{row['mac_per_cycle']:.2f}"
        table.add_row(row["model"], row["l1"], str(row["cores"]), *cycles, rate, hidden)
    return table


def main() -> None:
    arguments = parser(__doc__ or "").parse_args()
    rows = []
    for name, l1, cores in CASES:
        if name in arguments.models:
            with stderr.status(f"{name}, {l1} of L1, {cores} core(s)"):
                rows.append(measure(name, l1, cores))
    finish("steps", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
