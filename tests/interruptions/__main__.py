"""`python -m tests.interruptions`: the states that a kill can leave, and what becomes of them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.interruptions.campaign import SCENARIOS, Campaign, Counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=0, help="states of each command; 0: all")
    parser.add_argument("--kills", type=int, default=3, help="real kills of each command, beside")
    parser.add_argument("--seed", type=int, default=0, help="which, if not all")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", action="append", choices=names, help="a scenario, and again")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    counted: dict[str, Counts] = {}
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="gradlet-interruptions-") as name:
        campaign = Campaign(Path(name))
        for scenario in SCENARIOS:
            if options.only and scenario.name not in options.only:
                continue
            counts = campaign.run(
                scenario,
                options.most,
                options.kills,
                options.seed,
                lambda text: print(text, file=sys.stderr, flush=True),
            )
            counted[scenario.name] = counts
            numbers = {k: v for k, v in dataclasses.asdict(counts).items() if k != "faults"}
            print(f"{scenario.name}: {numbers}", flush=True)
            print("\n".join(counts.faults[:20]), end="\n" if counts.faults else "", flush=True)
            if options.json:  # a campaign takes long, and may be stopped
                options.json.parent.mkdir(parents=True, exist_ok=True)
                value = summary(options.seed, round(time.perf_counter() - begin), counted)
                options.json.write_text(json.dumps(value, indent=1) + "\n")
    held = all(counts.held for counts in counted.values())
    print("held" if held else "did not hold")
    return 0 if held else 1


def summary(seed: int, seconds: int, counted: Mapping[str, Counts]) -> dict[str, Any]:
    return {
        "seed": seed,
        "seconds": seconds,
        "held": all(counts.held for counts in counted.values()),
        "commands": {name: dataclasses.asdict(counts) for name, counts in counted.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
