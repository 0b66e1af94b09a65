"""Walks the nodes of an ONNX file; what is known beforehand is folded on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.frontends.importer import GraphImporter, Unsupported
from gradlet.frontends.onnx.file import OnnxFile, module_path, parameter_names
from gradlet.ir.graph import Array, Attrs, Shape
from gradlet.ops import ONNX
from gradlet.ops.importer import Call
from gradlet.support.extras import require_onnx

# Gradients flow through these to a stored weight, so they are not folded into it.
_LAYOUT = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_WEIGHTED = ("Conv", "Gemm", "MatMul")
_RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


class OnnxImporter(GraphImporter):
    """Values of the file are tensors of the graph (`names`), known beforehand, or both."""

    def __init__(self, file: OnnxFile) -> None:
        super().__init__(file.path.stem)
        self.file = file
        self.target = ""
        self.names: dict[str, str] = {}
        self.known: dict[str, Array] = {}
        self.lost: set[str] = set()  # results of refused nodes whose shape is not known either
        self.unsized: set[str] = set()  # of those, what would be known if the shapes were
        self.origin: dict[str, str] = {}  # tensor -> the value that it stores
        self.places: dict[str, Array] = {}  # of a piece: where in that value its elements are
        self.again: dict[str, list[str]] = {}  # tensor -> values that are the same, transposed
        self.pieces: dict[tuple[str, str], str] = {}  # (tensor, which part of it) -> tensor
        self.views: dict[str, str] = {}  # tensor -> the tensor of which it is a view
        self.initialisers = {item.name for item in file.model.graph.initializer}
        self.outputs: list[str] = []

    def walk(self) -> None:
        for name, shape in self.file.inputs.items():
            dtype = "i32" if name in self.file.integers else "f32"
            own = self.builder.model_name(name, "input")
            self.names[name] = self.builder.external(own, shape, "input", dtype)
        self._initialisers()
        for node in self.file.model.graph.node:
            self._node(node)
        self.missing.raise_if_any(self.builder.name)
        for info in self.file.model.graph.output:
            if info.name in self.known and self.kind(info.name) != "float":
                where, kind = f"{self.file.path}: output '{info.name}'", self.known[info.name].dtype
                raise GradletError(f"{where} holds {kind}, not floats")
            try:
                self.outputs.append(self.tensor(info.name))
            except Unsupported as error:
                raise GradletError(f"{self.file.path}: output '{info.name}': {error}") from None

    def _initialisers(self) -> None:
        numpy_helper = require_onnx().numpy_helper
        names = parameter_names(self.file)
        for item in self.file.model.graph.initializer:
            try:
                self.known[item.name] = np.asarray(numpy_helper.to_array(item))
            except Exception:  # wrong sizes, unknown types: whatever a damaged file has
                where = f"{self.file.path}: initialiser '{item.name}'"
                raise GradletError(f"{where} is damaged; export the model again") from None
            if _is_float(self.known[item.name]):
                self._store(item.name, names[item.name])
        self._tie_again()

    def _tie_again(self) -> None:
        """A weight that an exporter stored a second time, transposed, is the same weight."""
        stored = [item.name for item in self.file.model.graph.initializer]
        matrices = [n for n in stored if n in self.names and self.known[n].ndim == 2]
        for value in matrices:
            sources = [self.file.source(value)]
            if value.startswith("onnx::"):  # made up, and nothing says from what
                sources = [name for name in matrices if self.file.is_own(name)]
            array = self.known[value]
            same = [n for n in sources if n in matrices and np.array_equal(array, self.known[n].T)]
            if same and np.ptp(array):
                del self.origin[self.names[value]]
                self.again.setdefault(self.names[same[0]], []).append(value)
                self.names[value] = self.add("transpose", [self.names[same[0]]], {"axes": (1, 0)})

    def _store(self, value: str, name: str) -> str:
        """Keep a known value as a tensor; `param` says so if it turns out to be a weight."""
        role = "param" if self.file.kind(value) == "PARAMETER" else "const"
        array = self.known[value].astype(np.float32)
        name = self.builder.model_name(name, "weight")
        self.names[value] = self.builder.value(name, array, role)
        self.origin[name] = value
        return name

    def _node(self, node: Any) -> None:
        self.module = module_path(node)
        self.target = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        operands = [name or None for name in node.input]
        if self._fold(node):
            if self.target not in _LAYOUT or operands[0] not in self.names:
                return
        elif self.lost.intersection(node.input) and self._waits(node):
            return
        self._name_results(node, self._converted(node, ONNX.get(self.target), operands))

    def _waits(self, node: Any) -> bool:
        """Whether a node that reads a lost value could do so once its operands are supported."""
        open_operands = {name for name in node.input if name and name not in self.known}
        if self.target in ("Shape", "Size") or open_operands <= self.unsized:
            self.unsized.update(node.output)
        elif self.target not in ONNX:
            return False
        self.lost.update(node.output)
        return True

    def _converted(self, node: Any, handler: Any, operands: Sequence[str | None]) -> Any:
        where = f"{self.file.path}: node '{node.name}' ({self.target})"
        try:
            attrs = {a.name: _attribute(a) for a in node.attribute}
            call = Call(self.target, operands, attrs, len(node.output))
            return self.convert(handler, call, self._operand_texts(node))
        except GradletError as error:
            self.missing.raise_if_any(self.builder.name)  # a stand-in may be what does not fit
            raise GradletError(f"{where}: {error}") from None
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            self.missing.raise_if_any(self.builder.name)
            raise GradletError(f"{where} has attributes that do not fit: {error}") from None

    def _name_results(self, node: Any, result: str | Sequence[str] | None) -> None:
        if isinstance(result, str):
            self.names[node.output[0]] = result
            for extra in filter(self._is_read, node.output[1:]):
                reason = f"not supported: its further result '{extra}' is used"
                self.missing.note(self.module, self.target, self._operand_texts(node), reason)
                self._stand_in(extra)
            return
        if result is not None:
            self.names.update(zip(node.output, result, strict=False))
            return
        for output in filter(None, node.output):
            self._stand_in(output)

    def _is_read(self, value: str) -> bool:
        graph = self.file.model.graph
        read = any(value in node.input for node in graph.node)
        return bool(value) and (read or any(value == info.name for info in graph.output))

    def _stand_in(self, value: str) -> None:
        """A tensor in place of a refused result, so that the walk finds all that is missing."""
        shape = self._inferred.get(value)
        if shape is None:
            self.lost.add(value)
            return
        stem = self.builder.fresh("missing")
        self.names[value] = self.builder.external(stem, shape, "activation")

    @cached_property
    def _types(self) -> dict[str, Any]:
        """Element types and shapes by ONNX's own rules."""
        try:
            model = require_onnx().shape_inference.infer_shapes(self.file.model, data_prop=True)
        except Exception:  # of a model that contradicts itself; the walk says where
            return {}
        infos = (*model.graph.input, *model.graph.value_info, *model.graph.output)
        return {info.name: info.type.tensor_type for info in infos}

    def kind(self, value: Any) -> str:
        number = self._types[value].elem_type if value in self._types else 0
        known = self.known.get(value)
        if known is None and not number:
            return super().kind(value)
        onnx = require_onnx()
        dtype = onnx.helper.tensor_dtype_to_np_dtype(number) if known is None else known.dtype
        return {"b": "bool", "i": "int", "u": "int"}.get(dtype.kind, "float")

    @cached_property
    def _inferred(self) -> dict[str, Shape]:
        """Shapes by the same rules, where they are static."""
        shapes = {}
        for name, kind in self._types.items():
            extents = tuple(dim.dim_value for dim in kind.shape.dim)
            if kind.HasField("shape") and all(extent > 0 for extent in extents):
                shapes[name] = extents
        return shapes

    def _operand_texts(self, node: Any) -> list[str]:
        texts = []
        for name in filter(None, node.input):
            if name in self.names:
                texts.append(f"{name} {list(self.shape(self.names[name]))}")
            elif name in self.known:
                texts.append(f"{name} {list(self.known[name].shape)}")
        return texts

    def _fold(self, node: Any) -> bool:
        """Compute a node whose operands are all known, by ONNX's own evaluator."""
        if node.op_type in ("Shape", "Size") and not node.domain:
            return self._fold_shape(node)
        operands = [name for name in node.input if name]
        if not all(name in self.known for name in operands) or node.domain:
            return False
        if node.op_type in _RANDOM or _has_subgraph(node):
            return False
        if self._is_weight_arithmetic(operands):
            return False
        try:
            results = _evaluated(node, self.file.model, {n: self.known[n] for n in operands})
        except Exception:  # the evaluator lacks the op, or its operands are wrong
            return False
        if not all(isinstance(result, np.ndarray) for result in results):
            return False
        self.known.update(zip(node.output, results, strict=True))
        return True

    def _is_weight_arithmetic(self, operands: Sequence[str]) -> bool:
        """Whether a node computes with stored weights: gradients must reach them through it."""
        if self.target not in ONNX or self.target in _LAYOUT:
            return False
        return any(
            name in self.initialisers
            and _is_float(self.known[name])
            and self.known[name].ndim
            and not np.isneginf(self.known[name]).any()  # a mask
            for name in operands
        )

    def _fold_shape(self, node: Any) -> bool:
        """Shapes are static, so they are known even of what is not."""
        (name,) = node.input
        if name in self.lost:
            return False
        shape = self.shape(self.names[name]) if name in self.names else self.known[name].shape
        attrs = {a.name: _attribute(a) for a in node.attribute}
        part = shape[attrs.get("start", 0) : attrs.get("end", len(shape))]
        value = np.prod(shape, dtype=np.int64) if node.op_type == "Size" else part
        self.known[node.output[0]] = np.asarray(value, dtype=np.int64)
        return True

    def tensor(self, value: Any) -> str:
        if value in self.names:
            return self.names[value]
        if value in self.known and _is_float(self.known[value]):
            return self._store(value, self.builder.fresh("const"))
        if value in self.known and self.known[value].dtype.kind in "biu":
            return self.constant(self.known[value].astype(np.float32))
        if value in self.known:
            raise Unsupported(f"operand '{value}' holds {self.known[value].dtype}, not numbers")
        raise Unsupported(f"operand '{value}' is not there")

    def param(self, value: Any) -> str:
        """A tensor; stored values that may be trained become parameters."""
        name = root = self.tensor(value)
        while root in self.views:
            root = self.views[root]
        tensor = self.builder.tensors[root]
        weight = tensor.role == "const" and tensor.shape and root in self.origin
        if weight and self._may_be_trained(self.origin[root]):
            self.builder.tensors[root] = replace(tensor, role="param")
        return name

    def stored(self, value: Any) -> Array | None:
        known = value in self.known and value in self.names
        return self.known[value].astype(np.float32) if known else None

    def piece(self, value: Any, suffix: str, places: Array) -> str:
        whole = self.param(value)
        if (whole, suffix) not in self.pieces:
            name = self.builder.unique(f"{whole}.{suffix}")
            array = self.builder.data[whole].reshape(-1)[places]
            self.builder.value(name, array, self.builder.tensors[whole].role)
            self.origin[name], self.places[name] = self.origin[whole], places
            self.pieces[whole, suffix] = name
        return self.pieces[whole, suffix]

    def add(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        result = super().add(op, inputs, attrs)
        if op in ("reshape", "transpose"):
            self.views[result] = inputs[0]
        return result

    def _may_be_trained(self, value: str) -> bool:
        """Literals are told from weights by the exporter's notes, or by where they stand."""
        if np.isneginf(self.known[value]).any():
            return False  # a mask
        if self.file.kind(value):
            return self.file.kind(value) == "PARAMETER"
        if self.target == "InstanceNormalization" and self.file.notes:
            return len(np.unique(self.known[value])) > 1  # else the ones and zeros of the exporter
        return value in self.initialisers or self.target in _WEIGHTED

    def fixed(self, value: Any) -> Array | None:
        """Stored floats may be weights, whose gradients must not be lost."""
        known = self.known.get(value)
        trained = (
            known is not None and _is_float(known) and value in self.initialisers and known.ndim
        )
        return None if trained and self._may_be_trained(value) else known

    def static(self, value: Any) -> Array:
        if value not in self.known:
            raise Unsupported(f"operand '{value}' depends on the data; it must be a constant")
        return self.known[value]


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _has_subgraph(node: Any) -> bool:
    return any(a.HasField("g") or len(a.graphs) for a in node.attribute)


def _attribute(attribute: Any) -> Any:
    """A plain Python value."""
    onnx = require_onnx()
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value


def _evaluated(node: Any, model: Any, operands: dict[str, Array]) -> list[Any]:
    helper = require_onnx().helper
    empty = require_onnx().TypeProto()
    inputs = [helper.make_value_info(name, empty) for name in operands]
    outputs = [helper.make_value_info(name, empty) for name in node.output]
    graph = helper.make_graph([node], "fold", inputs, outputs)
    single = helper.make_model(graph, opset_imports=model.opset_import)
    return list(require_onnx().reference.ReferenceEvaluator(single).run(None, operands))
