"""Little graphs around one op, and float64 runs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gradlet.ir.builder import GraphBuilder
from gradlet.ir.elements import ELEMENTS, F32
from gradlet.ir.graph import Array, Graph, Node, Shape, Site, Tensor
from gradlet.ir.recipe import Recipe
from gradlet.kernels.catalogue import families
from gradlet.ops import OPS
from gradlet.ops.base import Op, integer
from gradlet.ops.learning.labels import LOSSES, WEIGHTED_BY
from gradlet.ops.lib.tiling import Region
from gradlet.training.autodiff import train
from tests.cases import Case


def operands(case: Case, seed: int = 0) -> list[Array]:
    """Values that the case's type has; labels where it has classes. Distinct, so that no max is a
    tie."""
    generator = np.random.default_rng(seed)
    values: list[Array] = []
    for index, shape in enumerate(case.shapes):
        if case.labels and index in case.integers:
            values.append(_labels(case, shape, generator))
        else:
            drawn = generator.standard_normal(shape) * case.scale
            drawn = np.rint(drawn) if case.whole else drawn
            weights = case.op in WEIGHTED_BY and index == 2  # of classes, or of positive targets
            positive = case.positive or weights
            drawn = np.abs(drawn) + 0.1 if positive else drawn
            values.append(ELEMENTS[case.dtype].rounded(drawn).astype(np.float32))
    return values


def _labels(case: Case, shape: Shape, generator: np.random.Generator) -> Array:
    if not case.distinct:
        return generator.integers(0, case.labels, shape).astype(np.int32)
    axis = integer(case.attrs, "axis")
    all_of_them = generator.random((*shape[:axis], case.labels, *shape[axis + 1 :])).argsort(axis)
    return all_of_them.take(range(shape[axis]), axis).astype(np.int32)


def op_graph(case: Case, seed: int = 0) -> Graph:
    """A graph of the case's op alone, its operands being parameters or constants."""
    builder = GraphBuilder(case.op)
    names = []
    for index, value in enumerate(operands(case, seed)):
        role = "const" if value.dtype == np.int32 or index in case.frozen else "param"
        role = "state" if case.op == "dropout" and index == 1 else role
        dtype = "i32" if value.dtype == np.int32 else case.dtype
        dtype = _own_types(case).get(index, dtype)
        names.append(builder.value(f"p{index}", value, role, dtype))
    outputs = builder.add_many(case.op, names, case.attrs)
    if OPS[case.op].stops:  # something has to learn
        numbers = outputs[0]
        if builder.tensors[numbers].dtype == "i32":
            numbers = builder.add("number", [numbers])
        if builder.tensors[numbers].element.accumulate:
            numbers = builder.add("to_f32", [numbers])
        beside = builder.value("beside", np.ones(builder.tensors[numbers].shape), "param")
        outputs = (builder.add("add", [beside, numbers]),)
    learnt = [outputs[index] for index in case.learnt]
    output = learnt[0] if len(learnt) == 1 else builder.add("concat", learnt, {"axis": 0})
    if builder.tensors[output].element.accumulate:  # losses are computed in single precision
        output = builder.add("to_f32", [output])
    return Graph(case.op, builder.tensors, tuple(builder.nodes), (), (output,), builder.data, {})


def _own_types(case: Case) -> dict[int, str]:
    """Of operands that kernels of every type take in one."""
    if case.dtype == F32.name or OPS[case.op].view:
        return {}
    op = OPS[case.op]
    ins = [Tensor(f"{n}", shape, case.dtype) for n, shape in enumerate(case.shapes)]
    ins = [
        replace(t, dtype="i32") if case.labels and n in case.integers else t
        for n, t in enumerate(ins)
    ]
    made = (Tensor(f"made {n}", *kind) for n, kind in enumerate(op.infer(case.attrs, tuple(ins))))
    lowering = op.lower(Site(Node("", case.op, (), (), case.attrs), tuple(ins), tuple(made)))
    formal = families()[lowering.family].modes[lowering.mode].inputs
    return {n: operand.dtype for n, operand in enumerate(formal) if operand.dtype}


