"""What a kill leaves of `gradlet build`, `verify`, `tune` and `memory`, at any system call that
changes a file: the folder, what the user has in it, the next run, everything beside."""

from __future__ import annotations

import importlib
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gradlet.cli import commands as cli
from gradlet.sim.build import library
from gradlet.support import cache
from gradlet.support.extras import require_torch
from tests.interruptions.follow import (
    GO_ON,
    KILL,
    KILL_FIRST,
    Follower,
    Place,
    killed_at,
    run_alone,
)
from tests.interruptions.states import Entry, Keeper, State

Files = dict[str, tuple[str, int, str]]

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
    "tiled.toml": 'name = "tiled"\ninput = [100]\nseed = 0\n' + LAYER.format("linear", "out = 40"),
}
PYTORCHS_OWN = "torchinductor_"
"""A folder that PyTorch makes when it is used, and leaves after any run."""
MINE = {"notes.txt": "mine", "kernels/own.h": "mine", "build/x.o": "", ".git/config": "[core]"}
HOST = ("--target", "host", "--batch", "1")
DEVICE = ("--target", "pulp-open", "--batch", "1", "--cores", "1", "--l1", "10k")
OLD = ("build", "old.toml", *HOST, "-o", "p")
NEW = ("build", "new.toml", *HOST, "-o", "p")
TUNED = ("build", "tiled.toml", *DEVICE, "-o", "p")
TUNE = ("tune", "p", "--keep", "3", "--jobs", "1")


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
    """What became of the places that were tried; those that leave the same files are one state."""

    positions: int = 0
    tried: int = 0
    states: int = 0
    kills: int = 0
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


