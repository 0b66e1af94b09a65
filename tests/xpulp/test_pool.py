"""Pooling in assembler: any stride and padding, both layouts, with NaN and ties; a thousand layers
for each variant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gradlet.ir.graph import Array
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.ops.base import Size
from tests.xpulp.support import NativeReference, cluster, same_bits

USED = [
    kernel
    for kernel in catalogue.kernels()
    if kernel.family == "pool" and catalogue.variant_of(kernel).isa == "xpulp"
]
NAMES = ("stride_h", "stride_w", "pad_top", "pad_left", "pad_bottom", "pad_right")


def sizes_of(kernel: Kernel, generator: np.random.Generator) -> dict[str, Size] | None:
    """Of some layer, or None if there is no such one."""
    most = int(generator.choice([4, 7, 12]))
    height, width = map(int, generator.integers(1, most, 2))
    if kernel.variant == "whole":
        window, numbers = (height, width), [1, 1, 0, 0, 0, 0]
    else:
        window = (int(kernel.variant[-1]),) * 2
        numbers = [*generator.integers(1, 4, 2), *generator.integers(0, window[0], 4)]
        if generator.random() < 0.5:
            numbers[2:] = [0] * 4
    stride, pad = [int(n) for n in numbers[:2]], [int(n) for n in numbers[2:]]
    out = [
        (size + pad[d] + pad[2 + d] - window[d]) // stride[d] + 1
        for d, size in enumerate((height, width))
    ]
    if min(out) < 1:
        return None
    channels, batch = (int(generator.integers(1, n)) for n in (12, 3))
    return {
        **{"planes": batch * channels, "channels": channels, "in_h": height, "in_w": width},
        **{"out_h": out[0], "out_w": out[1], "kernel_h": window[0], "kernel_w": window[1]},
        **dict(zip(NAMES, (*stride, *pad), strict=True)),
        **{"dilation_h": 1, "dilation_w": 1, "count_pad": int(generator.integers(0, 2))},
        "divisor": int(generator.choice([0, 0, 5])),
    }


def values(generator: np.random.Generator, count: int) -> Array:
    """Few different ones, so that there are ties; now and then a NaN."""
    value = generator.integers(-4, 5, count).astype(np.float32) / np.float32(3)
    if generator.random() < 0.2:
        value[generator.random(count) < 0.1] = np.nan
    if generator.random() < 0.2:
        value[generator.random(count) < 0.1] = np.inf * generator.choice([-1, 1])
    return value


def jobs(kernel: Kernel, count: int) -> Iterator[tuple[Array, list[Array], dict[str, Size]]]:
    generator = np.random.default_rng(4)
    while count:
        sizes = sizes_of(kernel, generator)
        if sizes is None:
            continue
        count -= 1
        planes, high, wide = (int(str(sizes[name])) for name in ("planes", "in_h", "in_w"))
        whole = planes * high * wide
        pooled = planes * int(str(sizes["out_h"])) * int(str(sizes["out_w"]))
        image, result = values(generator, whole), values(generator, pooled)
        if kernel.mode.startswith(("max_grad", "avg_grad")):
            inputs = [result, image] if "max" in kernel.mode else [result]
            yield np.full(whole, np.nan, np.float32), inputs, sizes
        else:
            yield np.full(pooled, np.nan, np.float32), [image], sizes


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_many_layers(kernel: Kernel, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    plain = Kernel(kernel.family, kernel.mode, "", "ref", "f32")
    natives = NativeReference([kernel, plain], tmp_path, 8)
    with KernelRunner([kernel], cluster(), sanitize=True) as runner:
        for output, inputs, sizes in jobs(kernel, part_of(260)):
            (made,) = runner.call(kernel, [output], inputs, sizes).outputs
            same = natives.call(kernel, [output], inputs, sizes)[0]
            (wanted,) = natives.call(plain, [output], inputs, sizes)
            # which NaN it is depends on the machine
            known = ~np.isnan(wanted)
            assert (np.isnan(made) == ~known).all(), sizes
            assert same_bits([made[known]], [same[known]]), sizes
            assert np.allclose(made[known], wanted[known], rtol=1e-5, atol=1e-5), sizes
