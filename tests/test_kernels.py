"""Every kernel of the catalogue against its op's reference: many shapes, odd ones and 1 among them,
teams of 1 to 8 cores, in any order, in place where that is allowed, sanitizers on."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.ir.elements import ELEMENTS, F32, Element
from gradlet.ir.graph import Array
from gradlet.kernels import catalogue, source, traits
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.family import Operand
from gradlet.ops import OPS
from gradlet.ops.learning.optimizer import Update, update_op
from gradlet.oracle.growth import grown
from gradlet.oracle.scatter import MARGIN
from gradlet.runtime import includes
from gradlet.support import compiler
from tests.kernel_jobs import Job, jobs_by_mode, settings_of

TEAMS = (1, 2, 3, 8)
ALL = [k for e in ELEMENTS.values() if e.is_float for k in catalogue.kernels(e.name)]


Called = tuple[Job, dict[str, Any], list[Array]]
"""A job, its call, and what that left in the outputs."""


PRODUCT, RELU = Kernel("gemm", "nn", "", "ref", "f32"), Kernel("unary", "relu", "", "ref", "f32")
"""What the tests of the comparison itself take."""


@pytest.fixture(scope="session")
def asked(request: pytest.FixtureRequest) -> list[Kernel]:
    """The kernels whose tests run."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = {item.callspec.params.get("kernel") for item in items if hasattr(item, "callspec")}
    return [kernel for kernel in ALL if kernel in {PRODUCT, RELU, *wanted}]


