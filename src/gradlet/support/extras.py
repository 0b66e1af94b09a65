"""Optional packages: imported when needed, with a message that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from gradlet.errors import GradletError
from gradlet.support import interrupt


def require(package: str, what: str) -> Any:
    try:
        with interrupt.importing():
            return importlib.import_module(package)
    except ImportError:
        raise GradletError(
            f"{what} is not installed; `pip install gradlet[{package}]` brings it"
        ) from None


def require_torch() -> Any:
    return require("torch", "PyTorch")


def require_onnx() -> Any:
    onnx = require("onnx", "onnx")
    for part in ("reference", "shape_inference"):
        importlib.import_module(f"onnx.{part}")
    return onnx
