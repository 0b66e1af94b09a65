"""The command: `python -m tests.mutants`. Exit status 1 if a fault was missed."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.mutants.campaign import GROUPS, Campaign, Result, counted, run_campaign
from tests.mutants.models import SUBJECTS


def summary(seed: int, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "seed": seed,
        "kinds": dict(sorted(Counter(result.kind for result in results).items())),
        "groups": counted(results),
        "mutations": [result.to_json() for result in results],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="mutations that change a program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="side by side")
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="only these")
    parser.add_argument("--model", action="append", choices=list(SUBJECTS), help="only these")
    parser.add_argument("--tries", type=int, default=4, help="models that a fault is looked for in")
    parser.add_argument("--json", metavar="FILE", help="write what was found")
    parser.add_argument("--resume", action="store_true", help="go on from what is in that file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = {"mutations": [], "kinds": {}}
    if options.resume:
        document = json.loads(Path(options.json).read_text())
    with tempfile.TemporaryDirectory(prefix="gradlet-mutants-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # nothing faulty stays in the user's cache
        turns = run_campaign(
            Campaign(options.seed, options.model or (), options.tries),
            options.count,
            options.jobs,
            lambda text: print(text, file=sys.stderr, flush=True),
            options.group or list(GROUPS),
            document["mutations"],
        )
        for results in turns:
            document = summary(options.seed, results)
            if options.json:
                Path(options.json).parent.mkdir(parents=True, exist_ok=True)
                Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({**document, "mutations": len(document["mutations"])}, indent=1))
    return 1 if document["kinds"].get("missed") else 0


if __name__ == "__main__":
    sys.exit(main())
