"""Types of numbers side by side: the memory of a step of every model of the zoo, and what the
digits demo learns.

Memory is that of a plan for pulp-open, whether it fits or not, in all memories together; `f16` and
`mixed` with a scale of the loss and without. The demo's C learns turned digits on the host, with
the bits of the device; beside it PyTorch in float32, and under its own autocast in bfloat16.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import finish, parser, stderr
from rich.table import Table

import gradlet
from gradlet.api import Request
from gradlet.ir.recipe import DTYPES
from gradlet.training.prepare import wished

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "digits"))
import demo
from model import pretrain, worlds

WAYS = (*((kind, "") for kind in DTYPES), ("f16", "dynamic"), ("mixed", "off"))
CURVE = 50
"""Steps whose losses make one point of a curve."""


def memory(name: str) -> list[dict[str, Any]]:
    request = Request(f"zoo:{name}")
    captured = request.captured()
    rows: list[dict[str, Any]] = []
    for dtype, scale in WAYS:
        recipe = replace(wished(captured.defaults), dtype=dtype, loss_scale=scale)
        plan = replace(request, recipe=recipe).plan(captured, fit=False)
        taken = {memory.name: plan.taken(memory) for memory in plan.target.memories}
        used = sum(taken.values())
        first = rows[0]["used"] if rows else used
        rows.append(
            {
                "kind": "memory",
                "model": name,
                "dtype": dtype,
                "loss_scale": scale or "default",
                "used": used,
                "levels": taken,
                "of_f32": used / first,
                "fits": all(map(plan.fits, plan.target.memories)),
            }
        )
    return rows


def digits(seeds: int) -> list[dict[str, Any]]:
    data = worlds()
    module = pretrain(data.upright)
    rows = []
    for seed in range(seeds):
        orders = torch.Generator().manual_seed(seed)
        count = len(data.turned_train.labels)
        epochs = [torch.randperm(count, generator=orders) for _ in range(demo.EPOCHS)]
        order = torch.cat(epochs)
        for dtype, scale in (*WAYS, ("torch f32", ""), ("torch autocast bf16", "")):
            with stderr.status(f"digits, order {seed}, {dtype} {scale}"):
                if dtype.startswith("torch"):
                    learned = in_torch(module, data, order, autocast="autocast" in dtype)
                else:
                    learned = in_c(module, data, order, dtype, scale)
            loss, accuracy = demo.score(learned.after.float(), data.turned_test)
            curve = np.asarray(learned.losses)[: len(learned.losses) // CURVE * CURVE]
            rows.append(
                {
                    "kind": "digits",
                    "order": seed,
                    "dtype": dtype,
                    "loss_scale": scale or "default",
                    "steps": len(learned.losses),
                    "before": demo.score(learned.before.float(), data.turned_test)[1],
                    "accuracy": accuracy,
                    "test_loss": loss,
                    "losses": curve.reshape(-1, CURVE).mean(axis=1).round(5).tolist(),
                }
            )
    return rows


def in_c(module: Any, data: Any, order: Any, dtype: str, scale: str) -> demo.Learned:
    golden = data.turned_train.part(torch.arange(demo.GOLDEN))
    recipe = gradlet.Recipe(loss="cross_entropy", lr=demo.RATE, dtype=dtype, loss_scale=scale)
    with tempfile.TemporaryDirectory() as folder:
        project = gradlet.build(
            module,
            Path(folder) / "digits",
            inputs=(golden.images,),
            targets=golden.labels,
            batch=1,
            name="digits",
            recipe=recipe,
        )
        return demo.learn_in_c(project, data, order)


def in_torch(module: Any, data: Any, order: Any, *, autocast: bool) -> demo.Learned:
    if not autocast:
        return demo.learn_in_torch(module, data, order)
    module = copy.deepcopy(module)
    # its copies of weights are for one pass, and this is a whole training
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        return demo.learn_in_torch(module, data, order)


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for head in ("", "numbers", "loss scale", "bytes", "of f32", "fits", "accuracy", "test loss"):
        table.add_column(head)
    for row in rows:
        name = row.get("model") or f"digits, order {row['order']}"
        cells = [name, row["dtype"], row["loss_scale"]]
        if row["kind"] == "memory":
            cells += [f"{row['used']:,}", f"{row['of_f32']:.3f}", str(row["fits"]), "", ""]
        else:
            cells += ["", "", "", f"{100 * row['accuracy']:.2f} %", f"{row['test_loss']:.4f}"]
        table.add_row(*cells)
    return table


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--orders", type=int, default=3, help="of the samples; 0: no digits")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in arguments.models:
        with stderr.status(f"memory of {name}"):
            rows += memory(name)
    rows += digits(arguments.orders)
    finish("precision", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
