"""Disturbing values within their rounding, and how far that moves them: the inner loops of
disturbed runs, in C, or in numpy where nothing can be compiled. Both make the same bits."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array
from gradlet.support.compiler import EXACT, available, linked

FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", *EXACT)
SOURCE = Path(__file__).with_name("noise.c")
CHUNK = 1 << 16
"""Elements that numpy works on at a time: they and what is made of them stay in a cache."""
LARGEST = np.finfo(np.float64).max
FUNCTIONS = """
void disturb(double *out, const double *given, const float *spread, size_t count, double amplitude,
             uint64_t seed);
size_t scatter(double *largest, double *squares, const double *disturbed, const double *exact,
               size_t count);
"""


def disturbed(result: Array, seed: int, amplitude: float, spread: Array) -> Array:
    """Rounded to float32 before, where anything is rounded: numbers that float32 does not tell
    apart become equal, and what only their difference tells is lost. A disturbance below that of
    float32 stands for a wider type, which tells them apart."""
    made: Array = np.empty(np.shape(result))
    given = np.ascontiguousarray(result, np.float64)
    sizes = np.ascontiguousarray(spread, np.float32)
    if sizes.size != given.size:
        sizes = np.ascontiguousarray(np.broadcast_to(sizes, made.shape))
    mixed = 0x9E3779B97F4A7C15 * (seed + 1) % 2**64
    found = library()
    if found is None:
        _disturb(made.reshape(-1), given.reshape(-1), sizes.reshape(-1), amplitude, mixed)
    else:
        at, native = found
        pointers = at("double[]", made), at("double[]", given), at("float[]", sizes)
        native.disturb(*pointers, given.size, amplitude, mixed)
    return made


def note_moves(largest: Array, squares: Array | None, moved: Array, exact: Array) -> int:
    """Note how far values have moved, in place: the largest so far, and any sum of squares. Returns
    how many are no number and should be one; these add nothing."""
    moved, exact = np.asarray(moved), np.asarray(exact)
    plain = all(v.dtype == np.float64 and v.flags.c_contiguous for v in (moved, exact))
    if library() is not None and plain and moved.shape == exact.shape:
        at, native = library()
        pointers = (at("double[]", array) for array in (largest, squares, moved, exact))
        return int(native.scatter(*pointers, exact.size))
    with np.errstate(invalid="ignore", over="ignore"):
        deviation = np.nan_to_num(np.abs(moved - exact), nan=0.0, posinf=LARGEST)
        np.maximum(largest, deviation, out=largest)
        if squares is not None:
            squares += deviation * deviation
    return int(lost(moved, exact).sum())


def lost(moved: Array, exact: Array) -> Array:
    """Where there is no number and should be one."""
    where: Array = np.isnan(moved) & np.isfinite(exact)
    return where


@cache
def library() -> Any:
    """How an array becomes a pointer, and the functions; None where no compiler can make them. Made
    at first use: loading cffi takes longer than `gradlet --help` should."""
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(FUNCTIONS)

    def pointer(kind: str, array: Array | None) -> Any:
        return ffi.NULL if array is None else ffi.from_buffer(kind, array)

    for compiler in available():
        bare = ("-nostdlib", "-fno-sanitize=all") if compiler.name == "ziglang" else ()
        try:
            made = linked(compiler, [*FLAGS, *bare], [SOURCE], "noise")
            return pointer, ffi.dlopen(str(made))
        except (GradletError, OSError):
            continue
    return None


def _disturb(flat: Array, given: Array, sizes: Array, amplitude: float, seed: int) -> None:
    for begin in range(0, flat.size, CHUNK):
        part = slice(begin, begin + CHUNK)
        with np.errstate(over="ignore"):  # beyond float32: all alike, which is fine for a draw
            single = given[part].astype(np.float32)
        size = amplitude * sizes[part].astype(np.float64)
        known = (size > 0) & np.isfinite(single) & (amplitude >= 1)
        rounded = np.where(known, single, given[part])
        flat[part] = rounded + _draws(single, seed) * size


def _draws(single: Array, seed: int) -> Array:
    """A number in [-1, 1) for each element, by its value: equal values are rounded alike, and
    their errors add up where independent ones would cancel."""
    mixed = single.view(np.uint32).astype(np.uint64)
    mixed += np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    draws: Array = (mixed >> np.uint64(11)) * 2.0**-52 - 1.0
    return draws
