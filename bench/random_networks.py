"""Random networks through build and verify: how many held, and what the others stopped with.

Each seed draws a PyTorch module with weights of every form (tests/modules.py), a recipe, a layout
and a device: the host, or pulp-open with 16 to 64 kB of L1. A row tells what became of it: `held`,
`too large` (it does not fit, and the message says so), `refused` (by a clear message), `wrong`
(verify fails, or bits differ), `broken` (anything else).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from common import finish, parser, stderr
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

import gradlet
from gradlet.errors import DoesNotFit
from tests.modules import Draw, draw

OUTCOMES = ("held", "too large", "refused", "wrong", "broken")
OURS = ("not sound", "does not compute what", "the C compiler")
"""What refusals say that are faults of ours."""


def outcome(drawn: Draw, steps: int) -> tuple[str, str]:
    """What became of it, and a line about that."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            project = gradlet.build(
                drawn.module,
                Path(folder) / "p",
                inputs=drawn.inputs,
                recipe=drawn.recipe,
                **drawn.options,
            )
            verdict = gradlet.verify(project, steps=steps)
    except DoesNotFit as error:
        return "too large", str(error)
    except gradlet.GradletError as error:
        return "broken" if any(word in str(error) for word in OURS) else "refused", str(error)
    except Exception as error:  # a campaign goes on: the row tells
        return "broken", f"{type(error).__name__}: {error}"
    if verdict.passed and all(verdict.bit_identical.values()):
        return "held", ""
    return "wrong", f"{verdict.first_wrong} bits {dict(verdict.bit_identical)}"


def main() -> int:
    options = parser(__doc__ or "")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--count", type=int, default=200, help="how many networks")
    options.add_argument("--steps", type=int, default=2, help="training steps to compare")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for seed in range(arguments.first, arguments.first + arguments.count):
        begin = time.perf_counter()
        try:
            drawn = draw(seed)
        except Exception as error:  # a network that PyTorch itself cannot run
            rows.append({"seed": seed, "outcome": "broken", "why": f"not drawn: {error}"})
            continue
        found, why = outcome(drawn, arguments.steps)
        seconds = time.perf_counter() - begin
        rows.append({"seed": seed, "what": drawn.label, "outcome": found, "why": why})
        rows[-1]["seconds"] = seconds
        if found not in ("held", "too large"):
            stderr.print(f"{drawn.label}: {found}: {why}", markup=False, highlight=False)
    counts = Counter(row["outcome"] for row in rows)
    table = Table(box=None)
    table.add_column("outcome")
    table.add_column("networks")
    for name in OUTCOMES:
        table.add_row(name, str(counts[name]))
    finish("random_networks", rows, table, as_json=arguments.json)
    return 1 if counts["wrong"] or counts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
