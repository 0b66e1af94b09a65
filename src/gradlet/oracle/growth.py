"""Errors of kernels that round more than plain sums do, as by Winograd's algorithm."""

from __future__ import annotations

import numpy as np

from gradlet.ir.graph import Array


def grown(error: Array, factor: float, reach: int) -> Array:
    """So many times the largest error of the neighbours in a row: such a kernel adds numbers of a
    whole tile of the row, whose parts cancel where a plain sum does not have them."""
    size = error.shape[-1]
    around = np.pad(error, [(0, 0)] * (error.ndim - 1) + [(reach, reach)])
    windows = np.lib.stride_tricks.sliding_window_view(around, 2 * reach + 1, axis=-1)
    assert windows.shape[-2] == size
    return np.asarray(factor * windows.max(axis=-1))
