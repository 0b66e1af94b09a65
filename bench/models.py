"""Models that others wrote, from packages of PyPI, through build and verify.

    pip install -c constraints.txt -e '.[models]'
    python bench/models.py                     every model, then docs/models.md
    python bench/models.py --only timm ncps/   what begins so, or is named so

The tables in bench/model_tables/ say how to make each model small. It is built and verified in a
process of its own with a time limit: for the host, and if it is small for pulp-open as well. A
package that is not there makes a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, machine, stderr
from model_page import write_page
from model_run import TARGETS, outcome, setup, without_compiled_parts

TABLES = Path(__file__).parent / "model_tables"
LIMIT = 300
"""Seconds of a processor that a model may take on one target."""
PATIENCE = 6
"""How many times as long it may take by the clock, beside whatever else is running."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A row of a table. `make` is an expression for the module, `file` an ONNX file beside the
    packages, `write` statements that make one."""

    package: str
    name: str
    setup: str = ""
    make: str = ""
    file: str = ""
    write: str = ""
    inputs: str = ""
    kind: str = ""
    small: bool = False
    train: bool = False
    batch: int = 1
    recipe: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    beyond: str = ""
    """Why no compiler of static shapes can take it, if that is so."""

    @property
    def label(self) -> str:
        return f"{self.package}/{self.name}"


def models(names: list[str]) -> Iterator[Model]:
    """Those that are asked for, or all."""
    for path in sorted(TABLES.glob("*.toml")):
        for package, content in tomllib.loads(path.read_text()).items():
            shared = {"setup": content.get("setup", ""), "kind": path.stem}
            for name, row in content["models"].items():
                model = Model(package, name, **{**shared, **row})
                if not names or any(model.label.startswith(n) or n == name for n in names):
                    yield model


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def in_child(work: Callable[[], Row | None], limit: float | None) -> Row:
    """What `work` returns in a process of its own, or how that ended."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        child = os.fork()
        if not child:
            os.setsid()
            if limit is not None:  # what packages and models print is no result
                os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY), 1)
                os.dup2(1, 2)
            answer.write_text(json.dumps(work() or {}))
            os._exit(0)
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if limit is not None and _used(child, time.perf_counter() - begin) > limit:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return {"outcome": "too slow", "message": f"stopped after {limit:g} s"}
            time.sleep(0.05)
        if answer.exists():
            return dict(json.loads(answer.read_text()))
        last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    return {"outcome": "crashed", "message": f"status {ended[1]}: {' '.join(last)}"}


def _used(child: int, passed: float) -> float:
    """Seconds that a process and those that it waited for have computed, where the system tells; at
    least a share of those that have passed."""
    try:
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return passed
    ticks = sum(map(int, fields[11:15]))
    return max(ticks / os.sysconf("SC_CLK_TCK"), passed / PATIENCE)


def run(model: Model, target: str, limit: float) -> Row:
    row: Row = {"package": model.package, "version": version(model.package), "model": model.name}
    row |= {"kind": model.kind, "target": target, "beyond": model.beyond}
    if row["version"] is None:
        return {**row, "outcome": "not installed", "message": "", "seconds": 0.0}
    begin = time.perf_counter()
    found = in_child(lambda: outcome(model, target), limit)
    return {**row, "seconds": time.perf_counter() - begin, **found}


def known() -> dict[tuple[str, str, str], Row]:
    path = RESULTS / "models.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return {(row["package"], row["model"], row["target"]): row for row in rows}


def keep(row: Row) -> None:
    """Each row is kept at once: all take hours."""
    rows = {**known(), (row["package"], row["model"], row["target"]): row}
    text = json.dumps(
        {"benchmark": "models", "machine": machine(), "rows": list(rows.values())}, indent=1
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "models.json").write_text(text + "\n")


def run_package(chosen: list[tuple[Model, str]], limit: float) -> None:
    """In a process of the package's own, which imports it once."""
    setup(chosen[0][0].setup)
    for model, target in chosen:
        row = run(model, target, limit)
        keep(row)
        lines = f"{row['outcome']:14} {row['seconds']:6.1f} s  {model.label} ({target})"
        if row["outcome"] != "verified" and row["message"]:
            lines += "\n    " + row["message"]
        stderr.print(lines, markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", nargs="+", default=[], help="PACKAGE, PACKAGE/MODEL or MODEL")
    options.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    options.add_argument(
        "--limit", type=float, default=LIMIT, help="seconds of a processor for each"
    )
    options.add_argument("--page", action="store_true", help="write docs/models.md, no more")
    options.add_argument("--skip", nargs="*", default=[], help="outcomes: these are not run again")
    options.add_argument("--json", action="store_true", help="the results as JSON on stdout")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    without_compiled_parts()
    found = known()
    chosen = [
        (model, target)
        for model in ([] if arguments.page else models(arguments.only))
        for target in arguments.targets
        if (model.small or target == "host")
        and found.get((*model.label.split("/"), target), {}).get("outcome") not in arguments.skip
    ]
    for _, group in groupby(chosen, lambda pair: pair[0].package):
        pairs = list(group)
        in_child(lambda pairs=pairs: run_package(pairs, arguments.limit), None)  # type: ignore[misc]
    if arguments.json:
        print(json.dumps(list(known().values()), indent=1))
    write_page(list(known().values()), [model.label for model in models([])])
    return 0


if __name__ == "__main__":
    sys.exit(main())
