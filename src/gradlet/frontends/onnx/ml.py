"""Operators of `ai.onnx.ml` as plain ones: scalers, normalizers, linear models of scikit-learn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradlet.ir.graph import Array
from gradlet.support.extras import require_onnx

DOMAIN = "ai.onnx.ml"
_SMALLEST = 1e-30
"""What a Normalizer divides by at least."""


class _Writer:
    """Nodes and stored values in place of one node of a model."""

    def __init__(self, model: Any, node: Any, stem: str) -> None:
        self.model, self.node, self.stem = model, node, stem
        helper = require_onnx().helper
        self.attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes: list[Any] = []
        self.count = 0

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attrs: Any) -> str:
        self.count += 1
        name = output or f"{self.stem}.{op.lower()}{self.count}"
        made = require_onnx().helper.make_node(op, inputs, [name], name=name, **attrs)
        self.nodes.append(made)
        return name

    def store(self, name: str, values: Any, shape: tuple[int, ...], *, weight: bool) -> str:
        """A weight is an initialiser, which is trained; anything else is a constant."""
        onnx = require_onnx()
        array: Array = np.asarray(values, np.float32).reshape(shape)
        if weight:
            name = f"{self.stem}.{name}"
            self.model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
            return name
        value = onnx.numpy_helper.from_array(array, name)
        return self.add("Constant", [], value=value)

    def text(self, name: str, default: str) -> str:
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def reduced(self, op: str, x: str) -> str:
        """Along the second dimension; where the axes are told depends on the opset."""
        versions = {item.domain: item.version for item in self.model.opset_import}
        newer = max(versions.get("", 0), versions.get("ai.onnx", 0)) >= (
            13 if op == "ReduceSum" else 18
        )
        if not newer:
            return self.add(op, [x], axes=[1], keepdims=1)
        axes = require_onnx().numpy_helper.from_array(np.array([1], np.int64), "axes")
        return self.add(op, [x, self.add("Constant", [], value=axes)], keepdims=1)


def _scaler(write: _Writer) -> bool:
    x = write.node.input[0]
    for name, op in (("offset", "Sub"), ("scale", "Mul")):
        values = write.attrs.get(name, [])
        if len(values):
            constant = write.store(name, values, (len(values),), weight=False)
            x = write.add(op, [x, constant])
    write.add("Identity", [x], write.node.output[0])
    return True


def _normalizer(write: _Writer) -> bool:
    x = write.node.input[0]
    match write.text("norm", "MAX"):
        case "MAX":
            size = write.reduced("ReduceMax", write.add("Abs", [x]))
        case "L1":
            size = write.reduced("ReduceSum", write.add("Abs", [x]))
        case "L2":
            size = write.add("Sqrt", [write.reduced("ReduceSum", write.add("Mul", [x, x]))])
        case _:
            return False
    least = write.store("least", _SMALLEST, (), weight=False)
    write.add("Div", [x, write.add("Max", [size, least])], write.node.output[0])
    return True


def _product(write: _Writer, outputs: int, output: str = "") -> str:
    """x W^T + b with the coefficients as weights that are trained."""
    coefficients = write.attrs["coefficients"]
    weight = write.store("weight", coefficients, (outputs, -1), weight=True)
    operands = [write.node.input[0], weight]
    if len(intercepts := write.attrs.get("intercepts", [])):
        operands.append(write.store("bias", intercepts, (outputs,), weight=True))
    return write.add("Gemm", operands, output, transB=1)


def _regressor(write: _Writer) -> bool:
    if write.text("post_transform", "NONE") != "NONE":
        return False
    _product(write, int(write.attrs.get("targets", 1)), write.node.output[0])
    return True


def _classifier(write: _Writer) -> bool:
    """The scores; the labels that they stand for have been cut off."""
    labels = max(len(write.attrs.get(f"classlabels_{k}", [])) for k in ("ints", "strings"))
    rows = len(write.attrs.get("intercepts", [])) or labels
    after = write.text("post_transform", "NONE")
    functions: dict[str, tuple[str, dict[str, int]]] = {
        "NONE": ("Identity", {}),
        "LOGISTIC": ("Sigmoid", {}),
        "SOFTMAX": ("Softmax", {"axis": 1}),
    }
    if after not in functions or write.node.output[0]:
        return False
    scores = _product(write, rows)
    if rows == 1 and labels == 2:
        scores = write.add("Concat", [write.add("Neg", [scores]), scores], axis=1)
    op, attrs = functions[after]
    write.add(op, [scores], write.node.output[1], **attrs)
    return True


_TABLE: dict[str, Callable[[_Writer], bool]] = {
    "Scaler": _scaler,
    "Normalizer": _normalizer,
    "LinearRegressor": _regressor,
    "LinearClassifier": _classifier,
}


def translate_ml(model: Any) -> list[str]:
    """Replace what is known; the walk refuses the rest by name. Returns what was done."""
    done: Counter[str] = Counter()
    nodes: list[Any] = []
    taken = {item.name for item in model.graph.initializer}
    for node in model.graph.node:
        stem = node.name or node.op_type.lower()
        while f"{stem}.weight" in taken:
            stem += "_"
        write = _Writer(model, node, stem)
        known = node.domain == DOMAIN and node.op_type in _TABLE
        if known and _TABLE[node.op_type](write):
            done[node.op_type] += 1
            taken.add(f"{stem}.weight")
            nodes.extend(write.nodes)
        else:
            copy = require_onnx().NodeProto()
            copy.CopyFrom(node)
            nodes.append(copy)
    if done:
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    listed = ", ".join(f"{count} {name}" for name, count in done.items())
    return [f"{listed} of {DOMAIN} as plain operators"] if done else []
