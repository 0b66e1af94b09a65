"""The programs that projects ship, on every machine that is here: host, simulator, GVSoC.

Architectures that are in no other list of ours and random modules (tests/modules.py), with 16, 20,
32 and 64 kB of L1, channels first and last. The golden program of each has to pass, to print the
same losses and checksums as on the host, and, where GVSoC is installed, the same text there as on
the simulator in GVSoC's configuration: every cycle of every step. That is 4 shared FPUs and no
contention for banks; for a GVSoC with others give --fpus 8 and --contention.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from common import finish, parser, stderr
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

import gradlet
from gradlet.engines import golden, gvsoc
from gradlet.engines.device import build_golden
from gradlet.errors import DoesNotFit
from gradlet.sim import SimConfig, SimError, simulate
from gradlet.support.compiler import default
from tests import architectures_more, architectures_odd
from tests.modules import draw

SIZES = ("16k", "20k", "32k", "64k")
LAYOUTS = ("chw", "hwc")
MODELS = {**architectures_more.MODELS, **architectures_odd.MODELS}


def cases(names: list[str], seeds: range) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Each model with each size; its layouts take turns."""
    for number, name in enumerate(names):
        for turn, size in enumerate(SIZES):
            torch.manual_seed(number)
            module, inputs = MODELS[name]()
            given = {"model": module, "inputs": inputs, "batch": 1}
            yield name, size, LAYOUTS[(number + turn) % 2], given
    for seed in seeds:
        drawn = draw(seed)
        given = {"model": drawn.module, "inputs": drawn.inputs, "recipe": drawn.recipe}
        given["batch"] = drawn.options["batch"]  # weights may depend on it
        yield f"random {seed}", SIZES[seed % 4], LAYOUTS[seed // 4 % 2], given


def outcome(
    size: str, layout: str, given: dict[str, Any], as_gvsoc: SimConfig, folder: Path
) -> tuple[str, str, str]:
    """What became of it, why, and what the simulator printed in GVSoC's configuration."""
    model = given.pop("model")
    try:
        project = gradlet.build(model, folder / "p", memories={"L1": size}, layout=layout, **given)
    except DoesNotFit as error:
        return "too large", str(error).splitlines()[0], ""
    except gradlet.GradletError as error:
        return "refused", str(error).splitlines()[0], ""
    elf = build_golden(project, folder / "golden.elf", probes=True)
    on_host = golden.run_on_host(project, default())
    on_device = golden.run_on_device(project)
    for machine, printed in (("host", on_host), ("sim", on_device)):
        if printed.problem:
            return "wrong", f"{machine}: {printed.problem}", ""
    if unlike := on_device.result.unlike(on_host.result):
        return "wrong", f"sim and host: {unlike}", ""
    if gvsoc.find() is None:
        return "held", "GVSoC is not here", ""
    try:
        ours = simulate(elf, as_gvsoc).stdout.strip()
    except SimError as error:
        return "wrong", f"as GVSoC is: {error}", ""
    theirs = gvsoc.execute(elf).strip()
    if ours != theirs:
        lines = zip(ours.splitlines(), theirs.splitlines(), strict=False)
        return "differs", next((f"{a!r}, {b!r}" for a, b in lines if a != b), "length"), ours
    return "held", "", ours


def main() -> int:
    options = parser(__doc__ or "")
    options.set_defaults(models=list(MODELS))
    options.add_argument("--random", type=int, default=40, help="so many random modules")
    options.add_argument("--seed", type=int, default=0, help="of the first random module")
    options.add_argument("--fpus", type=int, default=4, help="that GVSoC has")
    options.add_argument("--contention", action="store_true", help="GVSoC models that of banks")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    as_gvsoc = SimConfig.load(
        "pulp-open", {"fpus": arguments.fpus, "contention": arguments.contention}
    )
    seeds = range(arguments.seed, arguments.seed + arguments.random)
    rows: list[dict[str, Any]] = []
    for name, size, layout, given in cases(arguments.models, seeds):
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                what, why, text = outcome(size, layout, given, as_gvsoc, Path(folder))
            except Exception as error:  # a campaign goes on: the row tells
                what, why, text = "broken", f"{type(error).__name__}: {error}", ""
        row = {"model": name, "l1": size, "layout": layout, "outcome": what, "why": why}
        rows.append({**row, "printed": text.splitlines(), "seconds": time.perf_counter() - begin})
        stderr.print(f"{name} {size} {layout}: {what} {why}", markup=False, soft_wrap=True)
    counts = Counter(row["outcome"] for row in rows)
    table = Table("outcome", "programs", title="golden programs")
    for what, count in counts.items():
        table.add_row(what, str(count))
    finish("golden_programs", rows, table, as_json=arguments.json)
    return 1 if counts.keys() & {"wrong", "differs", "broken"} else 0


if __name__ == "__main__":
    sys.exit(main())
