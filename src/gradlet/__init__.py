"""Gradlet: from a PyTorch or ONNX model to C that trains on a microcontroller.

The verbs stand in the order of the road: capture, train, plan, emit, run, verify. They are loaded
at their first use, so that `import gradlet` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradlet.errors import DoesNotFit, GradletError
from gradlet.support import interrupt

if TYPE_CHECKING:
    from gradlet.api import (
        Loss,
        Note,
        Recipe,
        build,
        capture,
        emit,
        load,
        memory,
        plan,
        run,
        train,
        training_graph,
        verify,
    )

__version__ = "0.1.0"
__all__ = [
    "DoesNotFit",
    "GradletError",
    "Loss",
    "Note",
    "Recipe",
    "build",
    "capture",
    "emit",
    "load",
    "memory",
    "plan",
    "run",
    "train",
    "training_graph",
    "verify",
]


def __getattr__(name: str) -> Any:
    """The verbs, at their first use."""
    if name in __all__:
        return getattr(importlib.import_module("gradlet.api"), name)
    raise AttributeError(f"module 'gradlet' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


interrupt.begin()
