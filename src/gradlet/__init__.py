"""Gradlet: from a PyTorch or ONNX model to C that trains on a microcontroller.

The verbs stand in the order of the road: capture, train, plan, emit, run, verify. They hide the
modules of the same names; import from those with `from gradlet.plan import ...`.
"""

__version__ = "0.1.0"

from gradlet import interrupt

interrupt.begin()

from gradlet.api import (  # noqa: E402
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
from gradlet.errors import DoesNotFit, GradletError  # noqa: E402

__all__ = [
    "DoesNotFit",
    "GradletError",
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
