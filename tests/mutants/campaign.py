"""Draws mutations, runs them side by side, and counts what was caught."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.mutants.models import SUBJECTS
from tests.mutants.sites import Site, sites
from tests.mutants.trial import Outcome, attempt, forked, overlay

PACKAGE = Path(__file__).parents[2] / "src" / "gradlet"
NOTICEABLE = 1e-4
"""A change of a loss or weight by this share of the largest is no rounding: it must be caught."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "gradients (vjp)": ("ops/*.py:vjp",),
    "graphs": ("train.py", "update.py", "rows.py", "selection.py", "capture/*.py"),
    "ops": ("ops/*.py",),
    "losses": (
        "ops/losses.py",
        "ops/regression.py",
        "c/kernels/*loss*.j2",
        "c/kernels/*entropy*.j2",
    ),
    "optimizers": ("ops/optimizer.py", "ops/clip.py", "c/kernels/*adam*.j2", "c/kernels/sgd*.j2"),
    "planner": ("plan/order.py", "plan/alias.py", "plan/place.py", "plan/levels.py"),
    "tiles": ("plan/til*.py", "plan/table.py", "emit/tiles.py", "c/runtime/gl_tiles.h"),
    "copies (DMA)": ("c/runtime/gl_dma_*.h", "c/runtime/gl_schedule.h", "c/kernels/fetch*.j2"),
    "C kernels": ("c/kernels/*_ref.c.j2", "c/kernels/*.j2"),
    "generators": ("xpulp/*.py", "c/kernels/*xpulp*.j2"),
}


@dataclass(frozen=True)
class Result:
    group: str
    site: Site
    subject: str
    kind: str  # caught | refused | missed | equivalent | unseen
    reason: str
    change: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "site": str(self.site),
            "model": self.subject,
            "kind": self.kind,
            "reason": self.reason,
            "change": self.change,
        }


class Campaign:
    """Baselines of every model, then mutations drawn by seed."""

    def __init__(self, seed: int, subjects: Sequence[str] = ()) -> None:
        self.chance = random.Random(seed)
        self.subjects = tuple(subjects) or tuple(SUBJECTS)
        self.baselines: dict[str, Outcome] = {}
        self.candidates: dict[str, list[list[Site]]] = {}

    def prepare(self, jobs: int, told: Callable[[str], None]) -> None:
        """Build every model with the source as it is; what that reaches may be mutated."""
        with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(jobs) as pool:
            source = overlay(PACKAGE, None, Path(place))
            work = [attempt(source, name, trace=True) for name in self.subjects]
            for name, outcome in zip(self.subjects, pool.map(forked, work), strict=True):
                if not outcome.passed:
                    raise SystemExit(f"{name} fails without any fault: {outcome.error}")
                self.baselines[name] = outcome
                told(f"as it is   {name}: {len(outcome.reached)} functions and templates")
        for group, patterns in GROUPS.items():
            self.candidates[group] = list(filter(None, self._files(patterns)))

    def _files(self, patterns: Sequence[str]) -> Iterator[list[Site]]:
        """The sites of each file; drawing a file first keeps long files from taking all."""
        for pattern in patterns:
            glob, _, function = pattern.partition(":")
            for path in sorted(PACKAGE.glob(glob)):
                file = path.relative_to(PACKAGE).as_posix()
                yield [
                    site
                    for site in sites(PACKAGE, file)
                    if function in site.function and self._reaching(site)
                ]

    def _reaching(self, site: Site) -> list[str]:
        name = f"{site.file}:{site.function}" if site.function else site.file
        return [subject for subject, base in self.baselines.items() if name in base.reached]

    def draw(self, group: str) -> Site:
        found: Site = self.chance.choice(self.chance.choice(self.candidates[group]))
        return found

    def run(self, group: str, site: Site) -> Result:
        """Try models that reach the place until one computes something else because of it."""
        names = self._reaching(site)
        random.Random(str(site)).shuffle(names)
        found = Result(group, site, ", ".join(names[:4]), "unseen", "the program is the same")
        for subject in names[:4]:
            base = self.baselines[subject]
            with tempfile.TemporaryDirectory() as place:
                source = overlay(PACKAGE, site, Path(place))
                outcome = forked(attempt(source, subject, known=base.program))
            if outcome.error:
                return Result(group, site, subject, "refused", outcome.error)
            if outcome.program != base.program:
                found = self._judged(group, site, subject, outcome)
            if found.kind in ("caught", "missed"):
                break
        return found

    def _judged(self, group: str, site: Site, subject: str, outcome: Outcome) -> Result:
        if not outcome.passed:
            return Result(group, site, subject, "caught", outcome.reason)
        change = change_of(self.baselines[subject].values, outcome.values)
        kind = "missed" if change > NOTICEABLE else "equivalent"
        return Result(group, site, subject, kind, "", change)


def change_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """The largest change of any value, as a share of the largest value beside it."""
    if before.keys() != after.keys():
        return float("inf")
    worst, largest = 0.0, max(float(np.abs(value).max(initial=0.0)) for value in before.values())
    for name, value in before.items():
        if value.shape != after[name].shape:
            return float("inf")
        # what is 0 in exact arithmetic, as the gradient of the bias of keys, is rounding alone
        scale = max(float(np.abs(value).max(initial=0.0)), 1e-5 * largest, 1e-30)
        moved = np.abs(np.asarray(after[name], np.float64) - value).max(initial=0.0)
        worst = max(worst, float(moved / scale) if np.isfinite(moved) else float("inf"))
    return worst


def run_campaign(
    campaign: Campaign,
    count: int,
    jobs: int,
    told: Callable[[str], None],
    groups: Sequence[str],
) -> Iterator[list[Result]]:
    """Mutate until `count` of them have changed a program, the groups taking turns; all that was
    found, after each turn."""
    campaign.prepare(jobs, told)
    results: list[Result] = []
    chosen = [group for group in groups if campaign.candidates[group]]
    with ThreadPoolExecutor(jobs) as pool:
        while sum(result.kind != "unseen" for result in results) < count:
            batch = [(group, campaign.draw(group)) for group in chosen]
            for result in pool.map(lambda pair: campaign.run(*pair), batch):
                results.append(result)
                told(f"{result.kind:10} {result.group}: {result.site}  {result.reason}")
            yield results


def counted(results: Sequence[Result]) -> dict[str, dict[str, int]]:
    table: dict[str, Counter[str]] = {}
    for result in results:
        table.setdefault(result.group, Counter())[result.kind] += 1
    return {group: dict(sorted(counts.items())) for group, counts in table.items()}
