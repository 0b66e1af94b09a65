"""Every kernel of the catalogue against its op's reference: many shapes, odd ones and 1 among them,
teams of 1 to 8 cores, in any order, in place where that is allowed, sanitizers on."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.ir.graph import Array, Site
from gradlet.ir.recipe import Recipe
from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.ops import OPS
from gradlet.ops.base import Size, ints
from gradlet.ops.learning.optimizer import Update, update_op
from gradlet.ops.lib.tiling import boxes
from gradlet.oracle.interpreter import _spread, run_reference
from gradlet.oracle.tolerance import MARGIN
from gradlet.runtime import includes
from gradlet.support import compiler
from tests.cases import CASES, Case, random_cases
from tests.helpers import op_training_graph, tile_operands

TEAMS = (1, 2, 3, 8)
ALL = list(catalogue.kernels())


@dataclass(frozen=True)
class Job:
    """One node of one case, with float32 operands and what float64 makes of them."""

    label: str
    site: Site
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    tolerance: tuple[Array, ...]
    sizes: tuple[tuple[str, Size], ...]
    repeat: int = 1
    before: tuple[Array | None, ...] = ()  # what is in the outputs, if anything


@cache
def jobs_by_mode() -> dict[tuple[str, str], list[Job]]:
    """Jobs for each family and mode, from every row of the table."""
    found: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for case in (*CASES, *random_cases(240, seed=1)):
        graph = op_training_graph(case)
        values = next(iter(run_reference(graph, 1))).values
        for site in graph.sites():
            operands = [values[name] for name in site.node.inputs]
            for part, own in ((site, operands), *_tiles(site, operands)):
                lowering = OPS[part.node.op].lower(part)
                found[lowering.family, lowering.mode].append(_job(case, part, own))
    found["unary", "reset"] = [
        Job("reset", job.site, job.inputs, (zero,), (zero,), job.sizes)
        for job in found["unary", "relu"]
        for zero in [job.expected[0] * 0]
    ]
    found["unary", "add_relu"] = [_of_sum(job) for job in found["unary", "relu"]]
    found["unary", "add_relu_grad"] = [_of_sum(job) for job in found["unary", "relu_grad"]]
    found["channel_sum", "sum"] = [
        _of_channels(job) for job in found["reduce", "sum"] if _kept(job)
    ]
    vectors = [job for job in found["gemm", "nn"] if _is_vector(job)]
    found["back", "sgd"] = [_back(job) for job in vectors]
    found["back", "relu_sgd"] = [_back(job, relu=True) for job in vectors]
    found["loss", "cross_entropy"] = [_both(job) for job in found["cross_entropy", "grad"]]
    return found


def _is_vector(job: Job) -> bool:
    sizes = dict(job.sizes)
    return sizes["batch"] == sizes["m"] == 1 and len(job.inputs) == 2


def _back(job: Job, *, relu: bool = False) -> Job:
    """A product of a vector and weights that are updated afterwards, with hyper-parameters. relu:
    one has made the input, and the gradient is that of its own."""
    sizes, hyper = dict(job.sizes), settings_of("sgd")
    dy, w = job.inputs[0].reshape(-1), job.inputs[1]
    x = np.random.default_rng(len(dy)).standard_normal((w.shape[1],)).astype(np.float32)
    x = np.maximum(x, 0) if relu else x
    slope = np.outer(dy.astype(np.float64), x)
    operands = [w.astype(np.float64), slope, hyper.astype(np.float64)]
    results = update_op("sgd").reference({}, *operands)
    (size,) = update_op("sgd").magnitude({}, operands, results)
    return replace(
        job,
        label=f"back: {job.label}",
        inputs=(dy, x, hyper),
        expected=(job.expected[0] * (x > 0 if relu else 1), *results),
        tolerance=(*job.tolerance, 2.0**-22 * size),
        sizes=tuple((name, sizes[name]) for name in ("n", "k")),
        before=(None, w),
    )


def _kept(job: Job) -> list[int]:
    """The only dimension that a sum keeps, if it is only one."""
    summed = ints(job.site.attrs, "axes")
    kept = [dim for dim in range(job.inputs[0].ndim) if dim not in summed]
    return kept if len(kept) == 1 else []


def _of_channels(job: Job) -> Job:
    (kept,), shape = _kept(job), job.inputs[0].shape
    sizes = {"outer": shape[:kept], "channels": shape[kept : kept + 1], "inner": shape[kept + 1 :]}
    return replace(
        job,
        label=f"channels: {job.label}",
        sizes=tuple((name, prod(extents)) for name, extents in sizes.items()),
    )


def _of_sum(job: Job) -> Job:
    """The same of the sum of two operands in place of the first."""
    first, *others = job.inputs
    second = np.random.default_rng(first.size).standard_normal(first.shape).astype(np.float32)
    total = first.astype(np.float64) + second
    expected = OPS[job.site.node.op].reference({}, total, *others)
    rounded = 2.0**-24 * np.abs(total)  # one addition
    return replace(
        job,
        label=f"sum: {job.label}",
        inputs=(first, second, *others),
        expected=expected,
        tolerance=(rounded,),
    )


def _both(job: Job) -> Job:
    """The loss as well as its gradient, in two steps."""
    scores, labels, _, *weights = job.inputs
    operands = [scores.astype(np.float64), labels, *(w.astype(np.float64) for w in weights)]
    op = OPS["cross_entropy"]
    loss = op.reference(job.site.attrs, *operands)
    (size,) = op.magnitude(job.site.attrs, operands, loss)
    tolerance = MARGIN * 2.0**-24 * (8 + scores.size) * size
    return replace(
        job,
        label=f"both: {job.label}",
        expected=(*loss, *job.expected),
        tolerance=(tolerance, *job.tolerance),
        repeat=2,
    )


def _tiles(site: Site, operands: list[Array]) -> list[tuple[Site, list[Array]]]:
    """Two of the parts of a node that have other attributes than it has itself, such as padding
    that no layer would be given."""
    op, chance = OPS[site.node.op], random.Random(str(site))
    found: list[tuple[Site, list[Array]]] = []
    axes = [axis for axis in op.axes(site) if axis.size > 1]
    for axis in chance.sample(axes, min(2, len(axes))):
        begin = chance.randrange(axis.size)
        ranges = {axis.name: (begin, chance.randint(begin + 1, axis.size))}
        tile, parts = op.tile(site, ranges), boxes(site, op, ranges)
        if tile is not None and tile.attrs != site.attrs:
            found.append((tile, tile_operands(op, site, parts, operands)))
    return found


def _job(case: Case, site: Site, values: list[Array]) -> Job:
    op = OPS[site.node.op]
    inputs = [v.astype(np.float32) if v.dtype.kind == "f" else v for v in values]
    wide = [v.astype(np.float64) if v.dtype.kind == "f" else v for v in inputs]
    results = op.reference(site.attrs, *wide)
    spread = _spread(site, wide, results)
    # a copy is exact; so is everything that is not rounded
    return Job(
        f"{case.id}: {site.node.op}",
        site,
        tuple(inputs),
        results,
        tuple(MARGIN * spread[name] for name in site.node.outputs),
        tuple(op.lower(site).sizes.items()),
        op.lower(site).repeat,
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kernels in one sanitized library."""
    folder = tmp_path_factory.mktemp("kernels")
    sources = []
    for kernel in ALL:
        sources.append(folder / f"{kernel.name}.c")
        sources[-1].write_text(catalogue.render(kernel))
    return compiler.build_library(
        sources, folder / "all.so", include=[folder, *includes("host")], sanitize=True
    )


