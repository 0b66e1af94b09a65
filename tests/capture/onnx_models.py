"""Hand-made ONNX models for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gradlet.frontends.onnx.model import capture_onnx
from gradlet.ir.graph import Array, Graph

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = (13, 18, NEWEST)
Dims = Sequence[int | str | None]
make = helper.make_node


def random(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def build_model(
    nodes: Sequence[Any],
    inputs: dict[str, Dims],
    stored: dict[str, Array] | None = None,
    *,
    opset: int = 18,
    outputs: dict[str, Dims | None] | None = None,
    kind: int = TensorProto.FLOAT,
    domain: str = "",
) -> Any:
    results: dict[str, Dims | None] = outputs or {"y": None}
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, kind, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(n, kind, shape) for n, shape in results.items()],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (stored or {}).items()],
    )
    return helper.make_model(graph, opset_imports=imports)


def capture(model: Any, folder: Path, batch: int | None = None) -> Graph:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return capture_onnx(path, batch=batch)


def relu(dims: Dims, **options: Any) -> Any:
    return build_model([make("Relu", ["x"], ["y"])], {"x": dims}, **options)
