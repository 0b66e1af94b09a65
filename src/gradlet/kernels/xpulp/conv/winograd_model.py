"""What convolutions by Winograd's algorithm cost, and how their errors grow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradlet.targets.cost import Cost

CHANNELS, TAPS, ROWS = 2, 3, 8
"""Of a register block; of the kernel, along either side."""
LINE, PART = 18, 600
"""Instructions of a line of the map besides its tiles, and of a tile that sticks out."""

Matrix = tuple[tuple[float, ...], ...]
TRANSFORMS: dict[int, tuple[Matrix, Matrix, Matrix]] = {
    2: (
        ((1, 1, 1, 0), (0, 1, -1, 1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
    ),
    4: (
        ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
        (
            *((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6)),
            *((1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1)),
        ),
        (
            *((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0)),
            *((0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)),
        ),
    ),
}
"""By the number of outputs: of the sums of phases to results, of weights and map to phases."""


def growth(mode: str, params: Mapping[str, Any]) -> tuple[float, int]:
    """Errors over those of plain sums: as the products of a phase are as large as its transforms
    make them, and errors add up as squares do, the norms of the rows tell; of the worst result."""
    results, weights, values = TRANSFORMS[params["outputs"]]
    if mode == "weight_grad":  # the weights and the results change places
        results, weights = tuple(zip(*weights, strict=True)), tuple(zip(*results, strict=True))
    sizes = [_square(w) * _square(v) for w, v in zip(weights, values, strict=True)]
    sums = [sum(a * a * size for a, size in zip(row, sizes, strict=True)) for row in results]
    return math.sqrt(max(sums) / len(weights[0])), params["outputs"] + TAPS - 2


def _square(row: Sequence[float]) -> float:
    return sum(number * number for number in row)


def cost(
    mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any], constants: Cost
) -> float:
    """Cycles of the busiest core."""
    sides = ("in", "out") if mode != "input_grad" else ("out", "in")
    given, made = (sizes[f"{side}_channels"] for side in sides)
    height, width = (sizes[f"{sides[1]}_{name}"] for name in "hw")
    outputs, batch = params["outputs"], sizes["batch"]
    phases, tiles = outputs + TAPS - 1, -(-width // outputs)
    weights = -(-(-(-made // 2) * given) // cores) * (20 + CHANNELS * TAPS * 3 * phases)
    lines = -(-(batch * given * (height + 2)) // cores) * (LINE + tiles * 4 * phases)
    blocks = -(-height // ROWS)
    rows = -(-height // blocks)
    units = batch * -(-made // CHANNELS) * tiles
    each = phases * (given * (7 * rows + 8) + 5 * rows) + 44 * rows + 50
    out = PART * (units if made == 1 else bool(width % outputs) * units // tiles)
    products = -(-units * blocks // cores) * each + out * blocks / cores
    instructions = weights + lines + products
    return float(constants.winograd_start + constants.winograd_instruction * instructions)


def weight_cost(
    mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any], constants: Cost
) -> float:
    """The same of the gradient of the weights."""
    given, made, height = (sizes[name] for name in ("in_channels", "out_channels", "out_h"))
    outputs = params["outputs"]
    phases, tiles = outputs + TAPS - 1, -(-sizes["out_w"] // outputs)
    line = LINE + tiles * 4 * phases
    lines = (-(-given * (height + 2) // cores) + -(-made * height // cores)) * line
    pairs = -(-given // CHANNELS) * -(-made // CHANNELS)
    each = phases * (tiles * (16 * height + 8) + 40) + 450
    instructions = lines + -(-pairs // cores) * each
    return float(constants.winograd_start + constants.winograd_instruction * instructions)
