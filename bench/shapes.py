"""How many different shapes the tests of the cluster's kernels try, per variant of the catalogue.

Runs tests/xpulp, where every access is checked by the sanitizer and every result against the C
reference's bits, and counts what each variant is called with.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from common import finish, parser
from rich.table import Table

from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner

TESTS = Path(__file__).parent.parent / "tests" / "xpulp"
ASKED = 1000


class Counter:
    """Looks over the shoulder of every runner."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[str, str], set[Any]] = defaultdict(set)
        call = KernelRunner.call

        def counted(runner: KernelRunner, kernel: Kernel, *given: Any, **options: Any) -> Any:
            (_, _, sizes, *_) = given
            shape = (kernel.mode, kernel.epilogue, *sorted(sizes.items()))
            self.shapes[kernel.family, kernel.variant].add(shape)
            return call(runner, kernel, *given, **options)

        setattr(KernelRunner, "call", counted)  # noqa: B010 - not what a class is meant for


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    for column in ("family", "variant", "shapes"):
        table.add_column(column, justify="right" if column == "shapes" else "left")
    for row in rows:
        table.add_row(row["family"], row["variant"], f"{row['shapes']:,}")
    return table


def main() -> int:
    arguments = parser(__doc__ or "").parse_args()
    counter = Counter()
    status = pytest.main([str(TESTS), "-q", "-p", "no:cacheprovider"])
    wanted = {(k.family, k.variant) for k in catalogue.kernels() if _of_the_cluster(k)}
    rows: list[dict[str, Any]] = [
        {"family": family, "variant": variant, "shapes": len(counter.shapes[family, variant])}
        for family, variant in sorted(wanted)
    ]
    finish("shapes", rows, as_table(rows), as_json=arguments.json)
    return int(status != 0 or any(row["shapes"] < ASKED for row in rows))


def _of_the_cluster(kernel: Kernel) -> bool:
    return catalogue.variant_of(kernel).isa == "xpulp"


if __name__ == "__main__":
    sys.exit(main())
