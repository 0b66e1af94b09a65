"""One training step on the host, one thread, batch 1: the generated C beside PyTorch eager.

The two take turns, so that a machine that slows down slows both; medians over all repetitions.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import finish, parser, stderr
from rich.table import Table

import gradlet
from gradlet import zoo
from gradlet.codegen.project import Project
from gradlet.engines import host
from gradlet.ir.recipe import Recipe
from gradlet.support import compiler

ROUNDS = 5
MOST_STEPS = 1000
LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": torch.nn.functional.cross_entropy,
    "mse": torch.nn.functional.mse_loss,
}


class Eager:
    """The same step in PyTorch: zero_grad, forward, loss, backward, SGD."""

    def __init__(self, model: zoo.ZooModel) -> None:
        self.module, (self.x,), self.y = model.make()
        self.loss = LOSSES[model.loss]
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=Recipe.lr)

    def step(self, index: int) -> float:
        at = slice(index % len(self.x), index % len(self.x) + 1)
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss(self.module(self.x[at]), self.y[at]).backward()
        self.optimizer.step()
        return time.perf_counter() - begin

    def times(self, seconds: float) -> list[float]:
        end = time.perf_counter() + seconds
        spent = [self.step(0)]
        while time.perf_counter() < end or len(spent) < 5:
            spent.append(self.step(len(spent)))
        return spent[1:]


def c_steps(project: Project, chosen: compiler.Compiler, seconds: float) -> int:
    """As many steps as fit into the time, by a guess from a few."""
    guess = statistics.median(host.run(project, steps=5, compiler=chosen).seconds)
    return min(max(int(seconds / guess), 5), MOST_STEPS)


def measure(name: str, compilers: list[compiler.Compiler], seconds: float) -> list[dict[str, Any]]:
    """One row per compiler."""
    eager = Eager(zoo.get(name))
    torch_times: list[float] = []
    times: dict[str, list[float]] = {chosen.name: [] for chosen in compilers}
    with tempfile.TemporaryDirectory(prefix="gradlet-bench-") as folder:
        project = gradlet.build(f"zoo:{name}", Path(folder) / "project", target="host")
        steps = {item.name: c_steps(project, item, seconds / ROUNDS) for item in compilers}
        for _ in range(ROUNDS):
            torch_times += eager.times(seconds / ROUNDS)
            for chosen in compilers:
                run = host.run(project, steps=steps[chosen.name], compiler=chosen)
                times[chosen.name] += run.seconds[1:]
    theirs = statistics.median(torch_times)
    rows = []
    for compiled, spent in times.items():
        ours = statistics.median(spent)
        rows.append(
            {
                "model": name,
                "compiler": compiled,
                "c_us": 1e6 * ours,
                "torch_us": 1e6 * theirs,
                "ratio": theirs / ours,
                "c_steps": len(spent),
                "torch_steps": len(torch_times),
            }
        )
    return rows


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in ("model", "compiler", "C us", "PyTorch us", "C is faster by"):
        table.add_column(column, justify="left" if column in ("model", "compiler") else "right")
    for row in rows:
        numbers = (f"{row['c_us']:.1f}", f"{row['torch_us']:.1f}", f"{row['ratio']:.2f} x")
        table.add_row(row["model"], row["compiler"], *numbers)
    return table


def main() -> None:
    found = {item.name: item for item in compiler.available()}
    options = parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=2.0, help="per model and side")
    options.add_argument("--compiler", choices=list(found), help="only this one")
    arguments = options.parse_args()
    chosen = [found[arguments.compiler]] if arguments.compiler else list(found.values())
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        with stderr.status(f"{name}: {arguments.seconds:g} s on each side"):
            rows += measure(name, chosen, arguments.seconds)
    finish("host_speed", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
