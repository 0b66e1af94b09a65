"""The tuner against an exhaustive search, over layers of the zoo.

For each call: the cycles of the best that the tuner finds with at most a twentieth of the
evaluations, against the best of all; and the time per candidate against compiling and simulating a
program for each, in the same run.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from common import finish, parser, stderr
from rich.table import Table

import gradlet
from gradlet import target
from gradlet.plan import Plan, plan
from gradlet.tune import Settings, tune
from gradlet.tune.cache import Cache
from gradlet.tune.measure import measure
from gradlet.tune.pool import Pool
from gradlet.tune.program import build
from gradlet.tune.search import Search

SHARE = 0.05
GRID = 300
"""Combinations of tile sizes per layer and buffer mode; times as many kernels as there are."""
LAYERS = {
    "resnet8": ("conv2d_4", "2.conv2.weight.next", "d_conv2d_6"),
    "ds-cnn": ("relu_2", "relu_1", "3.0.weight.next"),
}


def planned(name: str, l1: str) -> Plan:
    graph = gradlet.training_graph(gradlet.capture(f"zoo:{name}"))
    return plan(graph, target.load("pulp-open", sizes={"L1": l1}))


def compare(given: Plan, name: str, folder: Path) -> dict[str, Any]:
    """One call: exhaustive first, then the tuner with its budget; each with a memory of its own."""

    def best(settings: Settings, place: str) -> tuple[int, int, float]:
        begin = time.perf_counter()
        found = tune(
            given,
            settings,
            pool=Pool(),
            cache=Cache(folder / place),
            only=lambda call: call.name == name,
        )
        cycles = min(found.measured[0].values())
        return cycles, found.evaluations, time.perf_counter() - begin

    every, evaluations, seconds = best(Settings(exhaustive=True, grid=GRID), f"{name}-all")
    budget = max(4, int(SHARE * evaluations))
    keep = max(3, budget // 2)
    rounds = max(0, (budget - keep) // 3)
    few, used, _ = best(Settings(keep=keep, rounds=rounds, around=3), f"{name}-few")
    return {
        "call": name,
        "exhaustive_cycles": every,
        "exhaustive_evaluations": evaluations,
        "tuned_cycles": few,
        "tuned_evaluations": used,
        "evaluation_share": used / evaluations,
        "reached": every / few,
        "seconds_per_candidate": seconds / evaluations,
    }


def alone(given: Plan, name: str) -> float:
    """Seconds to compile and simulate a program for one candidate."""
    from gradlet.plan import Options, contexts

    found = contexts(given.graph, given.target, Options())
    assert found is not None
    tiler, by_name = found
    search = Search(by_name[name].call, tiler, by_name[name], Settings(keep=1), given.graph)
    wish = search.wanted()[0]
    job = search.jobs[wish]
    with tempfile.TemporaryDirectory() as cache:
        import os

        from gradlet import compiler

        before = os.environ.get("GRADLET_CACHE")
        os.environ["GRADLET_CACHE"] = cache
        compiler._usable.cache_clear()
        begin = time.perf_counter()
        measure(build(job.functions.all, given.target), given.target, [job])
        seconds = time.perf_counter() - begin
        if before is None:
            del os.environ["GRADLET_CACHE"]
        else:
            os.environ["GRADLET_CACHE"] = before
        compiler._usable.cache_clear()
    return seconds


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    heads = ("model", "call", "exhaustive", "evaluations", "tuned", "share", "reached", "time")
    for column in heads:
        table.add_column(column, justify="left" if column in heads[:2] else "right")
    for row in rows:
        table.add_row(
            row["model"],
            row["call"],
            f"{row['exhaustive_cycles']:,}",
            str(row["exhaustive_evaluations"]),
            f"{row['tuned_cycles']:,}",
            f"{100 * row['evaluation_share']:.1f} %",
            f"{100 * row['reached']:.1f} %",
            f"{row['times_quicker']:.0f} x quicker",
        )
    return table


def main() -> None:
    options = parser(__doc__ or "")
    options.set_defaults(models=tuple(LAYERS))
    options.add_argument("--l1", default="64k", help="size of L1")
    arguments = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            given = planned(model, arguments.l1)
            for name in LAYERS.get(model, ()):
                with stderr.status(f"{model}: {name}"):
                    row = {"model": model, **compare(given, name, Path(folder))}
                    row["seconds_compiled_alone"] = alone(given, name)
                    per_candidate = row["seconds_per_candidate"]
                    row["times_quicker"] = row["seconds_compiled_alone"] / per_candidate
                rows.append(row)
    finish("tuner", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
