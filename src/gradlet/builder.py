"""Grows a graph line by line: what capture and train write with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from gradlet.dtypes import numpy_dtype
from gradlet.graph import Array, Attrs, Graph, Node, Tensor
from gradlet.ops import OPS


class GraphBuilder:
    """Grows a graph line by line; shapes come from the ops, names from the op and a counter."""

    def __init__(self, name: str, start: Graph | None = None) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = dict(start.tensors) if start else {}
        self.nodes: list[Node] = list(start.nodes) if start else []
        self.data: dict[str, Array] = dict(start.data) if start else {}
        self._counters: dict[str, int] = {}

    def external(self, name: str, shape: Iterable[int], role: str, dtype: str = "f32") -> str:
        self.tensors[name] = Tensor(name, tuple(shape), dtype, role)
        return name

    def value(self, name: str, array: Array, role: str, dtype: str = "f32") -> str:
        self.data[name] = np.asarray(array, dtype=numpy_dtype(dtype))
        return self.external(name, array.shape, role, dtype)

    def fresh(self, stem: str) -> str:
        while True:
            index = self._counters.get(stem, 0)
            self._counters[stem] = index + 1
            if f"{stem}_{index}" not in self.tensors:
                return f"{stem}_{index}"

    def add(
        self,
        op: str,
        inputs: Iterable[str],
        attrs: Attrs | None = None,
        *,
        phase: str = "forward",
        role: str = "activation",
        module: str = "",
        name: str = "",
    ) -> str:
        """Append a one-output node and return the name of its result."""
        return self.add_many(op, inputs, attrs, phase=phase, role=role, module=module, name=name)[0]

    def add_many(
        self,
        op: str,
        inputs: Iterable[str],
        attrs: Attrs | None = None,
        *,
        phase: str = "forward",
        role: str = "activation",
        module: str = "",
        name: str = "",
    ) -> tuple[str, ...]:
        names = tuple(inputs)
        attrs = dict(attrs or {})
        result = OPS[op].infer(attrs, tuple(self.tensors[n] for n in names), module)
        node_name = name or self.fresh(op)
        outputs = tuple(
            node_name if index == 0 else f"{node_name}.{index}" for index in range(len(result))
        )
        for output, (shape, dtype) in zip(outputs, result, strict=True):
            self.tensors[output] = Tensor(output, shape, dtype, role)
        self.nodes.append(Node(node_name, op, names, outputs, attrs, phase, module))
        return outputs

    def rename(self, names: Mapping[str, str]) -> None:
        """Give tensors, and the nodes that make them, better names."""

        def new(name: str) -> str:
            return names.get(name, name)

        self.tensors = {new(k): replace(t, name=new(k)) for k, t in self.tensors.items()}
        self.nodes = [
            replace(
                node,
                name=new(node.name),
                inputs=tuple(map(new, node.inputs)),
                outputs=tuple(map(new, node.outputs)),
            )
            for node in self.nodes
        ]
