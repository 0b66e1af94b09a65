"""Writes docs/reliability.md from what the campaigns have left in bench/results/.

    make reliability

runs all of them first, which takes an hour or two; a campaign that was not run is listed as such.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
HEAD = """# Reliability

What was tried against Gradlet, how often, and what held. `bench/reliability.py` writes this page
from the results of the campaigns; `make reliability` runs them all.

| campaign | tried | held | the rest | command |
|---|---|---|---|---|
"""
NOTES = """
## How to read it

- **Faults put into the source**: operators, constants, operands and instructions in the rules for
  gradients, the planner, the tiles, the copies, the kernels and their generators, drawn by a
  seed. *Held* are those that the build refused or verify found. *Changed nothing* are those
  after which no loss and no weight of three steps moves by more than 1e-4 of the largest, in any
  of the models that were tried: they make another program of the same values, or no model got
  there. Tensors that move as much when all weights change in their last place are not counted.
- **Interruptions**: a kill at a system call that changes a file. It changes none itself, so one
  run that is stopped before each such call gives the files that a kill there leaves; real kills
  are made beside. In each of these states the folder has to be the old project or the new one,
  the next command has to succeed, and nothing may stay behind. States that differ only in what
  a scratch folder holds, which is removed unseen, are tried once.
- **Random modules**: PyTorch modules with weights of every form (views, sums, products, tied,
  normed), every optimizer and layout, on the host and on the simulated cluster with 16 to 64
  kB. *Too large* and *refused* are told to the user before anything is built.
- **Golden programs**: what `make device` makes, on the simulator and on the host, and where GVSoC
  is installed on that: every printed loss, checksum and cycle count has to be the same.
- **Bad input**: damaged files, wrong options, models that return anything; each has to end in one
  sentence, with JSON under `--json`, in less than a minute.
- **Tolerances**: PyTorch's float32 takes the place of the program. *Held* are networks in which
  no element exceeds its tolerance after the careful stage ([verification.md](verification.md)).
"""
Row = tuple[str, int, int, str, str]


def mutants(value: Any) -> Iterator[Row]:
    for group, kinds in sorted(value["groups"].items()):
        kinds = Counter(kinds)
        tried = kinds.total() - kinds["unseen"]
        held = kinds["caught"] + kinds["refused"]
        rest = f"{kinds['equivalent']} changed nothing, {kinds['missed']} missed"
        yield f"faults in the source: {group}", tried, held, rest, "make mutants"


def interruptions(value: Any) -> Iterator[Row]:
    for name, counts in value["commands"].items():
        rest = f"of {counts['positions']} places; {counts['states']} different states, "
        rest += f"{counts['kills']} real kills, {len(counts['faults'])} faults"
        held = counts["tried"] - len(counts["faults"])
        yield f"killed: {name}", counts["tried"], held, rest, "make interruptions"


def outcomes(what: str, command: str) -> Callable[[Any], Iterator[Row]]:
    def rows(value: Any) -> Iterator[Row]:
        found = Counter(row["outcome"] for row in value["rows"])
        rest = [f"{count} {name}" for name, count in found.items() if name != "held"]
        apart = Counter(row["why"] for row in value["rows"] if row["outcome"] == "held")
        rest += [f"{count} of those: {why}" for why, count in apart.items() if why]
        yield what, found.total(), found["held"], ", ".join(rest), command

    return rows


def tolerance(value: Any) -> Iterator[Row]:
    careful = value["rules"]["careful"]
    rest = f"{value['tensors']:,} tensors, worst at {careful['worst']:.2f} of its tolerance"
    held = value["networks"] - careful["over"]
    yield "tolerances: random networks", value["networks"], held, rest, "bench/tolerance.py"


def bad_input(value: Any) -> Iterator[Row]:
    rest = f"{value['did not hold']} did not"
    yield "bad input", value["tried"], value["held"], rest, "python -m tests.bad_input"


CAMPAIGNS: dict[str, Callable[[Any], Iterator[Row]]] = {
    "golden_programs": outcomes("golden programs", "bench/golden_programs.py"),
    "random_networks": outcomes("random modules", "bench/random_networks.py"),
    "mutants": mutants,
    "interruptions": interruptions,
    "bad_input": bad_input,
    "tolerance": tolerance,
}


def main() -> int:
    lines, notes = [], []
    for name, rows in CAMPAIGNS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            lines.append(f"| {name.replace('_', ' ')} | not run | | | |")
            continue
        value = json.loads(path.read_text())
        if value.get("note"):  # what a reader has to know of these runs
            notes.append(f"- **{name.replace('_', ' ')}**: {value['note']}")
        for what, tried, held, rest, command in rows(value):
            lines.append(f"| {what} | {tried} | {held} | {rest} | `{command}` |")
    apart = "\n## These runs\n\n" + "\n".join(notes) + "\n" if notes else ""
    PAGE.write_text(HEAD + "\n".join(lines) + "\n" + apart + NOTES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
