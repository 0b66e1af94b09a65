"""What depthwise convolutions cost, for the planner: strips of few pixels, row after row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WIDEST = 5
TAPS = 9
ROW = 4.0
"""Instructions of a row besides its multiply-adds, loads and stores."""
STRIP = 60.0
"""Cycles of a core before the first row of a strip of a channel."""
QUICK, SLOW = 100.0, 500.0
"""Cycles of a call: of a single strip of as many channels for each core; of anything else, where
several functions are fetched."""
WORTH = 0.55
"""Multiply-adds of a core in a cycle, as the planner counts."""


def cost(mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any]) -> int:
    """Multiply-adds that the time of the busiest core is worth, times the cores."""
    back = mode.startswith("input_grad")
    height, width = (sizes[name] for name in (("in_h", "in_w") if back else ("out_h", "out_w")))
    channels = sizes["batch"] * sizes["in_channels"]
    strips = -(-width // WIDEST)
    own, rows = -(-channels // cores), height
    if not mode.startswith("weight_grad"):
        own, rows = _shared(channels, height, cores)
    given = width * sizes["stride_w"] + 2 * strips
    row = TAPS * width + given + width + ROW * strips
    even = strips == 1 and channels % cores == 0
    busiest = own * (rows * row + STRIP * strips) + (QUICK if even else SLOW)
    return int(cores * WORTH * busiest)


def _shared(channels: int, height: int, cores: int) -> tuple[int, int]:
    """Pieces of channels of the busiest core, and their rows: cut so that all have about as many;
    a piece costs a row more."""
    parts = [2**n for n in range(cores.bit_length()) if n == 0 or 2 ** (n + 1) <= height]
    pieces = [(-(-channels * part // cores), -(-height // part) + 1) for part in parts]
    return min(pieces, key=lambda piece: piece[0] * piece[1])
