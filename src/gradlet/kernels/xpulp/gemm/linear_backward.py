"""The way back through a linear layer of a single sample: the gradient of its input and the update
of its weights, both while each weight is in a register."""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.gemm.linear_backward_relu import Kernel as BehindRelu
from gradlet.kernels.xpulp.gemm.outer import Kernel


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    if mode == "relu_sgd":
        return {"body": BehindRelu().text()}
    pointers = {"product": "a2", "matrix": "a3", "rows": "a4", "columns": "a5"}
    return {"body": Kernel("sgd", pointers, ("a7", 4, 0), tuple(params["held"])).text()}
