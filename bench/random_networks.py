"""Random networks through build and verify: how many held, and what the others stopped with.

Each seed draws a PyTorch module with weights of every form (tests/modules.py), a recipe, a layout
and a device: the host, or pulp-open with 16 to 64 kB of L1. A row tells what became of it: `held`,
`too large` (it does not fit, and the message says so), `refused` (by a clear message), `wrong`
(verify fails, or bits differ), `broken` (anything else).

Rows are written as they come. `--resume` keeps those that are there, of other targets too:

    python bench/random_networks.py --target host --count 1000 --jobs 2
    python bench/random_networks.py --target pulp-open --count 200 --jobs 2 --resume
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import finish, parser, save, saved, stderr
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

import gradlet
from gradlet.errors import DoesNotFit
from tests.modules import SIZES, Draw, draw

OUTCOMES = ("held", "too large", "refused", "wrong", "broken")
OURS = ("not sound", "does not compute what", "the C compiler")
"""What refusals say that are faults of ours."""
NAME = "random_networks"
OFTEN = 10.0
"""Seconds between two writings of the rows."""
LIFE = 100
"""So many networks are tried by a process before a new one takes over: memory stays bounded."""
Row = dict[str, Any]


def outcome(drawn: Draw, steps: int) -> tuple[str, str]:
    """What became of it, and a line about that."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            project = gradlet.build(
                drawn.module,
                Path(folder) / "p",
                inputs=drawn.inputs,
                recipe=drawn.recipe,
                **drawn.options,
            )
            verdict = gradlet.verify(project, steps=steps)
    except DoesNotFit as error:
        return "too large", str(error)
    except gradlet.GradletError as error:
        return "broken" if any(word in str(error) for word in OURS) else "refused", str(error)
    except Exception as error:  # a campaign goes on: the row tells
        return "broken", f"{type(error).__name__}: {error}"
    if verdict.passed and all(verdict.bit_identical.values()):
        return "held", ""
    return "wrong", f"{verdict.first_wrong} bits {dict(verdict.bit_identical)}"


def on(drawn: Draw, target: str) -> Draw:
    """The same network for this device; '' is the one that was drawn."""
    if target == "host":
        kept = {k: v for k, v in drawn.options.items() if k in ("batch", "layout")}
        return replace(drawn, options={**kept, "target": "host"})
    if target == "pulp-open" and "memories" not in drawn.options:
        size = random.Random(drawn.seed).choice(SIZES)
        options = {key: value for key, value in drawn.options.items() if key != "target"}
        return replace(drawn, options={**options, "memories": {"L1": size}})
    return drawn


def tried(seed: int, target: str, steps: int) -> Row:
    """The row of a seed. Seconds by the clock, and of processors: children too, once they ended."""
    torch.set_num_threads(1)
    begin, spent = time.perf_counter(), _processor_seconds()
    row: Row = {"seed": seed, "target": target}
    try:
        drawn = on(draw(seed), target)
    except Exception as error:  # a network that PyTorch itself cannot run
        return {**row, "outcome": "broken", "why": f"not drawn: {error}"}
    found, why = outcome(drawn, steps)
    return {
        **row,
        "what": drawn.label,
        "outcome": found,
        "why": why,
        "seconds": round(time.perf_counter() - begin, 3),
        "processor": round(_processor_seconds() - spent, 3),
    }


def _processor_seconds() -> float:
    return sum(os.times()[:4])


def rows_of(seeds: Sequence[int], target: str, steps: int, jobs: int) -> Iterator[Row]:
    """As they get ready, by so many processes."""
    trying = partial(tried, target=target, steps=steps)
    if jobs == 1:
        yield from map(trying, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=LIFE) as pool:
        for done in as_completed([pool.submit(trying, seed) for seed in seeds]):
            yield done.result()


def campaign(seeds: Sequence[int], rows: list[Row], arguments: Any) -> None:
    """Try what has no row yet; rows are written every now and then, and whatever ends this."""
    begin = written = time.monotonic()
    try:
        found = rows_of(seeds, arguments.target, arguments.steps, arguments.jobs)
        for count, row in enumerate(found, 1):
            rows.append(row)
            if row["outcome"] not in ("held", "too large"):
                text = f"{row.get('what', row['seed'])}: {row['outcome']}: {row['why']}"
                stderr.print(text, markup=False, highlight=False)
            if time.monotonic() > written + OFTEN:
                written = time.monotonic()
                save(NAME, rows)
                left = (written - begin) / count * (len(seeds) - count)
                stderr.print(f"{count} of {len(seeds)}, about {left / 60:.1f} min left")
    finally:
        rows.sort(key=lambda row: (row.get("target", ""), row["seed"]))
        save(NAME, rows)


def main() -> int:
    options = parser(__doc__ or "")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--count", type=int, default=200, help="how many networks")
    options.add_argument("--steps", type=int, default=2, help="training steps to compare")
    options.add_argument("--target", default="", choices=["host", "pulp-open"], help="all on one")
    options.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options.add_argument("--resume", action="store_true", help="keep the rows that are there")
    arguments = options.parse_args()
    rows = saved(NAME) if arguments.resume else []
    known = {row["seed"] for row in rows if row.get("target", "") == arguments.target}
    seeds = range(arguments.first, arguments.first + arguments.count)
    campaign([seed for seed in seeds if seed not in known], rows, arguments)
    counts = Counter(row["outcome"] for row in rows)
    table = Table(box=None)
    table.add_column("outcome")
    table.add_column("networks")
    for name in OUTCOMES:
        table.add_row(name, str(counts[name]))
    finish(NAME, rows, table, as_json=arguments.json)
    return 1 if counts["wrong"] or counts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
