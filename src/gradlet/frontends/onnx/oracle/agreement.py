"""ONNX's own evaluator in float64, and whether a module of PyTorch computes the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradlet.frontends.onnx.oracle.base import Operator
from gradlet.ir.graph import Array
from gradlet.support.extras import require_onnx, require_torch

RANDOM = (
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
    "RandomUniformLike",
)


def widened(model: Any) -> Any:
    """The model with float64 in place of every narrower floating point type, and with the
    statistics of norms by themselves."""
    onnx = require_onnx()
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen_graph(wide.graph)
    _own_statistics(wide.graph)
    return wide


def _own_statistics(graph: Any) -> None:
    """Exporters store equal tensors once, a variance of ones as some weight; but a norm that is not
    in training mode has fixed statistics, whatever becomes of the weight."""
    stored = {item.name: item for item in graph.initializer}
    same = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Identity"}
    for node in graph.node:
        training = any(a.name == "training_mode" and a.i for a in node.attribute)
        for slot in (3, 4) if node.op_type == "BatchNormalization" and not training else ():
            source = node.input[slot]
            while source in same:
                source = same[source]
            if source in stored:
                own = graph.initializer.add()
                own.CopyFrom(stored[source])
                own.name = node.input[slot] = f"{node.output[0]}@{slot}"


def _narrow_types() -> tuple[int, ...]:
    kinds = require_onnx().TensorProto
    return (kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16)


def _widen_graph(graph: Any) -> None:
    for item in graph.initializer:
        _widen_tensor(item)
    for info in (*graph.input, *graph.output):
        kind = info.type.tensor_type
        if kind.elem_type in _narrow_types():
            kind.elem_type = require_onnx().TensorProto.DOUBLE
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            _widen_attribute(node, attribute)


def _widen_attribute(node: Any, attribute: Any) -> None:
    onnx = require_onnx()
    kinds = onnx.AttributeProto
    if attribute.type == kinds.TENSOR:
        _widen_tensor(attribute.t)
    elif attribute.type == kinds.GRAPH:
        _widen_graph(attribute.g)
    elif attribute.name in ("to", "dtype") and attribute.i in _narrow_types():
        attribute.i = onnx.TensorProto.DOUBLE
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        tensor = onnx.numpy_helper.from_array(np.asarray(values, np.float64))
        attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    elif node.op_type == "ConstantOfShape" and attribute.name == "value":
        _widen_tensor(attribute.t)


def _widen_tensor(item: Any) -> None:
    """What is stored in float64 is what float32 makes of it, as in the program."""
    onnx = require_onnx()
    if item.data_type in (*_narrow_types(), onnx.TensorProto.DOUBLE):
        array = np.asarray(onnx.numpy_helper.to_array(item))
        array = array.astype(np.float32).astype(np.float64)
        item.CopyFrom(onnx.numpy_helper.from_array(array, item.name))


def evaluated(
    op: Operator,
    values: Mapping[str, Any],
    inputs: Sequence[str] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> list[Array]:
    """The results of one node by ONNX's own evaluator. `inputs` and `attrs` take the place of the
    node's own."""
    onnx = require_onnx()
    node = onnx.NodeProto()
    node.CopyFrom(op.proto)
    if inputs is not None:
        node.input[:] = inputs
    for name, value in (attrs or {}).items():
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])
    if node.op_type in RANDOM:
        raise ValueError(f"{node.op_type} draws random numbers")
    empty, helper = onnx.TypeProto(), onnx.helper
    read = [helper.make_value_info(name, empty) for name in dict.fromkeys(filter(None, node.input))]
    made = [helper.make_value_info(name, empty) for name in node.output if name]
    graph = helper.make_graph([node], "node", read, made)
    single = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, op.opset)])
    fed = {info.name: np.asarray(values[info.name].detach()) for info in read}
    with np.errstate(all="ignore"):
        results = evaluator(single).run(None, fed)
    return [np.asarray(result) for result in results]


def evaluator(model: Any) -> Any:
    """ONNX's own, but for its error function, which is rounded to float32 there."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class Erf(OpRun):  # type: ignore[misc]
        def _run(self, x: Array) -> tuple[Array, ...]:
            return (np.vectorize(math.erf, otypes=["d"])(x).astype(x.dtype),)

    class Exact(ReferenceEvaluator):  # type: ignore[misc]
        def _load_impl(self, node: Any, input_types: Any = None) -> Any:
            own = node.op_type == "Erf" and not node.domain
            return Erf if own else super()._load_impl(node, input_types)

    return Exact(model)


class Reference:
    """ONNX's evaluator over the whole file in float64, with other values for what it stores."""

    def __init__(self, model: Any) -> None:
        onnx = require_onnx()
        wide = widened(model)
        self.stored = {
            item.name: np.asarray(onnx.numpy_helper.to_array(item))
            for item in wide.graph.initializer
        }
        del wide.graph.initializer[:]
        have = {info.name for info in wide.graph.input}
        for name in self.stored.keys() - have:
            wide.graph.input.append(onnx.helper.make_value_info(name, onnx.TypeProto()))
        self.outputs = [info.name for info in wide.graph.output]
        self.evaluator = evaluator(wide)

    def __call__(self, given: Mapping[str, Array], changed: Mapping[str, Array]) -> list[Array]:
        """Its outputs."""
        with np.errstate(all="ignore"):
            found = self.evaluator.run(self.outputs, {**self.stored, **given, **changed})
        return [np.asarray(result, np.float64) for result in found]


def differenced(op: Operator, values: Mapping[str, Any]) -> Any:
    """The result of a node that the table lacks, by ONNX's evaluator; its derivative by central
    differences, element by element, of two step sizes and what they say together."""
    torch = require_torch()
    names = [name for name in dict.fromkeys(op.inputs) if name]
    floats = [name for name in names if values[name].dtype.is_floating_point]

    class Differenced(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, *operands: Any) -> Any:
            ctx.operands = [operand.detach() for operand in operands]
            return torch.as_tensor(evaluated(op, {**values, **_named(operands)})[0])

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return tuple(_gradient(ctx.operands, index, gradient) for index in range(len(floats)))

    def _named(operands: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(floats, operands, strict=True))

    def _gradient(operands: Sequence[Any], index: int, gradient: Any) -> Any:
        x = operands[index].double()
        result = torch.zeros_like(x).reshape(-1)
        for place in range(x.numel()):
            size = 1e-3 * max(1.0, float(x.reshape(-1)[place].abs()))
            slopes = []
            for h in (size, size / 2):
                ends = []
                for sign in (1, -1):
                    moved = x.clone().reshape(-1)
                    moved[place] += sign * h
                    trial = [*operands]
                    trial[index] = moved.reshape(x.shape)
                    ends.append(evaluated(op, {**values, **_named(trial)})[0])
                slopes.append((ends[0] - ends[1]) / (2 * h))
            slope = torch.as_tensor((4 * slopes[1] - slopes[0]) / 3)
            result[place] = (slope * gradient).sum()
        return result.reshape(x.shape)

    return Differenced.apply(*(values[name] for name in floats))
