"""What the tuning of whole projects has given, on disk: asked for again, it is there at once.

A key has everything that the answer depends on: the plan, the settings, the files of this package
and the compiler. A project that was tuned is known as well: it stays as it is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gradlet.support.compiler import version, zig
from gradlet.support.values import kept, key_of, recalled
from gradlet.tuner.search import Settings

PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Answer:
    """report: what `gradlet tune --json` prints. plan: that of the tuned project, as text."""

    report: Mapping[str, Any]
    plan: str


def recall(plan: str, settings: Settings) -> Answer | None:
    """What is known of a plan; nothing of it was measured now."""
    try:
        found = recalled(_key(plan, settings))
        report = found["report"]
        known = report["evaluations"] + report["cache_hits"]
        now = {"evaluations": 0, "cache_hits": known, "search_seconds": 0.0}
        return Answer({**report, **now}, found["plan"])
    except (KeyError, TypeError):
        return None  # there is none


def keep(plan: str, settings: Settings, answer: Answer) -> None:
    """For this plan, and for the tuned one."""
    for given, report in ((plan, answer.report), (answer.plan, _settled(answer.report))):
        kept(_key(given, settings), {"report": report, "plan": answer.plan})


def _settled(report: Mapping[str, Any]) -> dict[str, Any]:
    """Of a project that is as it came out: nothing gets quicker."""
    nodes = [{**node, "before": node["after"]} for node in report["nodes"]]
    return {**report, "before_cycles": report["after_cycles"], "gain": 1.0, "nodes": nodes}


def _key(plan: str, settings: Settings) -> str:
    compiler = zig()
    return key_of("tuned", plan, settings, _package(), version(compiler) if compiler else "")


@cache
def _package() -> str:
    """Of every file that planning, emitting, measuring or a kernel's source may come from."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(PACKAGE):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = Path(folder) / name
            digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
