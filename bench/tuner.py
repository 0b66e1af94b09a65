"""The tuner against an exhaustive search, over layers of the zoo: depthwise, pointwise and strided
convolutions and a linear layer, each with its forward pass, weight gradient and input gradient.

The space of a call: every combination of tile sizes along its axes (each axis in 1, 2, 3, ... even
parts, in steps of a quarter from 5 parts on) that makes at most 64 tiles and fits into L1, with and
without copying ahead, with every kernel of the catalogue. Loops are in the order that copies least.
The exhaustive search runs all of it on the simulator; what has taken 1.2 times the cycles of the
best that is known is stopped there, or earlier where it is hopeless: that cannot change the best.

reached: cycles of the best of all, over those of the tuner's choice, both from the exhaustive run.
The tuner has its usual settings, and a memory of its own.
times_quicker: seconds to compile a program for one candidate and to simulate that, over the seconds
per candidate of the exhaustive search, with the preparation of all and the compilation of theirs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from common import finish, parser, stderr
from rich.table import Table

import gradlet
from gradlet import compiler, target
from gradlet.plan import Options, Plan, contexts, plan
from gradlet.tune import Settings, Tuned, tune
from gradlet.tune.cache import Cache
from gradlet.tune.measure import UNLIMITED, measure
from gradlet.tune.pool import Pool
from gradlet.tune.program import build
from gradlet.tune.search import Search

LAYERS = {
    "ds-cnn": {
        "depthwise 3x3": ("relu_1", "2.0.weight.next", "d_conv2d_0"),
        "pointwise": ("relu_2", "3.0.weight.next", "d_conv2d_1"),
    },
    "deep-ae": {"linear": ("matmul_9", "18.weight.next", "d_matmul_8")},
    "resnet8": {"3x3, stride 2": ("relu_3", "2.conv1.0.weight.next", "d_relu_2")},
}
STEPS = ("forward", "weight gradient", "input gradient")
COMPILED_ALONE = 3


def planned(name: str, l1: str) -> Plan:
    graph = gradlet.training_graph(gradlet.capture(f"zoo:{name}"))
    return plan(graph, target.load("pulp-open", sizes={"L1": l1}))


def searched(given: Plan, name: str, settings: Settings, cache: Path, pool: Pool) -> Tuned:
    with stderr.status("") as status:

        def progress(done: int, total: int, text: str) -> None:
            status.update(f"{name}: {done} of {total} candidates")

        return tune(
            given,
            settings,
            pool=pool,
            cache=Cache(cache),
            progress=progress,
            only=lambda call: call.name == name,
        )


def compare(given: Plan, name: str, folder: Path, pool: Pool) -> dict[str, Any]:
    """One call: exhaustive first, then the tuner; each with a memory of its own."""
    every = searched(given, name, Settings(exhaustive=True), folder / f"{name}-all", pool)
    few = searched(given, name, Settings(), folder / f"{name}-few", pool)
    chosen = few.nodes[0].wish
    assert chosen is not None
    best = min(every.measured[0].values())
    found = every.measured[0].get(chosen) or few.measured[0][chosen]
    return {
        "call": name,
        "planned_cycles": every.nodes[0].before,
        "exhaustive_cycles": best,
        "exhaustive_evaluations": every.evaluations,
        "exhaustive_seconds": every.seconds,
        "tuned_cycles": found,
        "tuned_evaluations": few.evaluations,
        "tuned_seconds": few.seconds,
        "evaluation_share": few.evaluations / every.evaluations,
        "reached": best / found,
        "model_error": every.model_error,
        "seconds_per_candidate": every.seconds / every.evaluations,
    }


def alone(given: Plan, name: str) -> float:
    """Seconds to compile and simulate a program for one candidate, the median of a few."""
    found = contexts(given.graph, given.target, Options())
    assert found is not None
    tiler, by_name = found
    search = Search(by_name[name].call, tiler, by_name[name], Settings(), given.graph)
    job = search.jobs[search.wanted()[0]]
    times = []
    for _ in range(COMPILED_ALONE):
        with nothing_compiled():
            begin = time.perf_counter()
            elf = build(job.functions.all, given.target)
            compiled = time.perf_counter() - begin
        measure(elf, given.target, [job], [UNLIMITED])  # the simulator itself is there from before
        begin = time.perf_counter()
        measure(elf, given.target, [job], [UNLIMITED])
        times.append(compiled + time.perf_counter() - begin)
    return median(times)


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """With an empty cache of compiled files."""
    before = os.environ.get("GRADLET_CACHE")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["GRADLET_CACHE"] = cache
        compiler._usable.cache_clear()
        try:
            yield
        finally:
            del os.environ["GRADLET_CACHE"]
            if before is not None:
                os.environ["GRADLET_CACHE"] = before
            compiler._usable.cache_clear()


def measured(model: str, l1: str, folder: Path, pool: Pool) -> Iterator[dict[str, Any]]:
    given = planned(model, l1)
    for layer, calls in LAYERS.get(model, {}).items():
        for step, name in zip(STEPS, calls, strict=True):
            row: dict[str, Any] = {"model": model, "layer": layer, "step": step}
            row |= compare(given, name, folder, pool)
            row["seconds_compiled_alone"] = alone(given, name)
            row["times_quicker"] = row["seconds_compiled_alone"] / row["seconds_per_candidate"]
            stderr.print(
                f"{model} {layer}, {step}: {100 * row['reached']:.1f} % with "
                f"{row['tuned_evaluations']} of {row['exhaustive_evaluations']} candidates, "
                f"{row['times_quicker']:.0f} x quicker, {row['exhaustive_seconds']:.0f} s"
            )
            yield row


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    heads = ("model", "layer", "step", "candidates", "measured", "best", "tuned", "reached", "time")
    for column in heads:
        table.add_column(column, justify="left" if column in heads[:3] else "right")
    for row in rows:
        table.add_row(
            *(row[key] for key in ("model", "layer", "step")),
            str(row["exhaustive_evaluations"]),
            f"{100 * row['evaluation_share']:.1f} %",
            f"{row['exhaustive_cycles']:,}",
            f"{row['tuned_cycles']:,}",
            f"{100 * row['reached']:.1f} %",
            f"{row['times_quicker']:.0f} x quicker",
        )
    if rows:
        table.add_row(
            "mean",
            *("" for _ in range(3)),
            f"{100 * mean(row['evaluation_share'] for row in rows):.1f} %",
            *("" for _ in range(2)),
            f"{100 * mean(row['reached'] for row in rows):.1f} %",
            f"{overall(rows):.0f} x quicker",
        )
    return table


def overall(rows: list[dict[str, Any]]) -> float:
    """How much quicker all candidates of all calls are measured."""
    alone = [row["seconds_compiled_alone"] * row["exhaustive_evaluations"] for row in rows]
    return float(sum(alone) / sum(row["exhaustive_seconds"] for row in rows))


def main() -> None:
    options = parser(__doc__ or "")
    options.set_defaults(models=tuple(LAYERS))
    options.add_argument("--l1", default="64k", help="size of L1")
    arguments = options.parse_args()
    rows: list[dict[str, Any]] = []
    pool = Pool()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for model in arguments.models:
                rows += measured(model, arguments.l1, Path(folder), pool)
    finally:
        pool.close()
    finish("tuner", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
