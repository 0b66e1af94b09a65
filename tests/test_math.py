"""The runtime's exp and log: error bounds over the whole range, on the compiler at hand."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.engines import compiler
from gradlet.graph import Array

RUNTIME = Path(compiler.__file__).parent.parent / "c" / "runtime"
SOURCE = """
#include "gl.h"
void many_exp(float *y, const float *x, int n) { for (int i = 0; i < n; ++i) y[i] = gl_exp(x[i]); }
void many_log(float *y, const float *x, int n) { for (int i = 0; i < n; ++i) y[i] = gl_log(x[i]); }
static gl_range share(int id, int of, int n) { gl_core me = {id, of}; return gl_share(me, n); }
int share_begin(int id, int count, int n) { return share(id, count, n).begin; }
int share_end(int id, int count, int n) { return share(id, count, n).end; }
int ceil_div(int a, int b) { return gl_ceil_div(a, b); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.c").write_text(SOURCE)
    path = compiler.build_library([folder / "math.c"], folder / "math.so", include=[RUNTIME])
    return ctypes.CDLL(str(path))


def apply(library: Any, name: str, x: Array) -> Array:
    y = np.empty_like(x)
    pointers = [v.ctypes.data_as(ctypes.c_void_p) for v in (y, x)]
    getattr(library, name)(*pointers, len(x))
    return y


def ulps(actual: Array, exact: Array) -> float:
    """Largest error in units of the last place of the exact result."""
    spacing = np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64)
    return float((np.abs(actual.astype(np.float64) - exact) / spacing).max())


def every_kth(k: int) -> Array:
    """Floats of all signs and sizes: every k-th bit pattern, infinities and NaNs left out."""
    values = np.arange(0, 2**32, k, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return values[np.isfinite(values)]


def test_exp_is_within_two_ulps_everywhere(library: Any) -> None:
    x = every_kth(4099)
    x = np.concatenate([x, np.linspace(-104, 89, 200_000, dtype=np.float32)])
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(x.astype(np.float64))
        single = exact.astype(np.float32)
    y = apply(library, "many_exp", x)
    normal = np.isfinite(single) & (exact >= 2.0**-126)
    assert ulps(y[normal], exact[normal]) <= 2
    low = exact < 2.0**-126  # subnormal results: within two of the smallest step
    assert np.abs(y[low].astype(np.float64) - exact[low]).max() <= 2 * 2.0**-149
    assert np.isinf(y[exact > np.finfo(np.float32).max]).all()


def test_log_is_within_two_ulps_everywhere(library: Any) -> None:
    x = every_kth(4099)
    x = np.concatenate([x[x > 0], np.linspace(0.5, 2, 200_000, dtype=np.float32)])
    exact = np.log(x.astype(np.float64))
    y = apply(library, "many_log", x)
    away = x != 1
    assert ulps(y[away], exact[away]) <= 2
    assert (y[~away] == 0).all()


def test_special_values(library: Any) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(apply(library, "many_exp", x), [np.nan, np.inf, 0, 1, 1])
    x = np.array([np.nan, np.inf, -1.0, 0.0, 1.0], np.float32)
    np.testing.assert_array_equal(
        apply(library, "many_log", x), [np.nan, np.inf, np.nan, -np.inf, 0]
    )


def test_shares_cover_everything_once(library: Any) -> None:
    for n in (0, 1, 2, 7, 8, 9, 63, 64, 65):
        for count in range(1, 17):
            ranges = [
                (library.share_begin(i, count, n), library.share_end(i, count, n))
                for i in range(count)
            ]
            covered = [i for begin, end in ranges for i in range(begin, end)]
            assert covered == list(range(n))


def test_ceil_div(library: Any) -> None:
    for a in range(-20, 21):
        for b in range(1, 7):
            assert library.ceil_div(a, b) == -(-a // b)
