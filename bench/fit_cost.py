"""The constants of the cost model, fitted to cycles that were measured: `[cost]` of pulp-open.

Schedules of many calls are measured on the simulator (cost_samples.py), a part of the calls is held
out, and the constants are moved, one at a time, as long as a loss over the others gets less: the
error of what is predicted, near the best schedules above all, and the cycles of the schedule that
would be chosen over those of the best that was measured. What the planner would choose with the
fitted constants is measured as well, and they are fitted again.

Rows: of the constants as they are in the target and as they are fitted, over the calls that were
fitted to and those held out, the median error of prediction, and the cycles of the schedule that is
chosen over those of the best that was measured; then the constants.

    python bench/fit_cost.py            # some minutes; again, from what was measured, less
    python bench/fit_cost.py --quick    # to try it
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from common import finish, parser, stderr
from cost_samples import DEVICE, Sample, measure, samples, some
from numpy.typing import NDArray
from rich.table import Table

from gradlet.planner.tile.search import cost_model
from gradlet.targets import target as targets
from gradlet.targets.cost import Cost

Array = NDArray[np.float64]
KEPT = ("room",)
"""What no schedule of one call can tell."""
HELD_OUT = 0.3
STEPS = (2.0, 1.4, 1.15, 1.05)
ROUNDS = 2
SHARPNESS = 30.0
"""Of the soft choice: a schedule that is thought to be 10 % slower is taken 20 times less."""
ERRORS = 0.25
"""How much an error of prediction counts beside one of choice."""
FREEDOM = 0.003
"""What it costs to move a constant: some hardly matter to what was measured."""


class Measured:
    """The samples as arrays: parts of the cost by row are linear in the constants. They have a
    column for computing, one for copying, and one for what is beside both."""

    def __init__(self, given: Sequence[Sample], constants: Cost) -> None:
        self.names = [name for name in asdict(constants) if name not in KEPT]
        rows = [(n, c, cycles) for n, s in enumerate(given) for c, cycles in s.cycles.items()]
        self.group = np.array([number for number, _, _ in rows])
        self.cycles = np.array([cycles for _, _, cycles in rows], float)
        self.slopes = np.array([self._slopes(given[n], c, constants) for n, c, _ in rows])
        self.starts = np.flatnonzero(np.diff(self.group, prepend=-1))
        self.best = np.minimum.reduceat(self.cycles, self.starts)[self._place()]

    def _place(self) -> NDArray[np.intp]:
        return np.searchsorted(self.group[self.starts], self.group)

    def _slopes(self, sample: Sample, candidate: Any, constants: Cost) -> Array:
        def parts(given: Cost) -> Array:
            model = cost_model(sample.problem, candidate.tile, given)
            found = model.parts(candidate.order)
            return np.array([found.computing, found.copying, found.beside])

        old, slopes = parts(constants), []
        for name in self.names:
            value = getattr(constants, name)
            step = 1e-3 * max(value, 0.01)
            slopes.append((parts(replace(constants, **{name: value + step})) - old) / step)
        return np.array(slopes)

    def predicted(self, values: Array) -> Array:
        parts = np.tensordot(values, self.slopes, (0, 1))
        total: Array = np.maximum(parts[:, 0], parts[:, 1]) + parts[:, 2]
        return total

    def only(self, groups: set[int]) -> Measured:
        kept = np.isin(self.group, list(groups))
        part = object.__new__(Measured)
        part.names = self.names
        part.group, part.cycles = self.group[kept], self.cycles[kept]
        part.slopes, part.best = self.slopes[kept], self.best[kept]
        part.starts = np.flatnonzero(np.diff(part.group, prepend=-1))
        return part

    def chosen_over_best(self, values: Array) -> Array:
        """Of each call, the cycles of what is predicted to be the quickest over the least."""
        order = np.lexsort((self.predicted(values), self.group))
        first = order[np.flatnonzero(np.diff(self.group[order], prepend=-1))]
        ratio: Array = self.cycles[first] / self.best[first]
        return ratio

    def error(self, values: Array) -> float:
        """The median deviation of what is predicted."""
        return float(np.median(np.abs(self.predicted(values) / self.cycles - 1)))

    def loss(self, values: Array, begin: Array) -> float:
        predicted, near = self.predicted(values), self.best / self.cycles
        errors = near**2 * np.log(predicted / self.cycles) ** 2
        scaled = np.log(predicted)
        least = np.minimum.reduceat(scaled, self.starts)[self._place()]
        share = np.exp(SHARPNESS * (least - scaled))
        sums = np.add.reduceat(share, self.starts)
        choice = np.add.reduceat(share * np.log(self.cycles / self.best), self.starts) / sums
        moved = np.abs(np.log(values / begin))
        return float(choice.mean() + ERRORS * errors.mean() + FREEDOM * moved.mean())


def fitted(measured: Measured, begin: Array) -> Array:
    """From these values, one constant after the other, by smaller and smaller steps."""
    values, best = begin.copy(), measured.loss(begin, begin)
    for step in STEPS:
        better = True
        while better:
            better = False
            for number in range(len(values)):
                for factor in (step, 1 / step):
                    tried = values.copy()
                    tried[number] *= factor
                    found = measured.loss(tried, begin)
                    if found < best - 1e-7:
                        values, best, better = tried, found, True
    return values


def as_cost(names: Sequence[str], values: Array, like: Cost) -> Cost:
    short = {name: float(f"{value:.3g}") for name, value in zip(names, values, strict=True)}
    return replace(like, **short)


def as_row(label: str, which: str, given: Sequence[Sample], constants: Cost) -> dict[str, Any]:
    """With the schedule that the planner takes: it is among those measured."""
    measured = Measured(given, constants)
    values = np.array([getattr(constants, name) for name in measured.names])
    ratios = measured.chosen_over_best(values)
    return {
        "constants": label,
        "calls": which,
        "number": len(ratios),
        "schedules": len(measured.cycles),
        "median_error": measured.error(values),
        "chosen_over_best": float(np.exp(np.log(ratios).mean())),
        "worst": float(ratios.max()),
    }


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in ("constants", "calls", "number", "error", "chosen / best", "worst"):
        table.add_column(column, justify="left" if column in ("constants", "calls") else "right")
    for row in (row for row in rows if "calls" in row):
        ratios = (f"{row['chosen_over_best']:.3f}", f"{row['worst']:.2f}")
        error = f"{100 * row['median_error']:.1f} %"
        table.add_row(row["constants"], row["calls"], str(row["number"]), error, *ratios)
    return table


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--quick", action="store_true", help="few calls")
    arguments = options.parse_args()
    before = targets.load(DEVICE).cost
    given = samples(quick=arguments.quick)
    measure((s, c) for number, s in enumerate(given) for c in some(s, number + 1))
    constants = before
    for turn in range(ROUNDS):
        measure((s, s.chosen(c)) for s in given for c in {before, constants})
        usable = [sample for sample in given if len(sample.cycles) > 1]
        held = set(random.Random(1).sample(range(len(usable)), int(HELD_OUT * len(usable))))
        own = set(range(len(usable))) - held
        measured = Measured([s for n, s in enumerate(usable) if n in own], constants)
        begin = np.array([getattr(constants, name) for name in measured.names])
        constants = as_cost(measured.names, fitted(measured, begin), constants)
        stderr.print(f"fitted {turn + 1} of {ROUNDS} times")
    measure((s, s.chosen(constants)) for s in usable)
    rows: list[dict[str, Any]] = []
    for label, cost in (("as they are", before), ("fitted", constants)):
        for which, numbers in (("fitted to", own), ("held out", held)):
            rows.append(as_row(label, which, [usable[n] for n in sorted(numbers)], cost))
    rows.append({"cost": asdict(constants)})
    finish("fit_cost", rows, as_table(rows), as_json=arguments.json)
    stderr.print("\n".join(f"{name} = {value:g}" for name, value in asdict(constants).items()))


if __name__ == "__main__":
    main()
