"""How much of the copying between memories is hidden behind computing, on the simulated cluster.

Cycles with a transfer under way, and those of them in which a core waits for one, over the second
training step, with the next tile fetched ahead (double) and without (single).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from common import finish, parser, stderr
from rich.table import Table

import gradlet
from gradlet.engines.costs import run_json

MODELS = ("resnet8", "ds-cnn")


def measure(name: str, l1: str, buffers: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        project = gradlet.build(
            f"zoo:{name}", Path(folder) / name, memories={"L1": l1}, buffers=buffers
        )
        value = run_json(project, gradlet.run(project, steps=2))
    copying = value["transfers"] or {"cycles": 0, "visible": 0, "hidden": 1.0}
    return {
        "model": name,
        "l1": l1,
        "buffers": buffers,
        "tiles": sum(tiling.count for tiling in project.plan.tilings),
        "cycles": value["cycles"][-1],
        "mac_per_cycle": value["mac_per_cycle"],
        **{f"transfer_{key}": number for key, number in copying.items()},
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    heads = ("model", "L1", "buffers", "tiles", "cycles", "copying", "waited for", "hidden")
    for column in heads:
        table.add_column(column, justify="left" if column in heads[:3] else "right")
    for row in rows:
        table.add_row(
            row["model"],
            row["l1"],
            row["buffers"],
            str(row["tiles"]),
            f"{row['cycles']:,}",
            f"{row['transfer_cycles']:,}",
            f"{row['transfer_visible']:,}",
            f"{100 * row['transfer_hidden']:.1f} %",
        )
    return table


def main() -> None:
    options = parser(__doc__ or "")
    options.set_defaults(models=MODELS)
    options.add_argument("--l1", nargs="+", default=["64k"], help="sizes of L1")
    arguments = options.parse_args()
    rows = []
    for name in arguments.models:
        for l1 in arguments.l1:
            for buffers in ("double", "single"):
                with stderr.status(f"{name}, {l1} of L1, {buffers}"):
                    rows.append(measure(name, l1, buffers))
    finish("transfers", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
