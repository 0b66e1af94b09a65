"""The constants of the cost model, fitted to cycles that were measured: `[cost]` of pulp-open.

Schedules of many calls are measured on the simulator (cost_samples.py), a part of the calls is held
out, and the constants are moved downhill on a loss over the others: the error of what is predicted,
near the best schedules above all, and the cycles of the schedule that would be chosen over those of
the best that was measured. They begin as in targets/cost.py. What the planner chooses with the
fitted constants is measured as well.

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
from math import prod
from typing import Any

import numpy as np
from common import finish, parser, stderr
from cost_samples import DEVICE, Sample, measure, samples, some
from numpy.typing import NDArray
from rich.table import Table

from gradlet.planner.tile.cost import CostModel
from gradlet.planner.tile.search import Candidate, cost_model
from gradlet.targets import target as targets
from gradlet.targets.cost import Cost

Array = NDArray[np.float64]
Row = dict[str, Any]
KEPT = ("backing_byte", "farthest_byte", "mac", "mac_start", "run", "word_of_macs")
"""The first two are known of the DMA. The others are of kernels without a model of their own: what
fits single calls best made a training step of resnet8 1.2 % slower than these do."""
APART = ("room", "visible")
"""What no call by itself can tell: chosen by the cycles of whole training steps of the zoo."""
KERNELS = ("gemm", "vector", "outer", "strided", "im2col", "sliding", "depthwise", "channels")
HELD_OUT = 0.3
STEPS, RATE = 1500, 0.04
"""Of the descent: how many, and the first, of the logarithm of a constant."""
SHARPNESS = 30.0
"""Of the soft choice: a schedule that is thought to be 10 % slower is taken 20 times less."""
ERRORS = 0.25
"""How much an error of prediction counts beside one of choice."""
FREEDOM = 0.003
"""What it costs to move a constant: some hardly matter to what was measured."""


def _parts(model: CostModel, candidate: Candidate) -> Array:
    found = model.parts(candidate.order)
    return np.array([found.computing, found.copying, found.beside])


class Measured:
    """The samples as arrays: parts of the cost by row are linear in the constants. They have a
    column for computing, one for copying, and one for what is beside both."""

    def __init__(self, given: Sequence[Sample], constants: Cost) -> None:
        self.known: dict[Sample, set[str]] = {}
        self.names = [name for name in asdict(constants) if name not in APART]
        rows = [(n, c, cycles) for n, s in enumerate(given) for c, cycles in s.cycles.items()]
        self.group = np.array([number for number, _, _ in rows])
        self.cycles = np.array([cycles for _, _, cycles in rows], float)
        self.slopes = np.array([self._slopes(given[n], c, constants) for n, c, _ in rows])
        self.starts = np.flatnonzero(np.diff(self.group, prepend=-1))
        self.best = np.minimum.reduceat(self.cycles, self.starts)[self._place()]

    def _place(self) -> NDArray[np.intp]:
        return np.searchsorted(self.group[self.starts], self.group)

    def _slopes(self, sample: Sample, candidate: Candidate, constants: Cost) -> Array:
        """Of a kernel with a model only its cycles change with the constants of kernels."""
        problem, tile = sample.problem, candidate.tile
        model = cost_model(problem, tile, constants)
        old, tiles = _parts(model, candidate), prod(model.counts)
        slopes = np.zeros((len(self.names), 3))
        for number, name in enumerate(self.names):
            step = 1e-3 * max(getattr(constants, name), 0.01)
            moved = replace(constants, **{name: getattr(constants, name) + step})
            if "_" in name and name.split("_")[0] in KERNELS:
                if model.busiest and name in self._named(sample):
                    more = problem.kernel(tile, moved)[1] - model.busiest
                    slopes[number, 0 if problem.double_buffered else 2] = tiles * more / step
            else:
                slopes[number] = (_parts(replace(model, constants=moved), candidate) - old) / step
        return slopes

    def _named(self, sample: Sample) -> set[str]:
        """The constants that its kernel depends on."""
        if sample not in self.known:
            usual, tile = Cost(), next(iter(sample.cycles)).tile
            plain = sample.problem.kernel(tile, usual)[1]
            self.known[sample] = {
                name
                for name in self.names
                if sample.problem.kernel(tile, replace(usual, **{name: 1e6}))[1] != plain
            }
        return self.known[sample]

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

    def error(self, values: Array) -> float:
        """The median deviation of what is predicted."""
        return float(np.median(np.abs(self.predicted(values) / self.cycles - 1)))

    def loss(self, values: Array, begin: Array) -> tuple[float, Array]:
        """And its slope along the logarithm of each constant."""
        parts = np.tensordot(values, self.slopes, (0, 1))
        copying = parts[:, 1] > parts[:, 0]
        predicted = np.where(copying, parts[:, 1], parts[:, 0]) + parts[:, 2]
        near, place, scaled = self.best / self.cycles, self._place(), np.log(predicted)
        wrong = scaled - np.log(self.cycles)
        least = np.minimum.reduceat(scaled, self.starts)[place]
        share = np.exp(SHARPNESS * (least - scaled))
        share /= np.add.reduceat(share, self.starts)[place]
        dear = -np.log(near)
        choice = np.add.reduceat(share * dear, self.starts)
        moved = np.log(values / begin)
        error = ERRORS * (near**2 * wrong**2).mean()
        total = choice.mean() + error + FREEDOM * (moved**2).mean()
        slope = -SHARPNESS * share * (dear - choice[place]) / len(choice)
        slope += 2 * ERRORS * near**2 * wrong / len(wrong)
        steep = np.where(copying[:, None], self.slopes[:, :, 1], self.slopes[:, :, 0])
        along = (slope / predicted) @ (steep + self.slopes[:, :, 2]) * values
        return float(total), along + 2 * FREEDOM * moved / len(moved)


def fitted(measured: Measured, begin: Array) -> Array:
    """From these values, downhill by Adam's steps (Kingma and Ba), which get smaller."""
    free = np.array([name not in KEPT for name in measured.names])
    place, mean, square = np.log(begin), np.zeros(len(begin)), np.zeros(len(begin))
    best, found = measured.loss(begin, begin)[0], begin
    for step in range(STEPS):
        loss, slope = measured.loss(np.exp(place), begin)
        if loss < best:
            best, found = loss, np.exp(place)
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
        move = mean / (1 - 0.9 ** (step + 1)) / np.sqrt(square / (1 - 0.99 ** (step + 1)) + 1e-16)
        rate = RATE * (1 - step / STEPS)
        place = np.where(free, place - rate * move, place)
    return found


