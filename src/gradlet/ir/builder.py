"""Grows a graph line by line: what capture and train write with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.elements import ELEMENTS, F32
from gradlet.ir.graph import OWN_SPACE, Array, Attrs, Graph, Node, Shape, Tensor
from gradlet.ops import OPS

MOST_ELEMENTS = 2**26
"""Of a tensor, and of all weights together: what is larger fits no target, and takes minutes."""


class GraphBuilder:
    """Grows a graph line by line; shapes come from the ops, names from the op and a counter."""

    def __init__(
        self, name: str, start: Graph | None = None, *, reserved: Iterable[str] = ()
    ) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = dict(start.tensors) if start else {}
        self.nodes: list[Node] = list(start.nodes) if start else []
        self.data: dict[str, Array] = dict(start.data) if start else {}
        self.own_names: dict[str, str] = dict(start.own_names) if start else {}
        self._reserved = set(reserved)  # for tensors that will come under exactly these names
        self._counters: dict[str, int] = {}

    def external(self, name: str, shape: Iterable[int], role: str, dtype: str = F32.name) -> str:
        assert name not in self.tensors, f"there is a tensor '{name}' already"
        shape = tuple(shape)
        _check_size(name, shape)
        self.tensors[name] = Tensor(name, shape, dtype, role)
        return name

    def unique(self, name: str) -> str:
        """This name, or one like it that no tensor has."""
        name = _plain(name)
        return next(n for n in _numbered(name) if self._is_free(n))

    def model_name(self, name: str, kind: str) -> str:
        """A name for a tensor of the model: its own, unless another tensor of the model has it."""
        free = self._is_free(name) and _plain(name) == name
        chosen = name if free else self.unique(f"{name}.{kind}" if _plain(name) == name else name)
        if chosen != name:
            self.own_names[chosen] = name
        return chosen

    def _is_free(self, name: str) -> bool:
        return name not in self.tensors and name not in self._reserved

    def value(self, name: str, array: Array, role: str, dtype: str = F32.name) -> str:
        element = ELEMENTS[dtype]
        self.data[name] = element.loaded(element.stored(np.asarray(array)))
        return self.external(name, array.shape, role, dtype)

    def fresh(self, stem: str) -> str:
        while True:
            index = self._counters.get(stem, 0)
            self._counters[stem] = index + 1
            if self._is_free(f"{stem}_{index}"):
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
        outputs = self._free_outputs(name, op, len(result))
        for output, (shape, dtype) in zip(outputs, result, strict=True):
            _check_size(f"{output}' of module '{module}" if module else output, shape)
            self.tensors[output] = Tensor(output, shape, dtype, role)
        self.nodes.append(Node(outputs[0], op, names, outputs, attrs, phase, module))
        return outputs

    def _free_outputs(self, name: str, op: str, count: int) -> tuple[str, ...]:
        """Names of a node's results: that of the node, then with numbers behind it."""
        while True:
            first = self.unique(name) if name else self.fresh(op)
            outputs = (first, *(f"{first}.{index}" for index in range(1, count)))
            if all(map(self._is_free, outputs)):
                return outputs
            name = f"{name}'" if name else ""

    def rename(self, names: Mapping[str, str]) -> dict[str, str]:
        """Give tensors, and the nodes that make them, better names; returns those that they got."""
        taken = self.tensors.keys() - names.keys() | self._reserved
        better: dict[str, str] = {}
        for old, wanted in names.items():
            if old in self.tensors:
                better[old] = next(n for n in _numbered(_plain(wanted)) if n not in taken)
                taken.add(better[old])

        def new(name: str) -> str:
            return better.get(name, name)

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
        return better


def _check_size(name: str, shape: Shape) -> None:
    if (elements := math.prod(shape)) > MOST_ELEMENTS:
        raise GradletError(
            f"'{name}' has the shape {list(shape)}, {elements:,} elements: more than any target "
            f"holds; {MOST_ELEMENTS:,} are possible. Make the input, the batch or the layer smaller"
        )


def _plain(name: str) -> str:
    """A name that is not empty, shows on one line, and is not in the space of what is no tensor."""
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name) or "_"
    return f"_{text}" if text.startswith(OWN_SPACE) else text


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}~{number}" for number in count(2))
