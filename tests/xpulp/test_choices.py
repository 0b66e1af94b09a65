"""What takes elements from here or there: joining, delays, rows of a table, dropout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops.base import Size
from tests.xpulp.support import NativeReference, cluster, same_bits

CONCAT = Kernel("concat", "join", "", "lines", "f32")
GATHER = Kernel("gather", "rows", "", "lines", "f32")
DELAY = Kernel("delay", "states", "", "columns", "f32")
DROPOUT = Kernel("dropout", "apply", "", "drawn", "f32")


def test_a_thousand_joints(tmp_path: Path, part_of: Callable[[int], int]) -> None:
    generator, natives = np.random.default_rng(1), NativeReference([CONCAT], tmp_path, 8)
    with KernelRunner([CONCAT], cluster(), sanitize=True) as runner:
        for _ in range(part_of(1100)):
            most = int(generator.choice([6, 40]))
            widths = [int(n) for n in generator.integers(1, most + 1, generator.integers(2, 5))]
            outer = int(generator.integers(1, 14))
            parts = [generator.standard_normal((outer, n)).astype(np.float32) for n in widths]
            missing = 4 - len(parts)
            wanted = np.concatenate(parts, axis=1)
            sizes: dict[str, Size] = {"outer": outer, "width": (*widths, *[0] * missing)}
            output, inputs = np.full(wanted.shape, np.nan, np.float32), [*parts, *[None] * missing]
            made = runner.call(CONCAT, [output], inputs, sizes).outputs
            assert same_bits(made, [wanted]), sizes
            assert same_bits(made, natives.call(CONCAT, [output], inputs, sizes)), sizes


def test_a_thousand_delays(tmp_path: Path, part_of: Callable[[int], int]) -> None:
    """Every second one in place."""
    generator, natives = np.random.default_rng(4), NativeReference([DELAY], tmp_path, 8)
    with KernelRunner([DELAY], cluster(), sanitize=True) as runner:
        for number in range(part_of(1200)):
            times, batch = (int(n) for n in generator.integers(1, 10, 2))
            width = int(generator.integers(1, generator.choice([9, 40])))
            first = generator.random() < 0.5
            sizes: dict[str, Size] = {
                "times": times,
                "batch": batch,
                "width": width,
                "time_stride": 1 if first else batch,
                "batch_stride": times if first else 1,
                "reverse": number % 4 // 2,
            }
            x = generator.standard_normal((times * batch, width)).astype(np.float32)
            inputs = [x, generator.standard_normal((batch, width)).astype(np.float32)]
            in_place = {0: 0} if number % 2 else {}
            made = runner.call(DELAY, [np.full_like(x, np.nan)], inputs, sizes, in_place=in_place)
            same = natives.call(DELAY, [np.full_like(x, np.nan)], inputs, sizes)
            assert same_bits(made.outputs, same), sizes


def test_a_thousand_tables(tmp_path: Path, part_of: Callable[[int], int]) -> None:
    """Numbers outside of the table as well: they give zeros, and a guard tells of them."""
    generator, natives = np.random.default_rng(2), NativeReference([GATHER], tmp_path, 8)
    with KernelRunner([GATHER], cluster(), sanitize=True) as runner:
        for _ in range(part_of(1050)):
            rows, count = (int(n) for n in generator.integers(1, 30, 2))
            width = int(generator.integers(1, generator.choice([8, 40])))
            table = generator.standard_normal((rows, width)).astype(np.float32)
            index = generator.integers(-1, rows + 1, count).astype(np.int32)
            sizes: dict[str, Size] = {"rows": rows, "count": count, "width": width, "skip": -1}
            output = np.full((count, width), 7, np.float32)
            made = runner.call(GATHER, [output], [table, index], sizes).outputs
            assert same_bits(made, natives.call(GATHER, [output], [table, index], sizes)), sizes
            outside = (index < 0) | (index >= rows)
            np.testing.assert_array_equal((made[0] == 0).all(1), outside)


def test_a_thousand_dropouts(tmp_path: Path, part_of: Callable[[int], int]) -> None:
    """Single elements and groups, from any place on, active or not."""
    generator, natives = np.random.default_rng(3), NativeReference([DROPOUT], tmp_path, 8)
    with KernelRunner([DROPOUT], cluster(), sanitize=True) as runner:
        for number in range(part_of(1050)):
            count = int(generator.integers(1, generator.choice([10, 200])))
            group = 1 if number % 2 else int(generator.integers(2, 30))
            sizes: dict[str, Size] = {
                "count": count,
                "group": group,
                "salt": int(generator.integers(0, 2**31)),
                "threshold": int(generator.integers(0, 2**24)),
                "scale": 1.25,
                "extent": (1,) * 6,
                "step": (0,) * 6,
                "begin": int(generator.integers(0, 1000)),
            }
            x = generator.standard_normal(count).astype(np.float32)
            state = generator.integers(-(2**31), 2**31, 3).astype(np.int32)
            state[2] = number % 5 > 0
            output = np.full(count, np.nan, np.float32)
            in_place = {0: 0} if number % 3 == 0 else {}
            made = runner.call(DROPOUT, [output], [x, state], sizes, in_place=in_place).outputs
            assert same_bits(made, natives.call(DROPOUT, [output], [x, state], sizes)), sizes