def call(library: Path, folder: Path, calls: list[dict[str, Any]]) -> list[list[Array]]:
    (folder / "jobs").write_bytes(pickle.dumps(calls))
    preload = compiler.default().sanitizer_runtime
    environment = dict(os.environ)
    if preload:
        environment |= {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"}
    worker = Path(__file__).with_name("kernel_worker.py")
    mode = "exact" if preload else "guarded"
    done = subprocess.run(
        [sys.executable, str(worker), str(library), str(folder), mode],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "runtime error" not in done.stderr, done.stderr[-3000:]
    results: list[list[Array]] = pickle.loads((folder / "results").read_bytes())
    return results


def c_call(
    kernel: Kernel, job: Job, order: list[int], in_place: dict[int, int] | None = None
) -> dict[str, Any]:
    """The C call of a job, as the worker takes it."""
    sizes: list[int] = []
    fields = [name for name, _ in catalogue.families()[kernel.family].sizes]
    assert sorted(fields) == sorted(dict(job.sizes))
    for value in (dict(job.sizes)[name] for name in fields):
        if isinstance(value, float):
            value = int(np.float32(value).view(np.int32))
        sizes.extend(value if isinstance(value, tuple) else [int(value)])
    _, formal = catalogue.operands(kernel)
    settings = catalogue.epilogues()[kernel.epilogue].inputs if kernel.epilogue else ()
    missing = len(formal) - len(settings) - len(job.inputs)
    inputs: list[Array | None] = [*job.inputs, *([None] * missing)]
    made, _ = catalogue.operands(kernel)
    begun = job.before or (None,) * len(job.expected)
    outputs: list[Array | None] = [
        _unwritten(value) if before is None else before.copy()
        for value, before in zip(job.expected, begun, strict=True)
    ]
    outputs += [None] * (len(made) - len(outputs))
    if catalogue.updated(kernel):
        w, *states = weights(kernel, job)
        inputs += [settings_of(kernel.epilogue) for _ in settings]
        outputs = [w, *states]
    return {
        "label": f"{job.label} by {kernel.name} on {len(order)} cores",
        "symbol": kernel.name,
        "inputs": inputs,
        "outputs": outputs,
        "in_place": in_place or {},
        "scratch": catalogue.scratch_elements(kernel, dict(job.sizes), len(order)),
        "sizes": sizes,
        "order": order,
        "repeat": job.repeat,
        "stepped": catalogue.families()[kernel.family].stepped,
    }


def _unwritten(value: Array) -> Array:
    if value.dtype.kind == "f":
        return np.full(value.shape, np.nan, np.float32)
    return np.full(value.shape, -7777777, np.int32)


def settings_of(update: str) -> Array:
    recipe = Recipe(lr=0.5, weight_decay=0.25, momentum=0.75, nesterov=True)
    return np.array([getattr(recipe, name) for name in update_op(update).hyper], np.float32)


def weights(kernel: Kernel, job: Job) -> list[Array]:
    """The weight that a fused update finds, and what it remembers of it."""
    generator = np.random.default_rng(7)
    count = 1 + len(catalogue.epilogues()[kernel.epilogue].outputs)
    shape = job.expected[0].shape
    return [generator.standard_normal(shape).astype(np.float32) for _ in range(count)]


def expected_of(kernel: Kernel, job: Job) -> list[tuple[Array, Array]]:
    """What the kernel must make, and how far off it may be."""
    if not kernel.epilogue:
        return list(zip(job.expected, job.tolerance, strict=True))
    w, *states = (value.astype(np.float64) for value in weights(kernel, job))
    if kernel.epilogue == "relu":
        return [(np.maximum(job.expected[0], 0.0), job.tolerance[0])]
    if kernel.epilogue == "sum":  # one rounding more
        total = w + job.expected[0]
        return [(total, job.tolerance[0] + 2.0**-23 * (np.abs(w) + np.abs(job.expected[0])))]
    update = update_op(kernel.epilogue)
    operands = [w, job.expected[0], settings_of(kernel.epilogue).astype(np.float64), *states]
    results = update.reference({}, *operands)
    # so many more roundings of such terms; none of these settings makes an error larger
    more = update.additions * 2.0**-24
    rounding = [more * size for size in update.magnitude({}, operands, results)]
    return [(value, job.tolerance[0] + own) for value, own in zip(results, rounding, strict=True)]


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_kernel(kernel: Kernel, library: Path, tmp_path: Path) -> None:
    isa = (catalogue.variant_of(kernel).isa,)
    jobs = [
        job
        for job in jobs_by_mode()[kernel.family, kernel.mode]
        if kernel
        in catalogue.candidates(
            *(kernel.family, kernel.mode, kernel.epilogue, dict(job.sizes), isa, kernel.dtype),
            streamed=catalogue.variant_of(kernel).streamed(),
        )
    ]
    assert len(jobs) >= 4, "too few rows of the table reach this kernel"
    plans = []
    for job in jobs:
        for cores in TEAMS:
            plans.append((job, c_call(kernel, job, list(range(cores)))))
        plans.append((job, c_call(kernel, job, list(reversed(range(3))))))
        plans += [(job, c_call(kernel, job, [0, 1, 2], i)) for i in overwritable(kernel, job)]
    results = call(library, tmp_path, [plan for _, plan in plans])
    first: dict[int, list[Array]] = {}
    for (job, plan), outputs in zip(plans, results, strict=True):
        for output, (wanted, tolerance) in zip(outputs, expected_of(kernel, job), strict=True):
            error = np.abs(output.reshape(wanted.shape).astype(np.float64) - wanted)
            assert (error <= tolerance).all(), (plan["label"], error.max())
        for same, output in zip(first.setdefault(id(job), outputs), outputs, strict=True):
            assert np.array_equal(same, output), f"other bits: {plan['label']}"


def overwritable(kernel: Kernel, job: Job) -> list[dict[int, int]]:
    """Operands whose memory the outputs may take: one for the first, or all that are replaced."""
    op = OPS[job.site.node.op]
    slots = [slot.rstrip("?") for slot in op.inputs]
    if kernel.epilogue or kernel.mode == "reset" or kernel.family == "loss":
        return []
    if isinstance(op, Update):
        names = enumerate(name.removesuffix("_next") for name in op.outputs)
        return [{index: slots.index(name) for index, name in names}]
    output = op.outputs.index(op.overwriter) if op.overwriter else 0
    return [
        {output: slots.index(slot)}
        for slot in op.overwrites
        if job.inputs[slots.index(slot)].shape == job.expected[output].shape
    ]


def test_names_are_derived_and_unique() -> None:
    names = [kernel.name for kernel in ALL]
    assert len(set(names)) == len(names)
    assert "gl_f32_gemm_tn_sgd__lanes_4x16" in names
    assert Kernel("gemm", "nt", "", "ref", "f32").symbol("net") == "net_f32_gemm_nt__ref"


def test_only_updates_are_taken_for_updates() -> None:
    """`sum` is the name of an op as well."""
    assert "sum" in OPS
    assert set(catalogue.updates()) == {"sgd", "momentum"}
    assert all(isinstance(OPS[name], Update) for name in catalogue.updates())


def test_a_portable_reference_exists_for_every_mode() -> None:
    for family in catalogue.families().values():
        for mode in family.modes.values():
            for epilogue in ("", *mode.epilogues):
                kernel = Kernel(family.name, mode.name, epilogue, "ref", "f32")
                assert kernel in ALL
                assert catalogue.variant_of(kernel).isa == "c"


@pytest.mark.parametrize("tool", compiler.available(), ids=lambda tool: tool.name)
def test_every_kernel_compiles_without_a_warning(tool: Any, tmp_path: Path) -> None:
    sources = []
    for kernel in ALL:
        sources.append(tmp_path / f"{kernel.name}.c")
        sources[-1].write_text(catalogue.render(kernel))
    compiler.build_library(
        sources, tmp_path / "all.so", include=[tmp_path, *includes("host")], compiler=tool
    )


@pytest.mark.parametrize("expression", ["__import__('os')", "a.b", "f(1)", "[1]", "a < b < c"])
def test_catalogue_expressions_are_arithmetic_only(expression: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        catalogue.evaluate(expression, {"a": 1, "b": 2, "c": 3})


def test_a_wrong_kernel_is_caught(library: Path, tmp_path: Path) -> None:
    """The comparison above can fail: one missing term of a short sum is enough."""
    kernel = Kernel("gemm", "nn", "", "ref", "f32")
    job = next(j for j in jobs_by_mode()["gemm", "nn"] if dict(j.sizes)["k"] == 5)
    plan = c_call(kernel, job, [0])
    plan["sizes"][3] = 4  # k: leave the last term out
    ((output,),) = call(library, tmp_path, [plan])
    error = np.abs(output.reshape(job.expected[0].shape) - job.expected[0])
    assert not (error <= job.tolerance[0]).all()


def test_a_write_outside_an_operand_is_caught(library: Path, tmp_path: Path) -> None:
    kernel = Kernel("unary", "relu", "", "ref", "f32")
    job = jobs_by_mode()["unary", "relu"][1]
    plan = c_call(kernel, job, [0])
    plan["sizes"][0] += 1
    with pytest.raises(AssertionError, match=r"overflow|outside an operand"):
        call(library, tmp_path, [plan])