@pytest.fixture(scope="session")
def library(asked: list[Kernel], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Those of a family in one sanitized library, made where the tests of the family run."""

    @cache
    def made(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        sources = []
        for kernel in asked:
            if kernel.family == family:
                sources.append(folder / f"{kernel.name}.c")
                sources[-1].write_text(source.render(kernel))
        return compiler.build_library(
            sources, folder / "all.so", include=[folder, *includes("host")], sanitize=True
        )

    return made


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
    made, formal = catalogue.operands(kernel)
    return {
        "label": f"{job.label} by {kernel.name} on {len(order)} cores",
        "symbol": kernel.name,
        "inputs": _in_memory(kernel, formal, inputs),
        "outputs": _in_memory(kernel, made, outputs),
        "in_place": in_place or {},
        "scratch": catalogue.scratch_bytes(kernel, dict(job.sizes), len(order)),
        "sizes": sizes,
        "order": order,
        "repeat": job.repeat * catalogue.variant_of(kernel).steps,
        "stepped": catalogue.stepped(kernel),
    }


def _in_memory(
    kernel: Kernel, formal: Sequence[Operand], values: Sequence[Array | None]
) -> list[Array | None]:
    """Operands as their elements lie there."""
    pairs = zip(formal, values, strict=True)
    return [None if v is None else source.element_of(kernel, o).stored(v) for o, v in pairs]


def _unwritten(value: Array) -> Array:
    if value.dtype.kind == "f":
        return np.full(value.shape, np.nan, np.float32)
    return np.full(value.shape, -7777777, np.int32)


def weights(kernel: Kernel, job: Job) -> list[Array]:
    """The weight that a fused update finds, and what it remembers of it."""
    generator = np.random.default_rng(7)
    count = 1 + len(catalogue.epilogues()[kernel.epilogue].outputs)
    shape = job.expected[0].shape
    drawn = (generator.standard_normal(shape) for _ in range(count))
    pairs = zip(elements_of(kernel), drawn, strict=True)
    return [element.rounded(value).astype(np.float32) for element, value in pairs]


def elements_of(kernel: Kernel) -> list[Element]:
    """Of what a fused update replaces."""
    return [source.element_of(kernel, made) for made in catalogue.operands(kernel)[0]]


def expected_of(kernel: Kernel, job: Job) -> list[tuple[Array, Array]]:
    """What the kernel must make, and how far off it may be."""
    if (own := traits.growth(kernel)) != traits.Growth():
        wider = tuple(grown(bound, own.factor, own.reach) for bound in job.tolerance)
        job = replace(job, tolerance=wider)
    if not kernel.epilogue:
        return list(zip(job.expected, job.tolerance, strict=True))
    w, *states = (value.astype(np.float64) for value in weights(kernel, job))
    if kernel.epilogue == "relu":
        return [(np.maximum(job.expected[0], 0.0), job.tolerance[0])]
    if kernel.epilogue == "sum":  # one rounding more
        total = w + job.expected[0]
        more = 2 * kernel.element.unit_roundoff * (np.abs(w) + np.abs(job.expected[0]))
        return [(total, job.tolerance[0] + more + kernel.element.smallest)]
    update = update_op(kernel.epilogue)
    operands = [w, job.expected[0], settings_of(kernel.epilogue).astype(np.float64), *states]
    results = update.reference({}, *operands)
    # so many more roundings of such terms; none of these settings makes an error larger
    computed = _unstored(kernel, job)
    found = []
    sizes = update.magnitude({}, operands, results)
    for element, value, size in zip(elements_of(kernel), results, sizes, strict=True):
        unit, least = update.additions * 2.0**-24, 0.0
        if element.accumulate:
            unit, least = unit + element.unit_roundoff, element.smallest
        found.append((value, computed + unit * size + least))
    return found


def _unstored(kernel: Kernel, job: Job) -> Array:
    """How far off a result is that nobody stores before it is used."""
    if not kernel.element.accumulate:
        return job.tolerance[0]
    stored = np.abs(job.expected[0]) * kernel.element.unit_roundoff + kernel.element.smallest
    return np.maximum(job.tolerance[0] * (1 + 2.0**-20) - MARGIN * stored, 0)


@pytest.fixture(scope="session")
def outcomes(
    asked: list[Kernel], library: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Kernel], list[Called]]:
    """What the calls of a kernel left. Those of a family go through one process."""
    known: dict[Kernel, list[Called]] = {}

    def made(kernels: list[Kernel]) -> None:
        plans = {kernel: calls_of(kernel) for kernel in kernels}
        calls = [plan for own in plans.values() for _, plan in own]
        own_library = library(kernels[0].family)
        results = iter(call(own_library, tmp_path_factory.mktemp("calls"), calls))
        for kernel, own in plans.items():
            formal, _ = catalogue.operands(kernel)
            for job, plan in own:
                pairs = zip(formal, next(results), strict=False)
                values = [source.element_of(kernel, o).loaded(value) for o, value in pairs]
                known.setdefault(kernel, []).append((job, plan, values))

    def of(kernel: Kernel) -> list[Called]:
        if kernel not in known:
            family = [k for k in asked if k.family == kernel.family]
            try:
                made(family)
            except AssertionError:  # one of them has ended the process; its own test says which
                made([kernel])
        return known[kernel]

    return of


def calls_of(kernel: Kernel) -> list[tuple[Job, dict[str, Any]]]:
    """For teams of several sizes, in another order of the cores, and in place."""
    plans = []
    for job in jobs_of(kernel):
        for cores in TEAMS:
            plans.append((job, c_call(kernel, job, list(range(cores)))))
        plans.append((job, c_call(kernel, job, list(reversed(range(3))))))
        plans += [(job, c_call(kernel, job, [0, 1, 2], i)) for i in overwritable(kernel, job)]
    return plans


def jobs_of(kernel: Kernel) -> list[Job]:
    variant = catalogue.variant_of(kernel)
    isa, streamed = (variant.isa, catalogue.INEXACT, catalogue.CHUNKED), variant.streamed()
    how = (kernel.family, kernel.mode, kernel.epilogue)
    dtype = kernel.element.name if kernel.epilogue else kernel.dtype
    return [
        job
        for job in jobs_by_mode(dtype)[kernel.family, kernel.mode]
        if kernel
        in catalogue.candidates(*how, dict(job.sizes), isa, kernel.dtype, streamed=streamed)
    ]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "kernel",
    [pytest.param(k, id=k.name, marks=pytest.mark.xdist_group(k.family)) for k in ALL],
)
def test_kernel(kernel: Kernel, outcomes: Callable[[Kernel], list[Called]]) -> None:
    calls = outcomes(kernel)
    jobs = {id(job) for job, _, _ in calls}
    assert len(jobs) >= 4, "too few rows of the table reach this kernel"
    first: dict[int, list[Array]] = {}
    for job, plan, outputs in calls:
        for output, (wanted, tolerance) in zip(outputs, expected_of(kernel, job), strict=True):
            made = output.reshape(wanted.shape).astype(np.float64)
            held = kernel.element.rounded(wanted)  # what is too large for it is infinite
            error = np.where(np.isinf(held) & (made == held), 0.0, np.abs(made - wanted))
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


@pytest.mark.parametrize("dtype", [e.name for e in ELEMENTS.values() if e.is_float])
def test_a_portable_reference_exists_for_every_mode(dtype: str) -> None:
    """In every type, but for casts, which are between types, and modes whose operands have types
    of their own."""
    for family in catalogue.families().values():
        for mode in family.modes.values():
            if dtype == F32.name if family.name == "cast" else dtype != F32.name and mode.typed:
                continue
            for epilogue in ("", *mode.epilogues):
                kernel = Kernel(family.name, mode.name, epilogue, "ref", dtype)
                assert kernel in ALL
                assert catalogue.variant_of(kernel).isa == "c"


@pytest.mark.thorough
@pytest.mark.parametrize("tool", compiler.available(), ids=lambda tool: tool.name)
def test_every_kernel_compiles_without_a_warning(tool: Any, tmp_path: Path) -> None:
    sources = []
    for kernel in ALL:
        sources.append(tmp_path / f"{kernel.name}.c")
        sources[-1].write_text(source.render(kernel))
    compiler.build_library(
        sources, tmp_path / "all.so", include=[tmp_path, *includes("host")], compiler=tool
    )


@pytest.mark.parametrize("expression", ["__import__('os')", "a.b", "f(1)", "[1]", "a < b < c"])
def test_catalogue_expressions_are_arithmetic_only(expression: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        catalogue.evaluate(expression, {"a": 1, "b": 2, "c": 3})


@pytest.mark.xdist_group(PRODUCT.family)
def test_a_wrong_kernel_is_caught(library: Callable[[str], Path], tmp_path: Path) -> None:
    """The comparison above can fail: one missing term of a short sum is enough."""
    kernel = PRODUCT
    job = next(j for j in jobs_by_mode()["gemm", "nn"] if dict(j.sizes)["k"] == 5)
    plan = c_call(kernel, job, [0])
    plan["sizes"][3] = 4  # k: leave the last term out
    ((output,),) = call(library(kernel.family), tmp_path, [plan])
    error = np.abs(output.reshape(job.expected[0].shape) - job.expected[0])
    assert not (error <= job.tolerance[0]).all()


@pytest.mark.xdist_group(RELU.family)
def test_a_write_outside_an_operand_is_caught(
    library: Callable[[str], Path], tmp_path: Path
) -> None:
    kernel = RELU
    job = jobs_by_mode()["unary", "relu"][1]
    plan = c_call(kernel, job, [0])
    plan["sizes"][0] += 1
    with pytest.raises(AssertionError, match=r"overflow|outside an operand"):
        call(library(kernel.family), tmp_path, [plan])