def as_cost(names: Sequence[str], values: Array, like: Cost) -> Cost:
    short = {name: float(f"{value:.3g}") for name, value in zip(names, values, strict=True)}
    return replace(like, **short)


def as_row(
    label: str, which: str, given: Sequence[Sample], measured: Measured, constants: Cost
) -> Row:
    """Schedules are those that the planner takes."""
    values = np.array([getattr(constants, name) for name in measured.names])
    pairs = ((s.cycles.get(s.chosen(constants)), min(s.cycles.values())) for s in given)
    ratios = np.array([chosen / best for chosen, best in pairs if chosen])
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
    measure((s, s.chosen(before)) for s in given)
    usable = [sample for sample in given if len(sample.cycles) > 1]
    held = set(random.Random(1).sample(range(len(usable)), int(HELD_OUT * len(usable))))
    own = set(range(len(usable))) - held
    measured = Measured(usable, Cost()).only(own)
    begin = np.array([getattr(Cost(), name) for name in measured.names])
    constants = as_cost(measured.names, fitted(measured, begin), before)
    measure((s, s.chosen(constants)) for s in usable)
    measured, rows = Measured(usable, constants), list[Row]()
    for label, cost in (("as they are", before), ("fitted", constants)):
        for which, numbers in (("fitted to", own), ("held out", held)):
            part = [usable[n] for n in sorted(numbers)]
            rows.append(as_row(label, which, part, measured.only(numbers), cost))
    rows.append({"cost": asdict(constants)})
    finish("fit_cost", rows, as_table(rows), as_json=arguments.json)
    stderr.print("\n".join(f"{name} = {value:g}" for name, value in asdict(constants).items()))


if __name__ == "__main__":
    main()
