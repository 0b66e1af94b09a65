"""Every model of the zoo in little memory: verified against PyTorch, and how near its bounds it is.

With 32, 64 and 128 kB of L1 and 1.5 MB of L2; mobilenet-v1-025 with an L3 of 8 MB, and with its
last layers trained alone. Bits are compared with the host's build of the same plan.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import finish, parser, stderr
from rich.table import Table

import gradlet

SIZES = ("32k", "64k", "128k")
WAYS: dict[str, tuple[dict[str, str], ...]] = {
    "mobilenet-v1-025": ({"L3": "8M"}, {"update": "last:18"}),
}
"""What a model needs besides, if anything."""


MIXED: dict[str, tuple[dict[str, str], ...]] = {"deep-ae": ({"L3": "8M"},)}
"""With `mixed`, whose weights and gradients together are more than L2."""


def measure(name: str, l1: str, way: dict[str, str], steps: int, dtype: str) -> dict[str, Any]:
    memories = {"L1": l1, **{key: size for key, size in way.items() if key == "L3"}}
    recipe = gradlet.Recipe(update=way["update"]) if "update" in way else None
    wish = None if dtype == "f32" else dtype
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        project = gradlet.build(
            f"zoo:{name}", Path(folder) / name, memories=memories, recipe=recipe, dtype=wish
        )
        built = time.perf_counter() - begin
        verdict = gradlet.verify(project, steps=steps)
    plan = project.plan
    levels = {
        memory.name: {
            "used": plan.taken(memory),
            "room": plan.target.room(memory),
            "ratio": plan.taken(memory) / max(1, plan.bound(memory)),
        }
        for memory in plan.target.memories
    }
    return {
        "model": name,
        "dtype": dtype,
        "l1": l1,
        "way": way,
        "pass": verdict.passed,
        "bit_identical": dict(verdict.bit_identical),
        "levels": levels,
        "worst_ratio": max(level["ratio"] for level in levels.values()),
        "fits": all(level["used"] <= level["room"] for level in levels.values()),
        "tiles": sum(tiling.count for tiling in plan.tilings),
        "built_in_seconds": built,
        "seconds": time.perf_counter() - begin,
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    heads = ("model", "L1", "with", "verified", "same bits", "tiles", "of the bound", "fits")
    for column in heads:
        table.add_column(column)
    for row in rows:
        table.add_row(
            row["model"],
            row["l1"],
            ", ".join(f"{key} {value}" for key, value in row["way"].items()),
            "yes" if row["pass"] else "NO",
            "yes" if all(row["bit_identical"].values()) else "NO",
            str(row["tiles"]),
            f"{row['worst_ratio']:.3f}",
            "yes" if row["fits"] else "NO",
        )
    return table


def main() -> int:
    options = parser(__doc__ or "")
    options.add_argument("--l1", nargs="+", default=SIZES, help="sizes of L1")
    options.add_argument("--steps", type=int, default=2, help="training steps to compare")
    options.add_argument("--dtype", default="f32", help="f32, f16, bf16 or mixed")
    arguments = options.parse_args()
    dtype = arguments.dtype
    ways = {**WAYS, **(MIXED if dtype == "mixed" else {})}
    rows = []
    for name in arguments.models:
        for way in ways.get(name, ({},)):
            for l1 in arguments.l1:
                with stderr.status(f"{name}, {l1} of L1, {dtype}"):
                    rows.append(measure(name, l1, way, arguments.steps, dtype))
    title = "zoo" if dtype == "f32" else f"zoo-{dtype}"
    finish(title, rows, as_table(rows), as_json=arguments.json)
    good = (r["pass"] and r["fits"] and all(r["bit_identical"].values()) for r in rows)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
