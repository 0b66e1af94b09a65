"""What depthwise convolutions cost, for the planner: strips of few pixels, row after row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.targets.cost import Cost

WIDEST = 5
TAPS = 9


def cost(
    mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any], constants: Cost
) -> float:
    """Cycles of the busiest core."""
    back = mode.startswith("input_grad")
    height, width = (sizes[name] for name in (("in_h", "in_w") if back else ("out_h", "out_w")))
    channels = sizes["batch"] * sizes["in_channels"]
    strips = -(-width // WIDEST)
    own, rows = -(-channels // cores), height
    begun = constants.depthwise_strip + constants.depthwise_sum * (strips - 1)
    if not mode.startswith("weight_grad"):
        own, rows = _shared(channels, height, cores)
        begun = constants.depthwise_strip * strips
    given = width * sizes["stride_w"] + 2 * strips
    instructions = constants.depthwise_instruction * (TAPS * width + given + width)
    row = instructions + constants.depthwise_row * strips
    even = strips == 1 and channels % cores == 0
    start = constants.depthwise_even if even else constants.depthwise_uneven
    return float(own * (rows * row + begun) + start)


def _shared(channels: int, height: int, cores: int) -> tuple[int, int]:
    """Pieces of channels of the busiest core, and their rows: cut so that all have about as many;
    a piece costs a row more."""
    parts = [2**n for n in range(cores.bit_length()) if n == 0 or 2 ** (n + 1) <= height]
    pieces = [(-(-channels * part // cores), -(-height // part) + 1) for part in parts]
    return min(pieces, key=lambda piece: piece[0] * piece[1])
