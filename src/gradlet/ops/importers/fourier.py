"""Fourier transforms as products with constant matrices; complex numbers as pairs of real ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradlet.ir.graph import Array
from gradlet.ops.elementwise import affine
from gradlet.ops.importer import Call, Importer, from_torch


class Pair(NamedTuple):
    """A complex tensor: two real ones of the same shape."""

    real: str
    imag: str


def pair_of(imp: Importer, value: object) -> Pair:
    """A complex operand, or a real one with an imaginary part of 0."""
    found = imp.tensors(value)
    if isinstance(found, Pair):
        return found
    return Pair(found, imp.constant(np.zeros(imp.shape(found), np.float32)))


def along(imp: Importer, x: str, dim: int, matrix: Array) -> str:
    """A dimension of x, turned last, times a constant matrix, and turned back."""
    shape = list(imp.shape(x))
    order = [*(d for d in range(len(shape)) if d != dim), dim]
    back = [order.index(d) for d in range(len(shape))]
    if dim != len(shape) - 1:
        x = imp.add("transpose", [x], {"axes": tuple(order)})
    lead = [shape[d] for d in order[:-1]]
    rows = imp.add("reshape", [x], {"shape": (int(np.prod(lead, dtype=int)), shape[dim])})
    y = imp.add("matmul", [rows, imp.constant(matrix.astype(np.float32))], {"layout": "nn"})
    y = imp.add("reshape", [y], {"shape": (*lead, matrix.shape[1])})
    return y if dim == len(shape) - 1 else imp.add("transpose", [y], {"axes": tuple(back)})


def _waves(rows: int, columns: int, sign: float) -> Array:
    """exp(sign i 2 pi k n / rows), with the angle of whole turns left out."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % rows
    result: Array = np.exp(sign * 2j * np.pi * turns / rows)
    return result


def _scale(kind: int, count: int) -> float:
    return (1.0, 1.0 / math.sqrt(count), 1.0 / count)[kind]


def _turned(imp: Importer, x: Pair, dim: int, waves: Array) -> Pair:
    parts = [[along(imp, part, dim, m) for m in (waves.real, waves.imag)] for part in x]
    real = imp.add("sub", [parts[0][0], parts[1][1]])
    return Pair(real, imp.add("add", [parts[0][1], parts[1][0]]))


@from_torch("aten._fft_r2c.default")
def _real_to_complex(imp: Importer, call: Call) -> Sequence[str]:
    x, dims, kind, one_sided = imp.tensor(call.args[0]), call.args[1], *call.args[2:4]
    shape = imp.shape(x)
    dims = [int(d) % len(shape) for d in dims]
    scale = _scale(int(kind), int(np.prod([shape[d] for d in dims])))
    size = shape[dims[-1]]
    columns = size // 2 + 1 if one_sided else size
    waves = scale * _waves(size, columns, -1.0)
    y = Pair(*(along(imp, x, dims[-1], part) for part in (waves.real, waves.imag)))
    for dim in dims[:-1]:
        y = _turned(imp, y, dim, _waves(shape[dim], shape[dim], -1.0))
    return y


@from_torch("aten._fft_c2c.default")
def _complex_to_complex(imp: Importer, call: Call) -> Sequence[str]:
    x, kind, sign = pair_of(imp, call.args[0]), call.args[2], -1.0 if call.args[3] else 1.0
    shape = imp.shape(x.real)
    dims = [int(d) % len(shape) for d in call.args[1]]
    scale = _scale(int(kind), int(np.prod([shape[d] for d in dims])))
    for place, dim in enumerate(dims):
        waves = _waves(shape[dim], shape[dim], sign)
        x = _turned(imp, x, dim, waves * (scale if place == 0 else 1.0))
    return x


