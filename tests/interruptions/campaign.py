"""Kills `gradlet build`, `verify`, `tune` and `memory` at system calls that change a file, and
looks at what is left: the folder, what the user has in it, the next run, everything beside."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gradlet import cache, cli
from gradlet.extras import require_torch
from gradlet.sim.build import library
from tests.interruptions.follow import Follower

LAYER = '[[layer]]\nop = "{}"\n{}\n'
MODELS = {
    "old.toml": 'name = "old"\ninput = [4]\nseed = 0\n'
    + LAYER.format("linear", "out = 3")
    + LAYER.format("relu", "")
    + LAYER.format("linear", "out = 2"),
    "new.toml": 'name = "new"\ninput = [4]\nseed = 1\n'
    + LAYER.format("linear", "out = 5")
    + LAYER.format("tanh", "")
    + LAYER.format("linear", "out = 2"),
    "conv.toml": 'name = "conv"\ninput = [4, 12, 12]\nseed = 0\n'
    + LAYER.format("conv2d", "out = 8\nkernel = 3\npadding = 1")
    + LAYER.format("relu", "")
    + LAYER.format("flatten", "")
    + LAYER.format("linear", "out = 4"),
}
LAST = 200
PYTORCHS_OWN = "torchinductor_"
"""A folder that PyTorch makes when it is used, and leaves after any run."""
MINE = {"notes.txt": "mine", "kernels/own.h": "mine", "build/x.o": "", ".git/config": "[core]"}
HOST = ("--target", "host", "--batch", "1")
DEVICE = ("--target", "pulp-open", "--batch", "1", "--l1", "12k")
OLD = ("build", "old.toml", *HOST, "-o", "p")
NEW = ("build", "new.toml", *HOST, "-o", "p")
TUNED = ("build", "conv.toml", *DEVICE, "-o", "p")
TUNE = ("tune", "p", "--keep", "2", "--jobs", "1")


@dataclass(frozen=True)
class Scenario:
    """before: commands that lead to the state in which `command` is run and killed. in_place: the
    files are renamed one by one, so that only the next run brings the folder to an end."""

    name: str
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    folder: str = "."
    cold: bool = False
    in_place: bool = False
    only_first: bool = False
    apart: bool = False
    """The files have nothing to do with each other: each is the old or the new one."""


VERIFY = ("verify", "p", "--steps", "1")
HERE = ("build", "../new.toml", *HOST, "-o", ".")
MEMORY = ("memory", "old.toml", *HOST, "--csv", "m.csv", "--svg", "m.svg")

SCENARIOS = (
    Scenario("build, a new folder", NEW),
    Scenario("build over an earlier project", NEW, (OLD,)),
    Scenario("build into the working directory", HERE, (OLD,), folder="p", in_place=True),
    Scenario("verify", VERIFY, (NEW, VERIFY)),
    Scenario("verify, nothing compiled yet", VERIFY, (NEW,), cold=True),
    Scenario("the same, compilers go on", VERIFY, (NEW,), cold=True, only_first=True),
    Scenario("tune", TUNE, (TUNED,)),
    Scenario("tune, known from before", TUNE, (TUNED, TUNE, TUNED)),
    Scenario("memory --csv --svg", MEMORY, apart=True),
)


@dataclass
class Counts:
    """What became of the positions that were tried."""

    positions: int = 0
    tried: int = 0
    old: int = 0
    new: int = 0
    mixed: int = 0
    finished_by_next_run: int = 0
    next_run_failed: int = 0
    left_behind: int = 0
    lost: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return not (self.mixed or self.next_run_failed or self.left_behind or self.lost)


class Campaign:
    """base: an empty folder for everything, the user's home included."""

    def __init__(self, base: Path) -> None:
        require_torch().set_num_threads(1)
        self.base, self.work, self.cache = base, base / "work", base / "cache"
        simulator = library()
        self.follower = Follower(base)
        (base / "home").mkdir()
        (base / "temporary").mkdir()
        environment = {"HOME": base / "home", "TMPDIR": base / "temporary"}
        os.environ |= {name: str(path) for name, path in environment.items()}
        os.environ |= {"GRADLET_CACHE": str(self.cache), "OMP_NUM_THREADS": "1", "TERM": "dumb"}
        cache.keep(Path(shutil.copy(simulator, base)), simulator.name)
        shutil.copytree(self.cache, base / "simulator only")

    def run(
        self, scenario: Scenario, most: int = 0, seed: int = 0, say: Callable[[str], None] = print
    ) -> Counts:
        """Every position, or so many of them by chance: half of all, half of the last ones, where
        results get to their places."""
        counts = Counts()
        self._prepare(scenario)
        old = snapshot(self.work)
        outcome = self._act(scenario)
        if outcome.exit_code != 0:
            raise RuntimeError(f"{scenario.name}: exit status {outcome.exit_code}")
        new, counts.positions = snapshot(self.work), outcome.changes
        chosen: Sequence[int] = range(1, counts.positions + 1)
        if most and most < counts.positions:
            draw = random.Random(seed)
            last = chosen[-max(LAST, most) :]
            chosen = sorted({*draw.sample(chosen, most // 2), *draw.sample(last, most - most // 2)})
        for position in chosen:
            self._restore()
            self._try(scenario, position, old, new, counts)
            if counts.tried % 50 == 0:
                say(f"{scenario.name}: {counts.tried} of {len(chosen)}")
        self._clear()
        return counts

    def _prepare(self, scenario: Scenario) -> None:
        """What is there before, kept so that every position starts from it."""
        self._clear()
        shutil.copytree(self.base / "simulator only", self.cache)
        self.work.mkdir()
        for name, text in MODELS.items():
            (self.work / name).write_text(text)
        for command in scenario.before:
            outcome = self.follower.run(partial(self._gradlet, command, "."))
            assert outcome.exit_code == 0, command
        if scenario.before:
            for name, text in MINE.items():
                (self.work / "p" / name).parent.mkdir(exist_ok=True)
                (self.work / "p" / name).write_text(text)
        if scenario.cold:
            shutil.rmtree(self.cache)
            shutil.copytree(self.base / "simulator only", self.cache)
        for name in ("work", "cache"):
            shutil.copytree(self.base / name, self.base / f"{name} before", symlinks=True)

    def _restore(self) -> None:
        for name in ("work", "cache"):
            shutil.rmtree(self.base / name)
            shutil.copytree(self.base / f"{name} before", self.base / name, symlinks=True)

    def _clear(self) -> None:
        for name in ("work", "cache", "work before", "cache before"):
            shutil.rmtree(self.base / name, ignore_errors=True)

    def _gradlet(self, command: Sequence[str], folder: str) -> None:
        os.chdir(self.work / folder)
        sys.argv = ["gradlet", *command]
        cli.main()

    def _act(self, scenario: Scenario, position: int = 0) -> Any:
        return self.follower.run(
            lambda: self._gradlet(scenario.command, scenario.folder),
            position,
            only_first=scenario.only_first,
        )

    def _try(
        self,
        scenario: Scenario,
        position: int,
        old: dict[str, bytes],
        new: dict[str, bytes],
        counts: Counts,
    ) -> None:
        outcome = self._act(scenario, position)
        if outcome.exit_code is not None:
            return  # there were fewer changes this time: threads take turns
        counts.tried += 1
        before = {name: text for name, text in snapshot(self.work).items() if "gradlet" not in name}
        counts.lost += any(before.get(n) != text for n, text in old.items() if is_mine(n))
        if scenario.apart and all(before[n] in (old.get(n), new.get(n)) for n in before):
            before = new if before.keys() == new.keys() else old
        if before in (old, new):
            counts.old += before == old and old != new
            counts.new += before == new
        elif scenario.in_place:
            counts.finished_by_next_run += 1
        else:
            counts.mixed += 1
            counts.faults.append(f"{position}: mixed {sorted(differing(before, old))}")
        if self._act(scenario).exit_code != 0 or snapshot(self.work) != new:
            counts.next_run_failed += 1
            counts.faults.append(f"{position}: the next run fails")
        left = list(self._left_behind())
        counts.left_behind += bool(left)
        counts.faults += [f"{position}: {path} is left" for path in left]

    def _left_behind(self) -> Iterator[str]:
        """Nothing is in the folders for temporary things and in the home, and every entry of the
        cache is whole."""
        for name in ("home", "temporary"):
            for path in (self.base / name).rglob("*"):
                if not path.name.startswith(PYTORCHS_OWN):
                    yield str(path.relative_to(self.base))
        for path in self.cache.rglob("*"):
            entry = path.with_name(path.name.removesuffix(cache.RECORD))
            expected = path.name in ("objects", "steps", "tuned", "tune.sqlite")
            if not expected and not cache.is_whole(entry):
                yield str(path.relative_to(self.base))


def is_mine(name: str) -> bool:
    return name.removeprefix("p/") in MINE


def snapshot(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> Iterator[str]:
    return (name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
