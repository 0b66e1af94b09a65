"""Gradlet: from a PyTorch or ONNX model to C that trains on a microcontroller.

The verbs stand in the order of the road: capture, train, plan, emit, run, verify. They are loaded
at their first use, so that `import gradlet` is quick, and they hide the modules of the same names;
import from those with `from gradlet.plan import ...`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradlet import interrupt
from gradlet.errors import DoesNotFit, GradletError

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


class _Package(ModuleType):
    """This package. A property is not replaced when a module of its name, as `gradlet.plan`, is
    imported."""

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


def _verb(name: str) -> property:
    def get(package: ModuleType) -> Any:
        return getattr(importlib.import_module("gradlet.api"), name)

    def keep(package: ModuleType, module: ModuleType) -> None:
        """Python sets each imported module as an attribute of its package."""

    return property(get, keep)


for _name in {*__all__} - {"DoesNotFit", "GradletError"}:
    setattr(_Package, _name, _verb(_name))
sys.modules[__name__].__class__ = _Package
interrupt.begin()
