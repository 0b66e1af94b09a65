"""Checks a graph, with nothing of the code that makes one: returns what is wrong, as sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradlet.errors import GradletError, InternalError
from gradlet.ir.elements import ELEMENTS, F32
from gradlet.ir.graph import EXTERNAL_ROLES, OWN_SPACE, PHASES, ROLES, Array, Graph, Node, Tensor
from gradlet.ops import OPS


def check_graph(graph: Graph) -> None:
    """Raise with all faults found, or return."""
    faults = [*_tensors(graph), *_program(graph), *_ties(graph), *_values(graph)]
    if faults:
        raise InternalError(f"graph '{graph.name}' is not sound:\n  " + "\n  ".join(faults))


def _tensors(graph: Graph) -> Iterator[str]:
    for name, tensor in graph.tensors.items():
        if name != tensor.name:
            yield f"tensor '{tensor.name}' is filed as '{name}'"
        if not name or name.startswith(OWN_SPACE):
            yield f"'{name}' is no name for a tensor"
        if tensor.role not in ROLES:
            yield f"'{name}' has the unknown role '{tensor.role}'"
        if tensor.dtype not in ELEMENTS:
            yield f"'{name}' has the unknown dtype '{tensor.dtype}'"
        if any(extent < 1 for extent in tensor.shape):
            yield f"'{name}' has an empty dimension: {tensor.shape}"
    if graph.results and len(graph.results) != len(graph.outputs):
        yield f"the outputs are {list(graph.outputs)}, but they are called {list(graph.results)}"
    if {t.name for t in graph.of_role("input")} != set(graph.inputs):
        yield f"the inputs are {list(graph.inputs)}, but by their roles they are others"
    for name in (*graph.inputs, *graph.outputs):
        if name not in graph.tensors:
            yield f"'{name}' is an input or output that does not exist"


def _program(graph: Graph) -> Iterator[str]:
    written = {t.name for t in graph.tensors.values() if t.role in EXTERNAL_ROLES}
    node_names: set[str] = set()
    phase = 0
    for node in graph.nodes:
        if node.name in node_names:
            yield f"two nodes are called '{node.name}'"
        node_names.add(node.name)
        if node.op not in OPS:
            yield f"'{node.name}' has the unknown op '{node.op}'"
            continue
        if node.phase not in PHASES or PHASES.index(node.phase) < phase:
            yield f"'{node.name}' ({node.phase}) stands after a later phase"
        else:
            phase = PHASES.index(node.phase)
        missing = [n for n in (*node.inputs, *node.outputs) if n not in graph.tensors]
        if missing:
            yield f"'{node.name}' touches {missing}, which do not exist"
            continue
        for name in node.inputs:
            if name not in written:
                yield f"'{node.name}' reads '{name}' before it is written"
        for name in node.outputs:
            if name in written:
                yield f"'{node.name}' writes '{name}' a second time"
            written.add(name)
        yield from _shapes(graph, node)
    for name in graph.outputs:
        if name not in written:
            yield f"the output '{name}' is never written"


def _shapes(graph: Graph, node: Node) -> Iterator[str]:
    name, op = node.name, OPS[node.op]
    required = sum(not slot.endswith("?") for slot in op.inputs)
    if not required <= len(node.inputs) <= len(op.inputs):
        yield f"'{name}' has {len(node.inputs)} operands; {node.op} takes {op.inputs}"
        return
    try:
        result = op.infer(node.attrs, graph.site(node).ins)
    except (GradletError, KeyError, AssertionError) as error:
        yield f"'{name}': {error}"
        return
    actual = tuple((graph.tensors[n].shape, graph.tensors[n].dtype) for n in node.outputs)
    if actual != result:
        yield f"'{name}' makes {result}, but its outputs are {actual}"


def _is_held(tensor: Tensor, value: Array) -> bool:
    """Whether memory holds these values as they are."""
    element = ELEMENTS.get(tensor.dtype, F32)  # an unknown one is a fault of its own
    return not element.accumulate or np.array_equal(element.rounded(value), value)


def _ties(graph: Graph) -> Iterator[str]:
    for kind, pairs in (("gradient", graph.grads), ("update", graph.updates)):
        for old, new in pairs:
            if old not in graph.tensors or new not in graph.tensors:
                yield f"{kind} of '{old}' to '{new}': no such tensor"
            elif graph.tensors[old].shape != graph.tensors[new].shape:
                yield f"'{new}' is the {kind} of '{old}' but has another shape"
            elif kind == "update" and graph.tensors[old].dtype != graph.tensors[new].dtype:
                yield f"'{new}' replaces '{old}' but has another element type"
    if graph.loss and graph.tensors[graph.loss].elements != 1:
        yield f"the loss '{graph.loss}' is not a single number"
    if graph.accumulate < 1:
        yield f"{graph.accumulate} micro-batches per update"


def _values(graph: Graph) -> Iterator[str]:
    for tensor in graph.of_role("param", "const", "state"):
        if tensor.name not in graph.data:
            yield f"{tensor.role} '{tensor.name}' has no value"
        elif graph.data[tensor.name].shape != tensor.shape:
            yield f"'{tensor.name}' has a value of shape {graph.data[tensor.name].shape}"
        elif not np.isfinite(graph.data[tensor.name]).all():
            yield f"{tensor.role} '{tensor.name}' contains NaN or infinity"
        elif not _is_held(tensor, graph.data[tensor.name]):
            yield f"'{tensor.name}' has values that no {tensor.dtype} has"
    for name, value in graph.samples.items():
        if name not in graph.tensors:
            yield f"there are samples of '{name}', which does not exist"
        elif value.shape[1:] != graph.tensors[name].shape:
            shape = graph.tensors[name].shape
            yield f"samples of '{name}' have shape {value.shape[1:]}, not {shape}"
        elif not _is_held(graph.tensors[name], value):
            yield f"samples of '{name}' have values that no {graph.tensors[name].dtype} has"
