"""An ONNX file as a module: its own names, its own operators, PyTorch's autograd, float64."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gradlet.frontends.onnx.oracle import elements, layers, moves, recurrent  # noqa: F401 (tables)
from gradlet.frontends.onnx.oracle.agreement import RANDOM, differenced, evaluated, widened
from gradlet.frontends.onnx.oracle.base import TABLE, NotWritten, Operator
from gradlet.frontends.recording_modes import Refused
from gradlet.ir.graph import Array

BY_DIFFERENCES = 512
"""Elements of the operands up to which the derivative of a node that no table has is taken by
differences: each takes four evaluations."""
WEIGHTS: dict[str, tuple[int, ...]] = {
    "Add": (0, 1),
    "BatchNormalization": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "GroupNormalization": (1, 2),
    "GRU": (1, 2, 3),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "LSTM": (1, 2, 3),
    "MatMul": (0, 1),
    "Mul": (0, 1),
    "PRelu": (1,),
    "RMSNormalization": (1,),
    "RNN": (1, 2, 3),
}
"""Where a stored operand is a weight, if the exporter does not say what it is."""


class Program:
    """The nodes of a file, with everything computed that depends on constants alone. Copies of a
    module share it."""

    def __init__(self, model: Any, trained: Collection[str]) -> None:
        import onnx

        wide = widened(model)
        self.opset = next(i.version for i in wide.opset_import if i.domain in ("", "ai.onnx"))
        self.stored = {
            item.name: tensor_of(onnx.numpy_helper.to_array(item))
            for item in wide.graph.initializer
        }
        self.known = {name: v for name, v in self.stored.items() if name not in trained}
        self.trained = {name: v for name, v in self.stored.items() if name in trained}
        self.buffers: dict[str, str] = {}  # what a norm's statistics are replaced by
        self.nodes: list[Operator] = []
        self.outputs = [info.name for info in wide.graph.output]
        stored = set(self.stored)
        self.inputs = [info.name for info in wide.graph.input if info.name not in stored]
        for node in wide.graph.node:
            self._add(self._operator(node), trained)
        self.nodes = _needed(self.nodes, [*self.outputs, *self.buffers.values()])

    def __deepcopy__(self, memo: Any) -> Program:
        return self

    def _operator(self, node: Any) -> Operator:
        attrs = {attribute.name: _attribute(attribute) for attribute in node.attribute}
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        return Operator(kind, tuple(node.input), tuple(node.output), attrs, node, self.opset)

    def _add(self, op: Operator, trained: Collection[str]) -> None:
        if op.kind in RANDOM:
            raise Refused(f"node '{op.proto.name}' ({op.kind}) draws random numbers")
        if op.kind == "BatchNormalization" and op.get("training_mode", 0):
            pairs = zip(op.inputs[3:5], op.outputs[1:3], strict=False)
            self.buffers |= {old: new for old, new in pairs if old in self.stored and new}
        if all(name in self.known for name in op.inputs if name):
            with torch.no_grad():
                results = self.results(op, self.known)
            for name, value in results.items():
                (self.trained if name in trained else self.known)[name] = value
        else:
            self.nodes.append(op)

    def results(self, op: Operator, values: Mapping[str, Any]) -> dict[str, Any]:
        args = [values[name] if name else None for name in op.inputs]
        made = self._made(op, args, values)
        listed = made if isinstance(made, tuple | list) else (made,)
        return {name: value for name, value in zip(op.outputs, listed, strict=False) if name}

    def _made(self, op: Operator, args: Sequence[Any], values: Mapping[str, Any]) -> Any:
        try:
            if op.kind in TABLE:
                return TABLE[op.kind](op, args)
            lacking = ""
        except NotWritten as error:
            lacking = f" {error}"
        followed = [arg for arg in args if arg is not None and arg.requires_grad]
        if not followed or not torch.is_grad_enabled():
            return [tensor_of(result) for result in evaluated(op, values)]
        if len(op.outputs) == 1 and sum(arg.numel() for arg in followed) <= BY_DIFFERENCES:
            return differenced(op, values)
        where = f"node '{op.proto.name}' ({op.kind}{lacking})"
        raise Refused(f"{where}: the oracle has no derivative of it, and it is too large to try")


def tensor_of(array: Array) -> Any:
    tensor = torch.from_numpy(np.array(array))
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def _attribute(attribute: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [item.decode("utf-8", "replace") for item in value]
    return value


def _needed(nodes: Iterable[Operator], outputs: Iterable[str]) -> list[Operator]:
    wanted, kept = set(outputs), []
    for op in reversed(list(nodes)):
        if wanted.intersection(op.outputs):
            kept.append(op)
            wanted.update(op.inputs)
    return kept[::-1]


class OnnxModule(torch.nn.Module):  # type: ignore[misc]
    """Parameters are stored values of the file, by its own names: those in `trained`, and what
    `weights_of` finds. Only the latter have to be trained."""

    def __init__(self, model: Any, trained: Collection[str], weights: Collection[str]) -> None:
        super().__init__()
        self.program = Program(model, {*trained, *weights})
        self.keys = {name: f"p{index}" for index, name in enumerate(self.program.trained)}
        for name, key in self.keys.items():
            value = self.program.trained[name].clone()
            self.register_parameter(key, torch.nn.Parameter(value, name in weights))
        self.slots = {name: f"b{index}" for index, name in enumerate(self.program.buffers)}
        for name, key in self.slots.items():
            self.register_buffer(key, self.program.stored[name].clone())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        return ((name, self._parameters[key]) for name, key in self.keys.items())

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        return ((name, self._buffers[key]) for name, key in self.slots.items())

    def set_buffer(self, name: str, value: Any) -> None:
        self._buffers[self.slots[name]] = value

    def forward(self, *inputs: Any) -> list[Any]:
        """The outputs."""
        values = dict(self.program.known)
        values |= dict(self.named_parameters()) | dict(self.named_buffers())
        values |= dict(zip(self.program.inputs, inputs, strict=True))
        for op in self.program.nodes:
            values |= self.program.results(op, values)
        for name, new in self.program.buffers.items():
            self.set_buffer(name, values[new].detach())
        return [values[name] for name in self.program.outputs]


def weights_of(model: Any, kind: Mapping[str, str]) -> set[str]:
    """What a file trains by the look of it: floats with dimensions that stand where weights do,
    unless the exporter notes (`kind`) that they are something else."""
    import onnx

    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    stored = {
        item.name
        for item in model.graph.initializer
        if item.data_type in floats
        and len(item.dims)
        and np.prod(item.dims) > 1
        and np.isfinite(onnx.numpy_helper.to_array(item)).all()  # a mask is not trained
    }
    found = set()
    for node in model.graph.node:
        for slot in WEIGHTS.get(node.op_type, ()) if not node.domain else ():
            if slot < len(node.input) and node.input[slot] in stored:
                found.add(node.input[slot])
    return {name for name in found if kind.get(name, "") in ("", "PARAMETER")}
