"""Indices that are computed: a model's integers have more digits than float32, which computes them.

PyTorch and ONNX compute with 64 bits. The program does it in float32, which has every whole number
up to 2^24 and some beyond. Where that would look up another row, the model is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Graph
from gradlet.ops import OPS

EXACT = 2.0**24


def check_indices(graph: Graph, exact: Mapping[str, Array]) -> None:
    """exact: all values of a forward pass, in float64."""
    single: dict[str, Array] = {}  # what is made of whole numbers and constants, as float32 has it
    largest = 0.0
    for site in graph.sites("forward"):
        node = site.node
        made = [name for name in node.inputs if name in single]
        if node.op == "number":
            results: tuple[Array, ...] = (exact[node.inputs[0]],)
        elif made and all(n in single or graph.tensors[n].role == "const" for n in node.inputs):
            operands = [single.get(name, exact[name]) for name in node.inputs]
            results = OPS[node.op].reference(site.attrs, *operands)
        else:
            continue
        if node.op == "to_index":
            if not np.array_equal(results[0], exact[node.outputs[0]]):
                raise _beyond(graph, node.module, largest)
            continue
        for name, result in zip(node.outputs, results, strict=True):
            if np.issubdtype(result.dtype, np.floating) or node.op == "number":
                result = result.astype(np.float32).astype(np.float64)
                largest = max(largest, float(np.abs(result).max(initial=0.0)))
            single[name] = result


def _beyond(graph: Graph, module: str, largest: float) -> GradletError:
    where = f"module '{module}' of '{graph.name}'" if module else f"model '{graph.name}'"
    return GradletError(
        f"{where} looks up rows by indices that are computed from whole numbers up to "
        f"{largest:,.0f}; the program computes in float32, which has all of them up to "
        f"{EXACT:,.0f} only, and would look up others. Compute the indices before the model and "
        f"give it those, or smaller numbers"
    )
