"""The ops: one file per family. Importing the package imports them all, which fills the tables."""

from importlib import import_module
from pkgutil import iter_modules

from gradlet.ops.base import ONNX, OPS, TOML, TORCH, Op

for _module in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")

__all__ = ["ONNX", "OPS", "TOML", "TORCH", "Op"]