@from_torch("aten._fft_c2r.default")
def _complex_to_real(imp: Importer, call: Call) -> str:
    """What is left out of the spectrum of real numbers is the mirror of what is there."""
    x, kind, size = pair_of(imp, call.args[0]), call.args[2], int(call.args[3])
    shape = imp.shape(x.real)
    dims = [int(d) % len(shape) for d in call.args[1]]
    for dim in dims[:-1]:
        x = _turned(imp, x, dim, _waves(shape[dim], shape[dim], 1.0))
    whole = int(np.prod([shape[d] for d in dims[:-1]], dtype=int)) * size
    there = shape[dims[-1]]
    twice = np.where((np.arange(there) == 0) | (2 * np.arange(there) == size), 1.0, 2.0)
    waves = _scale(int(kind), whole) * twice[:, None] * _waves(size, size, 1.0)[:there]
    real, imag = (
        along(imp, part, dims[-1], matrix)
        for part, matrix in zip(x, (waves.real, waves.imag), strict=True)
    )
    return imp.add("sub", [real, imag])


@from_torch("aten.view_as_real.default")
def _view_as_real(imp: Importer, call: Call) -> str:
    parts = pair_of(imp, call.args[0])
    shape = (*imp.shape(parts.real), 1)
    return imp.add(
        "concat",
        [imp.add("reshape", [part], {"shape": shape}) for part in parts],
        {"axis": len(shape) - 1},
    )


@from_torch("aten.view_as_complex.default", "aten.complex.default")
def _view_as_complex(imp: Importer, call: Call) -> Sequence[str]:
    x = imp.tensor(call.args[0])
    if "view" not in call.target:
        return Pair(x, imp.tensor(call.args[1]))
    shape = imp.shape(x)
    ones = (1,) * len(shape)
    region = {"step": ones, "size": (*shape[:-1], 1)}
    starts = [(*(0,) * (len(shape) - 1), at) for at in (0, 1)]
    parts = [imp.add("slice", [x], {**region, "start": start}) for start in starts]
    return Pair(*(imp.add("reshape", [part], {"shape": shape[:-1]}) for part in parts))


@from_torch("aten.real.default", "aten.imag.default")
def _part(imp: Importer, call: Call) -> str:
    parts = pair_of(imp, call.args[0])
    return parts.real if "real" in call.target else parts.imag


@from_torch("aten.as_strided.default")
def _as_strided(imp: Importer, call: Call) -> str:
    """Elements of a tensor that lies row by row, at places that are known."""
    x = imp.tensor(call.args[0])
    count = int(np.prod(imp.shape(x), dtype=int))
    size, stride, start = call.args[1], call.args[2], int(call.arg(3) or 0)
    places = np.full((1,) * len(size), start)
    for dim, (extent, step) in enumerate(zip(size, stride, strict=True)):
        line = np.arange(extent) * step
        places = places + line.reshape((-1, *(1,) * (len(size) - dim - 1)))
    if places.min() < 0 or places.max() >= count:
        raise imp.unsupported("places outside of the tensor; slice it instead")
    flat = imp.add("reshape", [x], {"shape": (count, 1)})
    index = imp.constant(places.reshape(-1).astype(np.int32))
    found = imp.add("gather", [flat, index], {"skip": -1})
    return imp.add("reshape", [found], {"shape": tuple(size)})


def complex_result(imp: Importer, name: str, args: Sequence[object]) -> str | Pair | None:
    """An operation of complex numbers that mixes their parts; None if it does not."""
    match name:
        case "mul" | "multiply" if isinstance(args[1], int | float):
            return Pair(*(affine(imp, part, float(args[1])) for part in pair_of(imp, args[0])))
        case "mul" | "multiply":
            one, other = (pair_of(imp, value) for value in args[:2])
            products = [[imp.add("mul", [a, b]) for b in other] for a in one]
            real = imp.add("sub", [products[0][0], products[1][1]])
            return Pair(real, imp.add("add", [products[0][1], products[1][0]]))
        case "add" | "sub" if hasattr(args[0], "meta") and hasattr(args[1], "meta"):
            one, other = (pair_of(imp, value) for value in args[:2])
            made = [imp.add(name, [a, b]) for a, b in zip(one, other, strict=True)]
            return Pair(*made)
        case "abs":
            x = pair_of(imp, args[0])
            squares = [imp.add("mul", [part, part]) for part in x]
            return imp.add("root", [imp.add("add", squares)])
        case "conj" | "_conj" | "conj_physical" | "_conj_physical":
            x = pair_of(imp, args[0])
            return Pair(x.real, imp.add("neg", [x.imag]))
    return None
