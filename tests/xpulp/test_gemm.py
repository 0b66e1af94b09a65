"""Matrix products in assembler: every variant over more than a thousand shapes, odd ones and 1
among them, with every access checked; bits against the C reference, values against float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.ir.elements import ELEMENTS
from gradlet.ir.graph import Array
from gradlet.kernels import catalogue, traits
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import KernelRunner
from gradlet.oracle.scatter import MARGIN
from tests.xpulp.support import NativeReference, cluster, same_bits

VARIANTS = [v for v in catalogue.families()["gemm"].variants if v.isa == "xpulp"]
USED = [
    kernel
    for element in ELEMENTS.values()
    if element.is_float
    for kernel in catalogue.kernels(element.name)
    if kernel.family == "gemm" and catalogue.variant_of(kernel).isa == "xpulp"
]
HYPER = {
    "sgd": [np.array(pair, np.float32) for pair in ((0.5, 0.25), (0.5, 0.0), (1.5, 0.0))],
    "momentum": [
        np.array([0.5, 0.25, 0.75, nesterov], np.float32) for nesterov in (1.0, 0.0, -0.0)
    ],
}
ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Job:
    kernel: Kernel
    outputs: list[Array]
    inputs: list[Array | None]
    sizes: dict[str, int]

    @property
    def label(self) -> str:
        return f"{self.kernel.name} {self.sizes}, bias: {self.inputs[2] is not None}"


def jobs(used: list[Kernel], count: int, seed: int) -> Iterator[Job]:
    """Random shapes that each kernel is meant for, most of them small."""
    generator = np.random.default_rng(seed)
    made = 0
    while made < count:
        kernel = used[made % len(used)]
        batch = int(generator.choice([1, 1, 1, 2, 3, 4, 6]))
        m, n, k = (int(generator.integers(1, top)) for top in generator.choice([3, 8, 24, 34], 3))
        if made % 11 == 0:
            batch = int(generator.integers(1, 3))
            m, n = int(generator.integers(30, 70)), int(generator.integers(1, 40)) * 4
        sizes = {"batch": batch, "m": m, "n": n, "k": k}
        yield _job(kernel, _fitting(kernel, sizes), generator)
        made += 1


def _fitting(kernel: Kernel, sizes: dict[str, int]) -> dict[str, int]:
    """The shape, or one that the variant takes: some sizes are small there."""
    variant = catalogue.variant_of(kernel)
    small = sizes["k"] % 7 + 1
    changes: list[dict[str, int]] = [{}, {"m": small}, {"m": 1}, {"m": 1, "k": 4}, {"k": 1}]
    changes += [{"batch": 1, **change} for change in changes]
    large = {"batch": 1, "n": sizes["n"] + 67}  # for those that fetch their weights
    changes += [{**large, "m": 1, "k": sizes["k"] + 64}, {**large, "m": sizes["m"] + 64, "k": 1}]
    for change in changes:
        if catalogue.fits(variant, {**sizes, **change}):
            return {**sizes, **change}
    raise AssertionError(variant.needs)


def _job(kernel: Kernel, sizes: dict[str, int], generator: np.random.Generator) -> Job:
    element = kernel.element

    def random(*shape: int) -> Array:
        return element.stored(generator.standard_normal(shape).astype(np.float32))

    batch, m, n, k = sizes.values()
    a = random(batch, k, m) if kernel.mode == "tn" else random(batch, m, k)
    b = random(batch, n, k) if kernel.mode == "nt" else random(batch, k, n)
    bias = random(n) if generator.random() < 0.5 else None
    settings = HYPER.get(kernel.epilogue, [])
    hyper = [settings[int(generator.integers(len(settings)))]] if settings else []
    c = (
        random(batch, m, n)
        if catalogue.updated(kernel)
        else element.stored(np.full((batch, m, n), np.nan, np.float32))
    )
    moments = [random(batch, m, n)] if kernel.epilogue == "momentum" else []
    return Job(kernel, [c, *moments], [a, b, bias, *hyper], sizes)


def expected(job: Job) -> tuple[Array, Array]:
    """The first output by float64, and how far off it may be."""
    element = job.kernel.element
    a, b, bias = (
        None if v is None else element.loaded(v).astype(np.float64) for v in job.inputs[:3]
    )
    assert a is not None
    assert b is not None
    a = a.swapaxes(1, 2) if job.kernel.mode == "tn" else a
    b = b.swapaxes(1, 2) if job.kernel.mode == "nt" else b
    value, size = a @ b, np.abs(a) @ np.abs(b)
    if bias is not None:
        value, size = value + bias, size + np.abs(bias)
    roundings = job.sizes["k"] + 1
    if job.kernel.epilogue == "relu":
        value = np.maximum(value, 0.0)
    elif job.kernel.epilogue:
        w = element.loaded(job.outputs[0]).astype(np.float64)
        value, size, roundings = _updated(job, w, value), size + np.abs(w), roundings + 4
        if len(job.outputs) > 1:
            size = size + np.abs(element.loaded(job.outputs[1]))
    bound = MARGIN * roundings * ROUNDOFF * size
    if element.accumulate:
        bound = bound * traits.growth(job.kernel).factor
        bound = bound + element.unit_roundoff * (np.abs(value) + bound) + element.smallest
    return value, bound


def _updated(job: Job, w: Array, gradient: Array) -> Any:
    if job.kernel.epilogue == "sum":
        return w + gradient
    assert job.inputs[3] is not None
    rate, decay, *rest = job.inputs[3].astype(np.float64)
    slope = gradient + decay * w
    if rest:
        moment = rest[0] * job.kernel.element.loaded(job.outputs[1]) + slope
        slope = slope + rest[0] * moment if rest[1] else moment
    return w - rate * slope


def check(job: Job, runner: KernelRunner, natives: NativeReference) -> None:
    device = runner.call(job.kernel, job.outputs, job.inputs, job.sizes).outputs
    wanted = natives.call(job.kernel, job.outputs, job.inputs, job.sizes)
    assert same_bits(device, wanted), job.label
    value, tolerance = expected(job)
    made = job.kernel.element.loaded(device[0])
    assert (np.abs(made - value) <= tolerance).all(), job.label


@pytest.mark.parametrize("variant", sorted({v.name for v in VARIANTS}))
def test_a_thousand_shapes(variant: str, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    used = [kernel for kernel in USED if kernel.variant == variant]
    natives = NativeReference(used, tmp_path, 8)
    reached: Counter[Any] = Counter()
    with KernelRunner(used, cluster(), sanitize=True) as runner:
        for job in jobs(used, part_of(1160), seed=1):
            check(job, runner, natives)
            reached[job.kernel] += 1
    assert len(reached) == len(used)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 7, 16])
def test_other_teams(cores: int, tmp_path: Path, part_of: Callable[[int], int]) -> None:
    natives = NativeReference(USED, tmp_path, cores)
    with KernelRunner(USED, cluster(cores), sanitize=True) as runner:
        for job in jobs(USED, part_of(120), seed=cores):
            check(job, runner, natives)
