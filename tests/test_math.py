"""The runtime's functions: error bounds over the whole range, on the compiler at hand."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from gradlet.ir.graph import Array
from gradlet.runtime import includes
from gradlet.support import compiler

SOURCE = """
#include "gl.h"
static gl_range share(int id, int of, int n) { gl_core me = {id, of}; return gl_share(me, n); }
int share_begin(int id, int count, int n) { return share(id, count, n).begin; }
int share_end(int id, int count, int n) { return share(id, count, n).end; }
int ceil_div(int a, int b) { return gl_ceil_div(a, b); }
"""
FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "sqrt", "sigmoid", "tanh", "erf", "normal"),
    *("sin", "cos", "atan"),
)
FAR = math.sin(np.float32(1e30)), math.cos(np.float32(1e30))
MANY = """void many_{0}(float *y, const float *x, int n)
{{
    for (int i = 0; i < n; ++i) y[i] = gl_{0}(x[i]);
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.c").write_text(SOURCE + "".join(map(MANY.format, FUNCTIONS)))
    path = compiler.build_library([folder / "math.c"], folder / "math.so", include=includes("host"))
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


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "bound"),
    [
        ("expm1", math.expm1, -200, 88, 3),
        ("log1p", math.log1p, 0, 1e30, 3),
        ("sqrt", math.sqrt, 0, 3e38, 1),
        ("sigmoid", _sigmoid, -87, 3e38, 4),
        ("tanh", math.tanh, -3e38, 3e38, 4),
        ("erf", math.erf, -3e38, 3e38, 3),
        ("normal", _normal, -13, 3e38, 6),
        ("sin", math.sin, -3e38, 3e38, 3),
        ("cos", math.cos, -3e38, 3e38, 3),
        ("atan", math.atan, -3e38, 3e38, 3),
    ],
)
def test_functions_stay_within_their_bounds(
    library: Any, name: str, exact: Any, low: float, high: float, bound: float
) -> None:
    """Largest error in ulps, over all sizes and signs where the result is a normal number."""
    near = np.linspace(max(low, -20), min(high, 20), 300_000)
    x = np.concatenate([every_kth(8209), near.astype(np.float32)])
    x = x[(x >= low) & (x <= high)]
    wanted = np.array([exact(float(value)) for value in x])
    normal = np.abs(wanted) >= 2.0**-126
    y = apply(library, f"many_{name}", x)
    assert ulps(y[normal], wanted[normal]) <= bound
    assert np.abs(y[~normal] - wanted[~normal]).max(initial=0) <= 4 * 2.0**-149


def test_functions_at_the_ends_of_the_line(library: Any) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -1e30, 1e30], np.float32)
    wanted: dict[str, list[Any]] = {
        "expm1": [np.nan, np.inf, -1, 0, 0, -1, np.inf],
        "sigmoid": [np.nan, 1, 0, 0.5, 0.5, 0, 1],
        "tanh": [np.nan, 1, -1, 0, 0, -1, 1],
        "erf": [np.nan, 1, -1, 0, 0, -1, 1],
        "normal": [np.nan, 1, 0, 0.5, 0.5, 0, 1],
        "sin": [np.nan, np.nan, np.nan, 0, 0, -FAR[0], FAR[0]],
        "cos": [np.nan, np.nan, np.nan, 1, 1, FAR[1], FAR[1]],
        "atan": [np.nan, *(math.pi / 2 * np.array([1, -1, 0, 0, -1, 1]))],
        "sqrt": [np.nan, np.inf, np.nan, 0, 0, np.nan, np.float32(1e15)],
    }
    for name, values in wanted.items():
        y = apply(library, f"many_{name}", x)
        np.testing.assert_allclose(y, np.array(values, np.float32), rtol=1e-6, atol=0)


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
