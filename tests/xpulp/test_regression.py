"""Losses of regression in assembler: any count, with NaN among the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops.base import Size
from tests.xpulp.support import NativeReference, cluster, same_bits

USED = [k for k in catalogue.kernels() if k.family == "regression" and k.variant == "line"]


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_a_thousand_counts(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    """More than a thousand over all modes."""
    generator, natives = np.random.default_rng(1), NativeReference([kernel], tmp_path, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for count in range(1, part_of(130) + 1):
            delta = float(np.float32(generator.choice([0.3, 1.0, 2.0])))
            sizes: dict[str, Size] = {
                "count": count,
                "divisor": int(generator.integers(1, 200)),
                "weights": 0,
                "delta": delta,
            }
            x, target = generator.standard_normal((2, count)).astype(np.float32)
            target[generator.random(count) < 0.1] += np.float32(delta)
            where = generator.random(count) < 0.1
            target[where] = x[where]
            if count % 4 == 0:
                x[count // 2] = np.nan
            gradient = kernel.mode.endswith("_grad")
            inputs = [x, target, *([np.array([0.7], np.float32)] if gradient else [])]
            output = np.full(count if gradient else 1, 0.25, np.float32)
            in_place = {0: 0} if gradient and count % 3 == 0 else {}
            made = runner.call(kernel, [output], inputs, sizes, in_place=in_place).outputs
            same = natives.call(kernel, [output], inputs, sizes)
            known = ~np.isnan(same[0])
            assert (np.isnan(made[0]) == ~known).all(), sizes
            assert same_bits([made[0][known]], [same[0][known]]), sizes
