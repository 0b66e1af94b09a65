"""Reads an ONNX file and settles what the walk relies on: validity, opset, input shapes, names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError
from gradlet.frontends.onnx.ml import translate_ml
from gradlet.frontends.onnx.results import choose
from gradlet.frontends.onnx.rewrite import check_same, inline_branches, modern
from gradlet.frontends.onnx.sizes import Sizes, integer_types, settle, told_whole
from gradlet.ir.graph import Shape
from gradlet.support.extras import require_onnx

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED = "pkg.onnxscript.optimizer.folded_from"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class OnnxFile:
    """A valid model with static input shapes.

    integers the inputs that hold indices
    whole    inputs whose first dimension counts no samples
    fixed    the batch that the file fixes where another one was asked for, else None
    outputs  shapes that the file declares; symbolic extents are None
    notes    what the exporter wrote about a value
    parameters  those of the module, where the exporter lists them
    said     what was done to the file before it could be read
    """

    path: Path
    model: Any
    inputs: Mapping[str, Shape]
    integers: frozenset[str]
    batch: int
    fixed: int | None
    outputs: Mapping[str, tuple[int | None, ...]]
    notes: Mapping[str, Mapping[str, str]]
    parameters: frozenset[str]
    said: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()

    def kind(self, name: str) -> str:
        """PARAMETER, BUFFER, ... as PyTorch's exporter notes it for an initialiser, or ''."""
        notes = self.notes.get(name, {})
        if _KIND in notes:
            return notes[_KIND]
        sources = _literal_list(notes.get(_FOLDED, ""))
        if self.parameters:  # it lists them: nothing else is trained, nor what is made of it
            return "" if self.parameters.intersection((name, *sources)) else "CONSTANT_TENSOR"
        return "CONSTANT_TENSOR" if self.source(name).startswith("lifted_tensor") else ""

    def source(self, name: str) -> str:
        """The one value that a folded initialiser was made from, or ''."""
        return _folded_from(self.notes.get(name, {}))

    def is_own(self, name: str) -> bool:
        """Whether an initialiser is a parameter of the PyTorch module as it stands there."""
        if self.kind(name) or self.source(name):
            return self.kind(name) == "PARAMETER"
        return self.model.producer_name == "pytorch" and not name.startswith("onnx::")


def read_onnx(path: Path, sizes: Sizes, wanted: Sequence[str] = ("",)) -> OnnxFile:
    """The model with static input shapes and one result, the wished ones if there are wishes."""
    model = _load(path)
    own = require_onnx().ModelProto()
    own.CopyFrom(model)
    model, notes = modern(path, model)
    graph = model.graph
    if graph.sparse_initializer:
        raise GradletError(f"{path}: sparse initialisers are not supported; store them dense")
    stored = {item.name for item in graph.initializer}
    own_inputs = [info for info in graph.input if info.name not in stored]
    sizes = told_whole(own_inputs, sizes)
    inputs, fixed = settle(path, own_inputs, sizes)
    if not inputs:
        raise GradletError(f"{path}: the model has no inputs")
    _check_valid(path, model)
    written = {info.name: _declared(info) for info in graph.output}
    rewrites = inline_branches(path, model, inputs)
    cuts = choose(path, model, wanted)
    translated = [f"{path}: {note}" for note in translate_ml(model)]
    noted = _notes(graph)
    _forget_shapes(graph)  # they are of the batch that the file was written with
    if notes or rewrites or translated:
        check_same(path, own, model, inputs)
    batch = next(shape[:1] for name, shape in inputs.items() if name not in sizes.whole) or (1,)
    return OnnxFile(
        path,
        model,
        inputs,
        _integer_inputs(graph),
        batch[0],
        fixed,
        outputs={info.name: written.get(info.name, ()) for info in graph.output},
        notes=noted,
        parameters=_listed_parameters(graph),
        said=(*notes, *rewrites, *translated, *cuts),
        whole=sizes.whole,
    )


def _notes(graph: Any) -> dict[str, dict[str, str]]:
    """What the exporter wrote about values."""
    return {
        info.name: {entry.key: entry.value for entry in info.metadata_props}
        for info in (*graph.value_info, *graph.initializer)
        if info.metadata_props
    }


