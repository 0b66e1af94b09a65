"""Kernels on the simulated cluster: the cases that the project is estimated by, all data in L1.

Each figure is the best kernel's median over 8 code alignments; call and closing barrier count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from common import finish, parser, stderr
from rich.table import Table

from gradlet.kernels import lab as bench
from gradlet.targets import target


@dataclass(frozen=True)
class Measured:
    """goal: multiply-adds per cycle that are asked for."""

    name: str
    case: Callable[[], bench.Case]
    goal: float
    l1: str = "64k"
    sums: str = "f32"


def _conv(channels: int, height: int, width: int, groups: int, step: str) -> bench.Case:
    shape = (channels, height, width)
    return bench.conv2d(shape, channels, (3, 3), (1, 1), (1, 1, 1, 1), groups, 1, step)


def _half(
    channels: int, height: int, width: int, groups: int, kernel: int, step: str
) -> bench.Case:
    """With channels in pairs, and as many before as behind."""
    around, size = kernel // 2, (kernel, kernel)
    return bench.conv2d(
        (channels, height, width),
        channels,
        size,
        (1, 1),
        (around,) * 4,
        groups,
        1,
        step,
        layout="chw2",
        dtype="f16",
    )


TABLE = (
    *(
        Measured(f"gemm 64x64x64 {x}", partial(bench.gemm, 64, 64, 64, x), 5.2)
        for x in bench.LAYOUTS
    ),
    *(
        Measured(f"gemm 64x64x64 {x} {d}", partial(bench.gemm, 64, 64, 64, x, "", d), goal)
        for x, goal in (("nt", 10.2), ("nn", 9.6), ("tn", 9.3))
        for d in ("f16", "bf16")
    ),
    *(
        Measured(f"gemm 80x64x128 {x}", partial(bench.gemm, 80, 64, 128, x), 5.3, "128k")
        for x in bench.LAYOUTS
    ),
    *(
        Measured(f"gemm 17x19x23 {x}", partial(bench.gemm, 17, 19, 23, x), 3.8)
        for x in bench.LAYOUTS
    ),
    *(
        Measured(f"conv 16->16 k3 16x16 {x}", partial(_conv, 16, 16, 16, 1, x), goal, "128k")
        for x, goal in (("forward", 9.2), ("input_grad", 9.2), ("weight_grad", 8.5))
    ),
    *(
        Measured(f"conv 16->16 k3 16x16 {x} f16", partial(_half, 16, 16, 16, 1, 3, x), goal, "128k")
        for x, goal in (("forward", 11.8), ("input_grad", 11.6), ("weight_grad", 10.2))
    ),
    *(
        Measured(f"conv 64->64 k1 25x5 {x} f16", partial(_half, 64, 25, 5, 1, 1, x), goal, "128k")
        for x, goal in (("forward", 9.8), ("input_grad", 9.6), ("weight_grad", 9.0))
    ),
    *(
        Measured(f"depthwise 64 k3 25x5 {x} f16", partial(_half, 64, 25, 5, 64, 3, x), goal, "128k")
        for x, goal in (("forward", 13.0), ("input_grad", 13.0), ("weight_grad", 10.5))
    ),
    *(
        Measured(f"depthwise 64 k3 25x5 {x}", partial(_conv, 64, 25, 5, 64, x), 6.3, "128k")
        for x in bench.STEPS
    ),
    *(
        Measured(
            f"FC 128x128 {x} {u} {d} chunked",
            partial(bench.linear, 128, 128, 1, x, u, d),
            goal,
            "128k",
            "chunked",
        )
        for x, u, goal in (
            ("forward", "", 7.1),
            ("input_grad", "", 6.6),
            ("weight_grad", "sgd", 4.6),
        )
        for d in ("f16", "bf16")
    ),
    *(
        Measured(f"FC 128x128 {x} {u}", partial(bench.linear, 128, 128, 1, x, u), goal, "128k")
        for x, u, goal in (
            ("forward", "", 3.55),
            ("input_grad", "", 3.55),
            ("weight_grad", "sgd", 2.4),
        )
    ),
)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--only", default="", help="cases whose name contains this")
    given = options.parse_args()
    table = Table(box=None)
    for column in ("case", "kernel", "cycles", "MAC/cycle", "range", "goal"):
        table.add_column(column)
    rows, passed = [], True
    with stderr.status("kernels") as status:
        for item in (item for item in TABLE if given.only in item.name):
            device = target.load("pulp-open", sizes={"L1": item.l1}).summed(item.sums)
            report = bench.measure(item.case(), device, progress=status.update)
            value = report.to_json()
            rows.append({"name": item.name, "goal": item.goal, **value})
            passed &= report.passed
            best = report.rows[0]
            spread = f"{best.macs / best.most:.2f} - {best.macs / best.least:.2f}"
            cells = (
                item.name,
                best.kernel,
                f"{best.cycles:,}",
                f"{best.mac_per_cycle:.2f}",
                spread,
            )
            table.add_row(*cells, f"{item.goal:g}")
    finish("kernels", rows, table, as_json=given.json)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
