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

from tests.mutants.models import SUBJECTS
from tests.mutants.sites import Site, sites
from tests.mutants.trial import NOTICEABLE, Outcome, attempt, change_of, forked, overlay

PACKAGE = Path(__file__).parents[2] / "src" / "gradlet"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "gradients (vjp)": ("ops/**/*.py:vjp",),
    "graphs": ("training/*.py", "frontends/**/*.py"),
    "ops": ("ops/**/*.py",),
    "losses": (
        "ops/learning/labels.py",
        "ops/learning/regression.py",
        "kernels/families/*/*loss*.j2",
        "kernels/families/*/*entropy*.j2",
    ),
    "optimizers": (
        "ops/learning/optimizer.py",
        "ops/learning/clip.py",
        "kernels/families/*/*adam*.j2",
        "kernels/families/sgd/sgd*.j2",
    ),
    "planner": ("planner/schedule.py", "planner/memory/*.py"),
    "tiles": ("planner/tiling.py", "planner/tile/*.py", "codegen/tiles.py", "runtime/gl_tiles.h"),
    "copies (DMA)": ("runtime/ports/*/gl_dma_*.h", "kernels/families/lib/fetch*.j2"),
    "C kernels": ("kernels/families/*/*_ref.c.j2", "kernels/families/*/*.j2"),
    "generators": ("kernels/xpulp/**/*.py", "kernels/families/*/*xpulp*.j2"),
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

    def __init__(self, seed: int, subjects: Sequence[str] = (), tries: int = 4) -> None:
        self.chance = random.Random(seed)
        self.tries = tries  # models that a fault is looked for in
        self.subjects = tuple(subjects) or tuple(SUBJECTS)
        self.baselines: dict[str, Outcome] = {}
        self.candidates: dict[str, list[list[Site]]] = {}
        self.drawn: set[tuple[str, Site]] = set()

    def prepare(self, jobs: int, told: Callable[[str], None]) -> None:
        """Build every model with the source as it is; what that reaches may be mutated."""
        with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(jobs) as pool:
            source = overlay(PACKAGE, None, Path(place))
            work = [attempt(source, name, trace=True) for name in self.subjects]
            for name, outcome in zip(self.subjects, pool.map(forked, work), strict=True):
                if not outcome.passed:
                    raise SystemExit(
                        f"{name} fails without any fault: {outcome.error or outcome.reason}"
                    )
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

    def draw(self, group: str) -> Site | None:
        """A place in a file, none twice; None if there is none left."""
        files = [[s for s in f if (group, s) not in self.drawn] for f in self.candidates[group]]
        if not any(files):
            return None
        site: Site = self.chance.choice(self.chance.choice(list(filter(None, files))))
        self.drawn.add((group, site))
        return site

    def resumed(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[str, Site, Result | None]]:
        """Faults of an earlier run that can still be made. Those that changed nothing, or that
        nobody saw, are to be tried again: models and checks may have become sharper."""
        known = {(row["group"], row["site"]): row for row in rows}
        for group, files in self.candidates.items():
            for site in dict.fromkeys(site for file in files for site in file):
                row = known.get((group, str(site)))
                if row is None:
                    continue
                self.drawn.add((group, site))
                stands = row["kind"] not in ("missed", "equivalent")
                told = row["model"], row["kind"], row["reason"], row["change"]
                yield group, site, Result(group, site, *told) if stands else None

    def run(self, group: str, site: Site) -> Result:
        """Try models that reach the place until one computes something else because of it, those
        for the host and for the device by turns."""
        names = self._reaching(site)
        names = by_turns(names, random.Random(str(site)))[: self.tries]
        found = Result(group, site, ", ".join(names), "unseen", "the program is the same")
        for subject in names:
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


def by_turns(names: Sequence[str], chance: random.Random) -> list[str]:
    mixed = chance.sample(names, len(names))
    places = Counter[str]()
    for name in mixed:
        kind = str(SUBJECTS[name].options["target"])
        places[kind] += 1
        places[name] = places[kind]
    return sorted(mixed, key=lambda name: places[name])


def run_campaign(
    campaign: Campaign,
    count: int,
    jobs: int,
    told: Callable[[str], None],
    groups: Sequence[str],
    rows: Sequence[Mapping[str, Any]] = (),
) -> Iterator[list[Result]]:
    """Mutate until `count` of them have changed a program, the groups taking turns; all that was
    found, after each turn. rows: what an earlier run has found."""
    campaign.prepare(jobs, told)
    chosen = [group for group in groups if campaign.candidates[group]]
    earlier = list(campaign.resumed(rows))
    results = [result for _, _, result in earlier if result]
    batch = [(group, site) for group, site, result in earlier if not result]
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            for result in pool.map(lambda pair: campaign.run(*pair), batch):
                results.append(result)
                told(f"{result.kind:10} {result.group}: {result.site}  {result.reason}")
                yield results
            drawn = [(group, campaign.draw(group)) for group in chosen]
            batch = [(group, site) for group, site in drawn if site]
            if not batch or sum(result.kind != "unseen" for result in results) >= count:
                return


def counted(results: Sequence[Result]) -> dict[str, dict[str, int]]:
    table: dict[str, Counter[str]] = {}
    for result in results:
        table.setdefault(result.group, Counter())[result.kind] += 1
    return {group: dict(sorted(counts.items())) for group, counts in table.items()}
