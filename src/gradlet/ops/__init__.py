"""The ops: one file per family. Importing the package fills the tables."""

from gradlet.ops import activation, conv, crop, elementwise, losses, matmul, optimizer, pool, reduce
from gradlet.ops import shape as shape_ops
from gradlet.ops.base import ONNX, OPS, TOML, TORCH, Op

FAMILIES = (activation, conv, crop, elementwise, losses, matmul, optimizer, pool, reduce, shape_ops)

__all__ = ["FAMILIES", "ONNX", "OPS", "TOML", "TORCH", "Op"]
