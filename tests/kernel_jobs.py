"""Calls of kernels to try, one for each node of each row of the case table."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
from math import prod

import numpy as np

from gradlet.ir.elements import F32
from gradlet.ir.graph import Array, Site, Tensor
from gradlet.ir.recipe import Recipe
from gradlet.kernels import catalogue
from gradlet.kernels.family import Operand
from gradlet.ops import OPS
from gradlet.ops.base import Lowering, Size, ints
from gradlet.ops.learning.optimizer import update_op
from gradlet.ops.lib.tiling import regions
from gradlet.oracle.interpreter import _spread, run_reference
from gradlet.oracle.scatter import MARGIN
from tests.cases import CASES, random_cases
from tests.helpers import op_training_graph, tile_operands


def settings_of(update: str) -> Array:
    recipe = Recipe(lr=0.5, weight_decay=0.25, momentum=0.75, nesterov=True)
    return np.array([getattr(recipe, name) for name in update_op(update).hyper], np.float32)


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
def jobs_by_mode(dtype: str = F32.name) -> dict[tuple[str, str], list[Job]]:
    """Jobs for each family and mode, from every row of the table; for another element type, from
    the rows in single precision and from its own."""
    found: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for case in (*CASES, *random_cases(240, seed=1)):
        if case.dtype not in (F32.name, catalogue.element_name(dtype)):
            continue
        graph = op_training_graph(case)
        values = next(iter(run_reference(graph, 1))).values
        for site in graph.sites():
            operands = [values[name] for name in site.node.inputs]
            for part, own in ((site, operands), *_tiles(site, operands)):
                lowering = OPS[part.node.op].lower(part)
                typed = _retyped(part, lowering, dtype)
                if catalogue.dtype_of(lowering.family, lowering.mode, typed) == dtype:
                    job = _job(f"{case.id}: {typed.node.op}", typed, own)
                    if _fits(job):
                        found[lowering.family, lowering.mode].append(job)
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
    element, *wide = dtype.split("/")
    products = jobs_by_mode(element) if wide else found
    vectors = [job for job in products["gemm", "nn"] if _is_vector(job)]
    found["back", "sgd"] = [_back(job, wide) for job in vectors]
    found["back", "relu_sgd"] = [_back(job, wide, relu=True) for job in vectors]
    found["loss_scale", "unscale_wide"] = [_wide(job) for job in found["loss_scale", "unscale"]]
    found["loss", "cross_entropy"] = [_both(job) for job in found["cross_entropy", "grad"]]
    return found


def _is_vector(job: Job) -> bool:
    sizes = dict(job.sizes)
    return sizes["batch"] == sizes["m"] == 1 and len(job.inputs) == 2


def _wide(job: Job) -> Job:
    """The same with a result in single precision."""
    node, outs = replace(job.site.node, op="unscale_wide"), job.site.outs
    site = Site(node, job.site.ins, tuple(replace(t, dtype=F32.name) for t in outs))
    return _job(f"wide: {job.label}", site, job.inputs)


def _back(job: Job, wide: Sequence[str], *, relu: bool = False) -> Job:
    """A product of a vector and weights that are updated afterwards, with hyper-parameters. relu:
    one has made the input, and the gradient is that of its own. wide: groups of operands that
    stay in single precision."""
    sizes, hyper = dict(job.sizes), settings_of("sgd")
    dy, w = job.inputs[0].reshape(-1), job.inputs[1]
    x = np.random.default_rng(len(dy)).standard_normal((w.shape[1],))
    x = _held(job.site.ins[0], np.maximum(x, 0) if relu else x)
    element = job.site.ins[0].element
    stored = element.unit_roundoff if element.accumulate and not wide else 0.0
    slope = np.outer(dy.astype(np.float64), x)
    operands = [w.astype(np.float64), slope, hyper.astype(np.float64)]
    results = update_op("sgd").reference({}, *operands)
    (size,) = update_op("sgd").magnitude({}, operands, results)
    return replace(
        job,
        label=f"back: {job.label}",
        inputs=(dy, x, hyper),
        expected=(job.expected[0] * (x > 0 if relu else 1), *results),
        tolerance=(*job.tolerance, 2.0**-22 * size + stored * np.abs(results[0])),
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
    drawn = np.random.default_rng(first.size).standard_normal(first.shape)
    second = _held(job.site.ins[0], drawn)
    total = first.astype(np.float64) + second
    expected = OPS[job.site.node.op].reference({}, total, *others)
    rounded = job.site.ins[0].element.unit_roundoff * np.abs(total)  # one addition
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
        tile, parts = op.tile(site, ranges), regions(site, op, ranges)
        if tile is not None and tile.attrs != site.attrs:
            found.append((tile, tile_operands(op, site, parts, operands)))
    return found


def _retyped(site: Site, lowering: Lowering, dtype: str) -> Site:
    """The same node with all operands of another type that a kernel of that type takes so; behind
    slashes in the type are groups of operands that stay as they are."""
    dtype, *wide = dtype.split("/")
    mode = catalogue.families()[lowering.family].modes[lowering.mode]

    def typed(formal: Sequence[Operand], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        pairs = zip_longest(formal[: len(tensors)], tensors)
        return tuple(
            replace(t, dtype=dtype)
            if o and not o.dtype and o.group not in wide and t.dtype == F32.name
            else t
            for o, t in pairs
        )

    return Site(site.node, typed(mode.inputs, site.ins), typed(mode.outputs, site.outs))


def _fits(job: Job) -> bool:
    """Whether its operands are none that their types cannot hold."""
    pairs = zip(job.site.ins, job.inputs, strict=True)
    return all(not t.element.accumulate or t.element.fits(value) for t, value in pairs)


def _held(tensor: Tensor, value: Array) -> Array:
    """As memory holds it, in single precision."""
    return tensor.element.rounded(value).astype(np.float32) if value.dtype.kind == "f" else value


def _job(label: str, site: Site, values: Sequence[Array]) -> Job:
    op = OPS[site.node.op]
    inputs = [_held(t, v) for t, v in zip(site.ins, values, strict=True)]
    wide = [v.astype(np.float64) if v.dtype.kind == "f" else v for v in inputs]
    results = op.reference(site.attrs, *wide)
    spread = _spread(site, wide, results)
    # a copy is exact; so is everything that is not rounded
    return Job(
        label,
        site,
        tuple(inputs),
        results,
        tuple(MARGIN * spread[name] for name in site.node.outputs),
        tuple(op.lower(site).sizes.items()),
        op.lower(site).repeat,
    )