def op_training_graph(case: Case, seed: int = 0, *, amid: bool = True) -> Graph:
    """The same with a loss behind it (a mean square, unless the op is a loss) and its gradients;
    amid: in the midst of training."""
    graph = op_graph(case, seed)
    output = graph.tensors[graph.outputs[0]]
    if case.op in LOSSES:
        return _loss_graph(case, seed)
    target = np.random.default_rng(seed + 1).standard_normal((1, *output.shape))
    recipe = Recipe(**{"loss": "mse", **case.training})
    trained = train(graph, recipe, target.astype(np.float32))
    return _amid_training(trained, seed) if amid else trained


def _amid_training(graph: Graph, seed: int) -> Graph:
    """With what an optimizer remembers after a while, instead of zeros."""
    generator = np.random.default_rng(seed + 2)
    data = dict(graph.data)
    for tensor in graph.of_role("state"):
        if tensor.dtype == "f32" and not data[tensor.name].any():
            value = generator.uniform(0.1, 0.9, tensor.shape)  # v and corrections are positive
            sign = generator.choice((-1, 1), tensor.shape) if tensor.name.startswith("m_") else 1
            data[tensor.name] = (sign * value).astype(np.float32)
    return replace(graph, data=data)


def _loss_graph(case: Case, seed: int) -> Graph:
    builder = GraphBuilder(case.op)
    first, second, *weights = operands(case, seed)
    builder.value("p0", first, "param", case.dtype)
    zero = builder.value("zero", np.zeros(1, np.float32), "const", case.dtype)
    output = builder.add("add", ["p0", zero])
    graph = Graph(case.op, builder.tensors, tuple(builder.nodes), (), (output,), builder.data, {})
    options: dict[str, Any] = dict(case.attrs)
    if weights:
        options[WEIGHTED_BY[case.op]] = tuple(float(value) for value in weights[0])
    return train(graph, Recipe(loss=case.op, **options), second[None])


def fed(graph: Graph) -> Graph:
    """The same with an input, zeros that are added to the first of its numbers, so that there is a
    program to build."""
    first = next(t for t in graph.of_role("param", "state", "const") if t.element.is_float)
    x = replace(first, name="x", role="input")
    total = replace(first, name="x.sum", role="activation")
    added = Node("x.sum", "add", (first.name, x.name), (total.name,), {})

    def read(node: Node) -> Node:
        names = [total.name if name == first.name else name for name in node.inputs]
        return replace(node, inputs=tuple(names)) if node.phase != "update" else node

    return replace(
        graph,
        tensors={**graph.tensors, x.name: x, total.name: total},
        nodes=(added, *map(read, graph.nodes)),
        inputs=(x.name,),
        samples={**graph.samples, x.name: np.zeros((1, *x.shape), np.float32)},
    )


def place_of(region: Region) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in region)


def tile_operands(
    op: Op, site: Site, parts: Mapping[str, Region], operands: Sequence[Array]
) -> list[Array]:
    """The parts of a node's operands that a tile of it takes."""
    slots = [slot for slot, _ in op.slots(site)][: len(operands)]
    pairs = zip(slots, operands, strict=True)
    return [value[place_of(parts[slot])] for slot, value in pairs if slot in parts]


def torch_forward(case: Case, values: list[Any]) -> tuple[Any, ...]:
    """All results of the case's op by its own PyTorch spelling."""
    from gradlet.codegen.oracle import HEAD

    names = [f"v{index}" for index in range(len(values))]
    space: dict[str, Any] = dict(zip(names, values, strict=True))
    exec(HEAD.split("{helpers}")[0] + OPS[case.op].torch_source, space)
    texts = [
        f"{name}.long()" if not value.dtype.is_floating_point else name
        for name, value in zip(names, values, strict=True)
    ]
    result = eval(OPS[case.op].torch(case.attrs, *texts), space)
    return result if isinstance(result, tuple) else (result,)


def double(value: Array) -> Any:
    tensor = torch.from_numpy(np.array(value))
    return tensor.double() if tensor.dtype.is_floating_point else tensor
