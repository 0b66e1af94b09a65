"""The inner loops of disturbed runs: C and numpy make the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet.ir.graph import Array
from gradlet.oracle import noise
from gradlet.support.compiler import available

STRANGE = (0.0, -0.0, 1e-45, 1e-320, 3e38, 1e39, -1e300, np.inf, -np.inf, np.nan)


def values(size: int) -> Array:
    chance = np.random.default_rng(size)
    drawn = chance.standard_normal(size) * 10.0 ** chance.integers(-12, 12, size)
    drawn[: len(STRANGE)] = STRANGE[:size]
    return drawn


def in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "library", lambda: None)


@pytest.mark.parametrize("size", [1, 7, 1000, noise.CHUNK + 3])
@pytest.mark.parametrize("amplitude", [4.0, 1.0, 2.0**-27])
def test_disturbed(size: int, amplitude: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noise.library() is not None, f"compiled by none of {available()}"
    given = values(size)
    with np.errstate(all="ignore"):
        spread = np.abs(given * 1e-7).astype(np.float32)
        spread[::3] = 0
        fast = noise.disturbed(given, 5, amplitude, spread)
        in_numpy(monkeypatch)
        plain = noise.disturbed(given, 5, amplitude, spread)
    known = ~np.isnan(plain)
    assert (known == ~np.isnan(fast)).all()
    assert fast[known].tobytes() == plain[known].tobytes()
    assert size == 1 or (plain != given)[known].any()


def test_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, moved = values(1000), values(1000)[::-1].copy()
    fast, plain = np.zeros((2, 1000)), np.zeros((2, 1000))
    moved[500:503] = np.nan
    lost = [noise.note_moves(fast[0], fast[1], moved, exact) for _ in range(2)]
    in_numpy(monkeypatch)
    lost += [noise.note_moves(plain[0], plain[1], moved, exact) for _ in range(2)]
    assert lost == [4] * 4
    assert fast.tobytes() == plain.tobytes()
    assert plain[0].max() == noise.LARGEST


def test_whole_numbers_and_single_ones() -> None:
    largest, squares = np.zeros(()), np.zeros(())
    noise.note_moves(largest, squares, np.asarray(3), np.asarray(5))
    noise.note_moves(largest, squares, np.asarray(1.5), np.asarray(0.5))
    assert (float(largest), float(squares)) == (2.0, 5.0)
