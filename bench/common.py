"""What the benchmarks share: options, facts of the machine, and where results go."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gradlet import zoo
from gradlet.support import compiler

RESULTS = Path(__file__).parent / "results"
stderr = Console(stderr=True)


def parser(doc: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=doc)
    options.add_argument("--models", nargs="+", default=list(zoo.models()), help="names in the zoo")
    options.add_argument("--json", action="store_true", help="the results as JSON on stdout")
    return options


def machine() -> dict[str, Any]:
    """Enough to compare two results; nothing that tells where they were made."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compilers": [found.name for found in compiler.available()],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def save(name: str, rows: list[dict[str, Any]]) -> str:
    """Write the results beside the benchmarks, whole or not at all; returns the text."""
    text = json.dumps({"benchmark": name, "machine": machine(), "rows": rows}, indent=1) + "\n"
    RESULTS.mkdir(exist_ok=True)
    fresh = RESULTS / f"{name}.json.new"
    fresh.write_text(text)
    fresh.replace(RESULTS / f"{name}.json")
    return text


def saved(name: str) -> list[dict[str, Any]]:
    """Rows of an earlier run, of one that was interrupted as well."""
    try:
        rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    except FileNotFoundError:
        return []
    return rows


def finish(name: str, rows: list[dict[str, Any]], table: Table, *, as_json: bool) -> None:
    """Write the results; show them as a table or as JSON."""
    text = save(name, rows)
    if as_json:
        sys.stdout.write(text)
    else:
        Console().print(table)
