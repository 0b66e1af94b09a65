"""ONNX front end: walks the nodes of a file; what is known beforehand is folded on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.capture.canonical import canonical
from gradlet.capture.importer import GraphImporter, Unsupported, drawn_samples
from gradlet.capture.onnx_file import (
    OnnxFile,
    module_path,
    parameter_names,
    read_onnx,
)
from gradlet.errors import GradletError, InternalError
from gradlet.extras import require_onnx
from gradlet.graph import Array, Attrs, Graph, Shape
from gradlet.ops import ONNX
from gradlet.ops.base import Call
from gradlet.reference import evaluate, wide
from gradlet.tolerance import agrees_forward

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


def capture_onnx(path: Path, *, batch: int | None = None) -> Graph:
    """The forward graph of an ONNX file, with one standard-normal sample per input."""
    file = read_onnx(path, batch)
    try:
        graph = _imported(file)
    except GradletError as error:
        if file.fixed is not None:
            _imported(read_onnx(path, None))  # raises if the batch is not to blame
            raise GradletError(
                f"{path} fixes a batch of {file.fixed} and contradicts itself with {batch}; export "
                f"it with a dynamic batch or with that batch. {error}"
            ) from None
        raise
    _check_against_file(graph, file)
    return graph


def _imported(file: OnnxFile) -> Graph:
    importer = _OnnxImporter(file)
    importer.walk()
    inputs = [importer.names[name] for name in file.inputs]
    samples = drawn_samples(importer.builder, inputs)
    graph = importer.finish(inputs, importer.outputs, samples)
    if file.fixed is not None:
        _check_outputs(graph, file)
    turn = [name for name, value in importer.origin.items() if not file.is_own(value)]
    return canonical(graph, turn=turn)


def _check_outputs(graph: Graph, file: OnnxFile) -> None:
    """Another batch may only change the batch of the outputs that the file declares."""
    for name, (declared, extents) in zip(graph.outputs, file.outputs.items(), strict=True):
        shape = graph.tensors[name].shape
        if extents[:1] == (file.fixed,):
            extents = (file.batch, *extents[1:])
        fits = len(shape) == len(extents) and all(
            want in (None, have) for want, have in zip(extents, shape, strict=True)
        )
        if extents and not fits:
            raise GradletError(
                f"{file.path}: output '{declared}' is {list(shape)}, but is declared as "
                f"{['?' if extent is None else extent for extent in extents]}"
            )


class _OnnxImporter(GraphImporter):
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
            return self.convert(handler, call, self._operand_texts(node), list(ONNX))
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
    def _inferred(self) -> dict[str, Shape]:
        """Shapes by ONNX's own rules, where they are static."""
        try:
            model = require_onnx().shape_inference.infer_shapes(self.file.model, data_prop=True)
        except Exception:  # of a model that contradicts itself; the walk says where
            return {}
        shapes = {}
        for info in (*model.graph.value_info, *model.graph.output):
            kind = info.type.tensor_type
            extents = tuple(dim.dim_value for dim in kind.shape.dim)
            if kind.HasField("shape") and all(extent > 0 for extent in extents):
                shapes[info.name] = extents
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
        if value in self.known:
            raise Unsupported(f"operand '{value}' holds {self.known[value].dtype}, not floats")
        raise Unsupported(f"operand '{value}' is not there")

    def param(self, value: Any) -> str:
        """A tensor; stored values that may be trained become parameters."""
        name = root = self.tensor(value)
        while root in self.views:
            root = self.views[root]
        tensor = self.builder.tensors[root]
        if tensor.role == "const" and tensor.shape and self._may_be_trained(self.origin[root]):
            self.builder.tensors[root] = replace(tensor, role="param")
        return name

    def stored(self, value: Any) -> Array | None:
        known = value in self.known and value in self.names
        return self.known[value].astype(np.float32) if known else None

    def piece(self, value: Any, suffix: str, array: Array) -> str:
        whole = self.param(value)
        if (whole, suffix) not in self.pieces:
            name = self.builder.unique(f"{whole}.{suffix}")
            self.builder.value(name, array, self.builder.tensors[whole].role)
            self.origin[name] = self.origin[whole]
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


def _check_against_file(graph: Graph, file: OnnxFile) -> None:
    """The captured program must compute what the file computes, up to rounding to float32."""
    start = {name: wide(value) for name, value in graph.data.items()}
    start.update({name: wide(value[0]) for name, value in graph.samples.items()})
    exact = dict(start)
    with np.errstate(all="ignore"):
        evaluate(graph, exact, ("forward",))
    for name, expected in zip(graph.outputs, _run_file(graph, file), strict=True):
        same = expected.shape == exact[name].shape
        finite = np.isfinite(exact[name])  # a logarithm may well be NaN on a drawn sample
        if same and not np.isfinite(expected[finite]).all():
            raise GradletError(
                f"{file.path}: on a standard-normal sample the model's own results overflow "
                f"float32 (output '{name}'); repair the weights first"
            )
        if not same or not agrees_forward(graph, start, {name: expected}):
            raise InternalError(
                f"the captured graph of {file.path} does not compute what the file computes "
                f"(output '{name}'); please report this model"
            )


def _run_file(graph: Graph, file: OnnxFile) -> list[Array]:
    helper = require_onnx().helper
    feeds = {}
    types = {info.name: info.type.tensor_type for info in file.model.graph.input}
    for value, name in zip(file.inputs, graph.inputs, strict=True):
        dtype = helper.tensor_dtype_to_np_dtype(types[value].elem_type)
        feeds[value] = graph.samples[name][0].astype(dtype)
    try:
        with np.errstate(all="ignore"):
            results = require_onnx().reference.ReferenceEvaluator(file.model).run(None, feeds)
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GradletError(f"{file.path}: ONNX's own evaluator fails on it: {text}") from None
    return [np.asarray(result, dtype=np.float64) for result in results]
