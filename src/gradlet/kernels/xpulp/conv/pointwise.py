"""Convolutions with a single tap are matrix products of the weights and the planes of an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradlet.kernels.xpulp.gemm import gemm
from gradlet.targets.cost import Cost

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


def cost(
    mode: str, sizes: Mapping[str, Any], cores: int, params: Mapping[str, Any], constants: Cost
) -> float:
    """That of the product."""
    pixels, made, given = sizes["in_h"] * sizes["in_w"], sizes["out_channels"], sizes["in_channels"]
    m, n, k = {
        "forward": (made, pixels, given),
        "input_grad": (given, pixels, made),
        "weight_grad": (made, given, pixels),
        "forward_hwc": (pixels, made, given),
        "input_grad_hwc": (pixels, given, made),
        "weight_grad_hwc": (made, given, pixels),
    }[mode]
    product = {"batch": sizes["batch"], "m": m, "n": n, "k": k}
    return gemm.cost(MODES[mode], product, cores, params, constants)