@dataclass
class Record:
    """A run that nobody killed: by what is alike in them, the places of its changes, and for the
    first of each the files that a kill would leave."""

    old: Files = field(default_factory=dict)
    new: Files = field(default_factory=dict)
    places: dict[str, list[int]] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)


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
        self.keeper = Keeper(base, ("work", "cache", "home", "temporary"), base / "store")

        self._import_ahead(NEW, VERIFY)

    def _import_ahead(self, *commands: Sequence[str]) -> None:
        """Import in this process, from which all others are forked, what they would import one by
        one; nothing is run here that could be remembered."""
        listed = self.base / "modules.txt"

        def list_modules() -> None:
            for command in commands:
                with suppress(SystemExit):
                    self._gradlet(command, ".")
            listed.write_text("\n".join(sys.modules))

        self.prepare(SCENARIOS[0])
        run_alone(list_modules)
        for name in listed.read_text().splitlines():
            with suppress(Exception):
                importlib.import_module(name)

    def run(
        self,
        scenario: Scenario,
        most: int = 0,
        kills: int = 0,
        seed: int = 0,
        say: Callable[[str], None] = print,
    ) -> Counts:
        """Every state that a kill can leave, or so many of them by chance; and so many real kills
        beside, which show that the states are the true ones."""
        start = self.prepare(scenario)
        record = self.record(scenario)
        counts = Counts(positions=sum(map(len, record.places.values())))
        draw = random.Random(seed)
        chosen = list(record.places)
        if most and most < len(chosen):
            chosen = draw.sample(chosen, most)
        say(f"{scenario.name}: {counts.positions} places, {len(record.places)} states")
        for key in chosen:
            places = record.places[key]
            if scenario.only_first:
                self.keeper.lay(start)
                self.kill(scenario, places[0], KILL_FIRST)
                counts.kills += 1
            else:
                self.keeper.lay(record.states[key])
            self._judge(scenario, places, record, counts)
            if counts.states % 20 == 0:
                faults = len(counts.faults)
                say(f"{scenario.name}: {counts.states} of {len(chosen)}, {faults} faults")
        for _ in range(kills):
            self.keeper.lay(start)
            place = draw.randint(1, counts.positions)
            if self.kill(scenario, place):
                counts.kills += 1
                self._judge(scenario, [place], record, counts)
                counts.tried, counts.states = counts.tried - 1, counts.states - 1  # known by then
        return counts

    def prepare(self, scenario: Scenario) -> State:
        """What is there before."""
        self.keeper.lay(State({name: Entry("folder", 0o755) for name in self.keeper.folders}))
        self.cache.rmdir()
        shutil.copytree(self.base / "simulator only", self.cache)
        for name, text in MODELS.items():
            (self.work / name).write_text(text)
        for command in scenario.before:
            assert run_alone(partial(self._gradlet, command, ".")) == 0, command
        if scenario.before:
            for name, text in MINE.items():
                (self.work / "p" / name).parent.mkdir(exist_ok=True)
                (self.work / "p" / name).write_text(text)
        if scenario.cold:
            shutil.rmtree(self.cache)
            shutil.copytree(self.base / "simulator only", self.cache)
        return self.keeper.look()

    def record(self, scenario: Scenario) -> Record:
        record = Record(old=self.keeper.look().under("work"))

        def at(place: Place) -> int:
            state = self.keeper.look()
            alike = self._pattern(place) if scenario.only_first else state.key
            record.places.setdefault(alike, []).append(place.number)
            record.states.setdefault(alike, state)
            return GO_ON

        outcome = self.follower.run(self._action(scenario), at)
        if outcome.exit_code != 0:
            raise RuntimeError(f"{scenario.name}: exit status {outcome.exit_code}")
        record.new = self.keeper.look().under("work")
        return record

    def kill(self, scenario: Scenario, number: int, how: int = KILL) -> bool:
        """Run and kill at a place; False if there were fewer this time, as threads take turns."""
        outcome = self.follower.run(self._action(scenario), killed_at(number, how))
        return outcome.exit_code is None

    def _pattern(self, place: Place) -> str:
        """Who does what to which kind of file, without hashes and what is drawn by chance."""
        path = place.path.replace(str(self.base), "")
        path = re.sub(r"scratch/[^/]+", "scratch/*", path)
        path = re.sub(r"[0-9a-f]{7,}|(?<=/cc)\w{6}(?=\.)", "*", path)
        return f"{place.program} {place.call} {path}"

    def _action(self, scenario: Scenario) -> Callable[[], None]:
        return partial(self._gradlet, scenario.command, scenario.folder)

    def _gradlet(self, command: Sequence[str], folder: str) -> None:
        os.chdir(self.work / folder)
        sys.argv = ["gradlet", *command]
        cli.main()

    def _judge(
        self, scenario: Scenario, places: Sequence[int], record: Record, counts: Counts
    ) -> None:
        """What a kill at these places has left, and what the next run makes of it."""
        old, new, place = record.old, record.new, places[0]
        counts.tried += len(places)
        counts.states += 1
        there = self.keeper.look().under("work")
        before = {name: file for name, file in there.items() if "gradlet" not in name}
        counts.lost += any(before.get(n) != file for n, file in old.items() if is_mine(n))
        if scenario.apart and all(before[n] in (old.get(n), new.get(n)) for n in before):
            before = new if before.keys() == new.keys() else old
        if before in (old, new):
            counts.old += len(places) * (before == old and old != new)
            counts.new += len(places) * (before == new)
        elif scenario.in_place:
            counts.finished_by_next_run += len(places)
        else:
            counts.mixed += 1
            counts.faults.append(f"{place}: mixed {sorted(differing(before, old))}")
        failed = run_alone(self._action(scenario)) != 0
        if failed or self.keeper.look().under("work") != new:
            counts.next_run_failed += 1
            counts.faults.append(f"{place}: the next run fails")
        left = list(self._left_behind())
        counts.left_behind += bool(left)
        counts.faults += [f"{place}: {path} is left" for path in left]

    def _left_behind(self) -> Iterator[str]:
        """Nothing is in the folders for temporary things and in the home, and every entry of the
        cache is whole."""
        for name in ("home", "temporary"):
            for path in (self.base / name).rglob("*"):
                if not path.name.startswith(PYTORCHS_OWN):
                    yield str(path.relative_to(self.base))
        for path in self.cache.rglob("*"):
            entry = path.with_name(path.name.removesuffix(cache.RECORD))
            expected = path.name == "objects" or path.name.startswith("values.sqlite")
            if not expected and not cache.is_whole(entry):
                yield str(path.relative_to(self.base))


def is_mine(name: str) -> bool:
    return name.removeprefix("p/") in MINE


def differing(one: Files, other: Files) -> Iterator[str]:
    return (name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
