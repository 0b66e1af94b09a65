"""How long planning takes as networks grow, for pulp-open with 64 kB of L1.

Chains and residual networks of convolutions; the slope is the power of n by which the time grows
from the smallest network to the largest, beside that of n log n.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from common import finish, parser, stderr
from rich.table import Table

from gradlet.ir.builder import GraphBuilder
from gradlet.ir.graph import Attrs, Graph
from gradlet.ir.recipe import Recipe
from gradlet.planner.planner import check_plan, plan
from gradlet.targets import target
from gradlet.training.autodiff import train

KINDS = ("chain", "residual")
NODES = (10, 30, 100, 300, 1000)
PER_LAYER = {"chain": 8, "residual": 18}  # nodes of a training graph


def network(kind: str, nodes: int, channels: int = 8, size: int = 16) -> Graph:
    """A training graph of about this many nodes."""
    builder, numbers = GraphBuilder(kind), np.random.default_rng(0)

    def param(*shape: int) -> str:
        value = numbers.standard_normal(shape).astype(np.float32) * 0.1
        return builder.value(builder.fresh("w"), value, "param")

    def layer(x: str) -> str:
        weights = [param(channels, channels, 3, 3), param(channels)]
        one, pad = (1, 1), (1, 1, 1, 1)
        attrs: Attrs = {"stride": one, "padding": pad, "dilation": one, "groups": 1}
        return builder.add("relu", [builder.add("conv2d", [x, *weights], attrs)], {})

    shape = (1, channels, size, size)
    x = builder.external("x", shape, "input")
    for _ in range(max(1, nodes // PER_LAYER[kind])):
        x = layer(x) if kind == "chain" else builder.add("add", [layer(layer(x)), x], {})
    flat = builder.add("reshape", [x], {"shape": (1, channels * size * size)})
    head = [flat, param(4, channels * size * size), param(4)]
    output = builder.add("matmul", head, {"layout": "nt"})
    samples = {"x": numbers.standard_normal((1, *shape)).astype(np.float32)}
    forward = Graph(
        kind, builder.tensors, tuple(builder.nodes), ("x",), (output,), builder.data, samples
    )
    return train(forward, Recipe(), numbers.integers(0, 4, (1, 1)))


def measure(kind: str, nodes: int) -> dict[str, Any]:
    graph = network(kind, nodes)
    device = target.load("pulp-open", sizes={"L2": "32M"})
    begin = time.process_time()
    found = plan(graph, device)
    planned = time.process_time() - begin
    begin = time.process_time()
    check_plan(found)
    return {
        "network": kind,
        "nodes": len(graph.nodes),
        "calls": len(found.calls),
        "tiles": sum(tiling.count for tiling in found.tilings),
        "seconds": planned,
        "of_it_checking": time.process_time() - begin,
    }


def slopes(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of time over nodes in logarithms, measured and as n log n would have it."""
    found = {}
    for kind in KINDS:
        own = [row for row in rows if row["network"] == kind]
        first, last = own[0], own[-1]
        wide = math.log(last["nodes"] / first["nodes"])
        ideal = [row["nodes"] * math.log(row["nodes"]) for row in (first, last)]
        found[kind] = {
            "slope": math.log(last["seconds"] / first["seconds"]) / wide,
            "n_log_n": math.log(ideal[1] / ideal[0]) / wide,
        }
    return found


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in ("network", "nodes", "calls", "tiles", "planned in s", "of it checking"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for row in rows:
        times = (f"{row['seconds']:.2f}", f"{row['of_it_checking']:.2f}")
        table.add_row(row["network"], *(str(row[k]) for k in ("nodes", "calls", "tiles")), *times)
    for kind, slope in slopes(rows).items():
        table.caption = f"{table.caption or ''}{kind}: time ~ n^{slope['slope']:.2f}, "
        table.caption += f"n log n ~ n^{slope['n_log_n']:.2f}\n"
    return table


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--nodes", nargs="+", type=int, default=NODES, help="nodes, roughly")
    arguments = options.parse_args()
    rows = []
    for kind in KINDS:
        for nodes in arguments.nodes:
            with stderr.status(f"{kind} of {nodes} nodes"):
                rows.append(measure(kind, nodes))
    finish("planning", rows, as_table(rows), as_json=arguments.json)


if __name__ == "__main__":
    main()
