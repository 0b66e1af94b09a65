"""Peak memory of training against its lower bound, for every model of the zoo.

The bound is the most that is alive at once in the order of the plan: what no placement can beat.
"""

from __future__ import annotations

import time
from typing import Any

from common import finish, parser, stderr
from rich.table import Table

import gradlet
from gradlet import zoo
from gradlet.ir.recipe import Recipe
from gradlet.targets import target

BATCHES = (1, 8)
UPDATES = ("all", "last:1")


def measure(name: str, batch: int, update: str) -> dict[str, Any]:
    begin = time.perf_counter()
    captured = gradlet.capture(f"zoo:{name}", batch=batch)
    recipe = Recipe(loss=zoo.get(name).loss, update=update)
    plan = gradlet.plan(gradlet.training_graph(captured, recipe), target.load("host"))
    return {
        "model": name,
        "batch": batch,
        "update": update,
        "used": plan.used,
        "arena": plan.region_bytes("arena"),
        "lower_bound": plan.lower_bound,
        "ratio": plan.used / plan.lower_bound,
        "seconds": time.perf_counter() - begin,
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in ("model", "batch", "update", "bytes", "lower bound", "ratio", "planned in s"):
        table.add_column(column, justify="left" if column in ("model", "update") else "right")
    for row in rows:
        table.add_row(
            row["model"],
            str(row["batch"]),
            row["update"],
            f"{row['used']:,}",
            f"{row['lower_bound']:,}",
            f"{row['ratio']:.4f}",
            f"{row['seconds']:.2f}",
        )
    return table


def main() -> None:
    arguments = parser(__doc__ or "").parse_args()
    rows = []
    for name in arguments.models:
        for batch in BATCHES:
            for update in UPDATES:
                with stderr.status(f"{name}, batch {batch}, update {update}"):
                    rows.append(measure(name, batch, update))
    finish("memory", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
