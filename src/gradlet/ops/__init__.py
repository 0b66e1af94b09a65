"""The ops: one file per family. Importing the package imports them all, which fills the tables."""

from importlib import import_module
from pkgutil import walk_packages

from gradlet.ops.base import OPS, Op
from gradlet.ops.importer import ONNX, TOML, TORCH

for _name in sorted(module.name for module in walk_packages(__path__, f"{__name__}.")):
    import_module(_name)

__all__ = ["ONNX", "OPS", "TOML", "TORCH", "Op"]
