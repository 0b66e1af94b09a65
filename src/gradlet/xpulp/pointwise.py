"""Convolutions with a single tap are matrix products of the weights and the planes of an image."""

from __future__ import annotations

from typing import Any

from gradlet.xpulp import gemm

MODES = {"forward": "nn", "input_grad": "tn", "weight_grad": "nt"}
OPERANDS = {
    "forward": ("y", "w", "x"),
    "input_grad": ("dx", "w", "dy"),
    "weight_grad": ("dw", "dy", "x"),
}
"""c, a and b of the product."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    bias = {"bias_of_rows": True, "biased": mode == "forward"}
    made: dict[str, Any] = gemm.generate(MODES[mode], epilogue, {**params, **bias})
    return {**made, "product": MODES[mode], "operands": OPERANDS[mode]}