def _integer_inputs(graph: Any) -> frozenset[str]:
    kinds = {info.name: info.type.tensor_type.elem_type for info in graph.input}
    return frozenset(name for name, kind in kinds.items() if kind in integer_types())


def _listed_parameters(graph: Any) -> frozenset[str]:
    """By the signature of the exported program, line by line `p_w: PARAMETER target='w'`."""
    texts = [entry.value for entry in graph.metadata_props if entry.key == _SIGNATURE]
    return frozenset(re.findall(r": PARAMETER target='([^']*)'", "\n".join(texts)))


def _load(path: Path) -> Any:
    onnx = require_onnx()
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except FileNotFoundError:
        raise GradletError(f"there is no file {path}") from None
    except OSError as error:
        raise GradletError(f"{path} cannot be read: {error.strerror}") from None
    except Exception:  # protobuf has several classes of its own for this
        model = None
    if model is None or not model.graph.output or not all(map(_is_text, _texts(model.graph))):
        raise GradletError(f"{path} is not an ONNX model, or it is damaged; export it again")
    try:
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        places = ", ".join(sorted(set(_external(model)))) or "another file"
        raise GradletError(
            f"{path} keeps its weights in {places}, which cannot be read ({_first_line(error)}); "
            f"keep the files together, or export with external_data=False"
        ) from None
    return model


def _texts(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
    for item in (*graph.initializer, *graph.input, *graph.output):
        yield item.name


def _is_text(value: Any) -> bool:
    return isinstance(value, str)  # protobuf hands out bytes where a name is not UTF-8


def _external(model: Any) -> Iterator[str]:
    for item in model.graph.initializer:
        yield from (entry.value for entry in item.external_data if entry.key == "location")


def _check_valid(path: Path, model: Any) -> None:
    for info in model.graph.output:  # the checker wants their shapes; nobody else does
        if info.type.WhichOneof("value") == "tensor_type":
            info.type.tensor_type.shape.SetInParent()
    try:
        require_onnx().checker.check_model(model)
    except Exception as error:
        raise GradletError(f"{path} is not valid ONNX: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _declared(info: Any) -> tuple[int | None, ...]:
    dims = info.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)


def _forget_shapes(graph: Any) -> None:
    del graph.value_info[:]
    for info in graph.output:
        info.type.tensor_type.ClearField("shape")


def parameter_names(file: OnnxFile) -> dict[str, str]:
    """A name for each initialiser: its own, or that of the parameter that it was made from.

    Exporters fold transposed and normalised weights into initialisers with a made-up name.
    """
    graph = file.model.graph
    own = [item.name for item in graph.initializer]
    rank = {item.name: len(item.dims) for item in graph.initializer}
    taken = {*own, *file.inputs}
    made_up = {name: _folded_from(file.notes.get(name, {})) for name in own}
    for node in graph.node:
        for name in node.input if node.op_type != "Identity" else ():
            if name.startswith("onnx::") and not made_up.get(name, "-"):
                slot = "bias" if rank[name] == 1 else "weight"
                made_up[name] = ".".join(filter(None, (module_path(node), slot)))
    names = {}
    for name in own:
        better = made_up[name]
        names[name] = better if better and better not in taken else name
        taken.add(names[name])
    return names


def _folded_from(notes: Mapping[str, str]) -> str:
    """The one value that a folded initialiser was made from, or ''."""
    sources = _literal_list(notes.get(_FOLDED, ""))
    return sources[0] if len(sources) == 1 else ""


def module_path(node: Any) -> str:
    """The module that a node came from: noted by PyTorch's exporters, or in the node's name."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            return "".join(_literal_list(entry.value)[-2:-1])
    return _path_from_name(node.name) if node.name.startswith("/") else ""


def _path_from_name(name: str) -> str:
    """`/layer1/layer1.0/conv/Conv` is layer1.0.conv: lists repeat their own name before the dot."""
    path: list[str] = []
    for part in name.split("/")[1:-1]:
        if path and part.startswith(path[-1] + "."):
            path.pop()
        path.append(part)
    return ".".join(path)


def _literal_list(text: str) -> list[str]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(item) for item in value] if isinstance(value, list) else []
