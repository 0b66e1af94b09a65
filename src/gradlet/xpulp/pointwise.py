"""Convolutions with a single tap are matrix products of the weights and the planes of an image."""

from __future__ import annotations

from typing import Any

from gradlet.xpulp import gemm

MODES = {
    "forward": "nn",
    "input_grad": "tn",
    "weight_grad": "nt",
    "forward_hwc": "nt",
    "input_grad_hwc": "nn",
    "weight_grad_hwc": "tn",
}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, Any]:
    bias = {"bias_of_rows": not mode.endswith("_hwc"), "biased": mode.startswith("forward")}
    made: dict[str, Any] = gemm.generate(MODES[mode], epilogue, {**params, **bias})
    return {**made, **bias, "product": MODES[mode]}
