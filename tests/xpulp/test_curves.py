"""How far off the cluster's own functions are: by their C natives, which have the same bits as the
assembler (test_elementwise.py, test_exponents.py)."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet.ir.graph import Array
from gradlet.kernels import catalogue, source
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.xpulp.isa.arithmetic import EXPONENT, ROOT_SEED, SEED
from gradlet.ops import OPS
from gradlet.runtime import includes
from gradlet.support import compiler
from tests.xpulp.support import NativeReference

UNIT = 2.0**-24
MANY = """
void many_{0}(float *y, const float *x, int n)
{{
    for (int i = 0; i < n; ++i) y[i] = {0}(x[i]);
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("parts")
    texts = {name: f"{value}f" for name, value in EXPONENT.items()}
    text = '#include "gl.h"\n' + "".join(
        source.templates().get_template(name).render(seed=SEED, root_seed=ROOT_SEED, **texts)
        for name in ("newton.j2", "exp_below.j2")
    )
    text += "".join(map(MANY.format, ("inverse", "root_inverse", "exp_below")))
    (folder / "parts.c").write_text(text)
    path = compiler.build_library(
        [folder / "parts.c"], folder / "parts.so", include=includes("host")
    )
    return ctypes.CDLL(str(path))


def apply(library: Any, name: str, x: Array) -> Array:
    y = np.empty_like(x)
    pointers = [v.ctypes.data_as(ctypes.c_void_p) for v in (y, x)]
    getattr(library, f"many_{name}")(*pointers, len(x))
    return y


def units(actual: Array, exact: Array) -> float:
    """Largest error, relative to the exact result, in units of 2^-24."""
    return float((np.abs(actual.astype(np.float64) - exact) / np.abs(exact)).max() / UNIT)


def test_the_exponential_down_to_its_least(library: Any) -> None:
    x = np.linspace(-86, 0, 1_000_001).astype(np.float32)
    assert units(apply(library, "exp_below", x), np.exp(x.astype(np.float64))) <= 7
    near = np.linspace(-20, 0, 1_000_001).astype(np.float32)
    assert units(apply(library, "exp_below", near), np.exp(near.astype(np.float64))) <= 4
    below = np.array([np.nextafter(np.float32(-86), np.float32(-87)), -1e30, -np.inf], np.float32)
    assert (apply(library, "exp_below", below) == 0).all()


def test_inverse_and_root(library: Any) -> None:
    mantissas = np.linspace(1, 2, 200_001)
    x = np.concatenate([mantissas * 2.0**e for e in (-60, -7, 0, 1, 22, 59)]).astype(np.float32)
    wide = x.astype(np.float64)
    assert units(apply(library, "inverse", x), 1 / wide) <= 1.3
    assert units(apply(library, "inverse", -x), -1 / wide) <= 1.3
    assert units(apply(library, "root_inverse", x), 1 / np.sqrt(wide)) <= 2
    powers = 2.0 ** np.arange(-60, 60, dtype=np.float32)
    assert (apply(library, "inverse", powers) == 1 / powers).all()


BOUNDS = {
    "sigmoid": (-80, 100, 8),
    "tanh": (-40, 40, 4),
    "silu": (-80, 100, 8),
    "silu_grad": (-80, 100, 8),
    "gelu": (-12.5, 100, 10),
    "gelu_grad": (-12.5, 100, 10),
    "gelu_tanh": (-9, 100, 9),
    "gelu_tanh_grad": (-9, 100, 6),
    "exp": (-86, 88.7, 8),
    "expm1_grad": (-86, 88.7, 8),
    "elu": (-86, 100, 3),
    "elu_grad": (-86, 100, 8),
    "softplus": (-80, 100, 9),
    "softplus_grad": (-80, 100, 8),
    "reciprocal": (-100, 100, 2),
    "log_grad": (-100, 100, 2),
    "sqrt_grad": (-100, 100, 2),
}
"""From, to, and units of the size that the op gives to an error."""
NUMBERS = {"elu": {"alpha": 1.0}, "softplus": {"beta": 1.0, "threshold": 20.0}}
USED = [
    kernel for kernel in catalogue.kernels() if kernel.mode in BOUNDS and kernel.variant != "ref"
]
CURVES = [kernel for kernel in USED if kernel.variant == "curve"]


@pytest.mark.parametrize("kernel", USED, ids=lambda kernel: kernel.name)
def test_curves_stay_within_their_bounds(kernel: Kernel, tmp_path: Path) -> None:
    low, high, bound = BOUNDS[kernel.mode]
    small = np.geomspace(1e-30, 1, 50_000)
    x = np.concatenate([np.linspace(low, high, 100_000), small, -small]).astype(np.float32)
    inputs = [np.ones_like(x), x] if kernel.mode.endswith("_grad") else [x]
    attrs = NUMBERS.get(kernel.mode.removesuffix("_grad"), {})
    a, b = [*attrs.values(), 0.0, 0.0][:2]
    sizes = {"count": len(x), "a": a, "b": b}
    (y,) = NativeReference([kernel], tmp_path, 8).call(kernel, [np.empty_like(x)], inputs, sizes)
    wide = [value.astype(np.float64) for value in inputs]
    exact = OPS[kernel.mode].reference(attrs, *wide)
    (size,) = OPS[kernel.mode].magnitude(attrs, wide, exact)
    error = np.abs(y.astype(np.float64) - exact[0]) / np.maximum(np.abs(size), 2.0**-126)
    assert error.max() <= bound * UNIT, (error.max() / UNIT, x[error.argmax()])


@pytest.mark.parametrize("kernel", CURVES, ids=lambda kernel: kernel.name)
def test_the_ends_of_the_line(kernel: Kernel, tmp_path: Path) -> None:
    """Far out all of them are 0, 1, -1 or x, and a NaN of any sign is one."""
    x = np.array([1e10, np.inf, -1e10, np.nan, -np.nan], np.float32)
    inputs = [np.ones_like(x), x] if kernel.mode.endswith("_grad") else [x]
    sizes = {"count": len(x), "a": 0.0, "b": 0.0}
    (y,) = NativeReference([kernel], tmp_path, 8).call(kernel, [np.empty_like(x)], inputs, sizes)
    grows = kernel.mode in ("silu", "gelu", "gelu_tanh")
    right = x[:2] if grows else np.ones(2, np.float32)
    if kernel.mode in ("silu_grad", "gelu_tanh_grad"):
        right = np.array([1, np.nan], np.float32)  # 1 + infinity times 0
    np.testing.assert_array_equal(y[:2], right)
    left = -1.0 if kernel.mode == "tanh" else 0.0
    assert abs(y[2] - left) <= 2e-36
    assert np.isnan(y[3:]).all()
