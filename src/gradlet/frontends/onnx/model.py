"""ONNX front end: from a file to a forward graph that computes what the file computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gradlet.errors import GradletError, InternalError
from gradlet.frontends.importer import Captured, drawn_samples
from gradlet.frontends.onnx.file import OnnxFile, read_onnx
from gradlet.frontends.onnx.sizes import Sizes
from gradlet.frontends.onnx.walk import OnnxImporter
from gradlet.frontends.passes.canonical import canonical
from gradlet.frontends.passes.whole_numbers import check_indices
from gradlet.ir.graph import Array, Graph
from gradlet.oracle.interpreter import evaluate, wide
from gradlet.oracle.tolerance import agrees_forward
from gradlet.support.extras import require_onnx


@dataclass(frozen=True)
class Origin:
    """Where in the file the elements of a tensor are: which stored value, and which of its elements
    in which order. None stands for all, as they are."""

    value: str
    places: Array | None = None
    turned: bool = False

    def within(self, stored: Array) -> Array:
        """Their places, as a flat list."""
        places = np.arange(stored.size).reshape(stored.shape)
        if self.places is not None:
            places = self.places
        return (places.T if self.turned else places).reshape(-1)


@dataclass(frozen=True)
class OnnxSource:
    """The file that a graph was captured from. A tensor with several origins is what the file
    stores more than once."""

    file: OnnxFile
    origins: dict[str, tuple[Origin, ...]]


def capture_onnx(path: Path, *, batch: int | None = None, output: str = "") -> Graph:
    """The forward graph of an ONNX file, with one standard-normal sample per input."""
    return captured_onnx(path, Sizes(batch), (output,)).graph


def captured_onnx(path: Path, sizes: Sizes, wanted: Sequence[str] = ("",)) -> Captured:
    """The same, with what it came from."""
    file = read_onnx(path, sizes, wanted)
    try:
        graph, origins = _imported(file, wanted)
    except GradletError as error:
        if file.fixed is not None:
            # raises if the batch is not to blame
            _imported(read_onnx(path, replace(sizes, batch=None), wanted), wanted)
            raise GradletError(
                f"{path} fixes a batch of {file.fixed} and contradicts itself with "
                f"{file.batch}; export it with a dynamic batch or with that batch. {error}"
            ) from None
        raise
    _check_against_file(graph, file)
    return Captured(graph, source=OnnxSource(file, origins), notes=file.said)


def _imported(file: OnnxFile, wanted: Sequence[str]) -> tuple[Graph, dict[str, tuple[Origin, ...]]]:
    importer = OnnxImporter(file)
    importer.walk()
    inputs = [importer.names[name] for name in file.inputs]
    samples = drawn_samples(importer.builder, inputs)
    graph = importer.finish(inputs, importer.outputs, samples, wanted)
    graph = replace(graph, whole=tuple(importer.names[name] for name in file.whole))
    if file.fixed is not None:
        _check_outputs(graph, file)
    turn = [name for name, value in importer.origin.items() if not file.is_own(value)]
    turned: set[str] = set()
    graph = canonical(graph, turn=turn, decimals=True, turned=turned)
    return graph, {name: _origins(importer, name, name in turned) for name in graph.data}


def _origins(importer: OnnxImporter, name: str, turned: bool) -> tuple[Origin, ...]:
    if name not in importer.origin:
        return ()
    first = Origin(importer.origin[name], importer.places.get(name), turned)
    return (first, *(Origin(value, None, not turned) for value in importer.again.get(name, ())))


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


def _check_against_file(graph: Graph, file: OnnxFile) -> None:
    """The captured program must compute what the file computes, up to rounding to float32."""
    start = {name: wide(value) for name, value in graph.data.items()}
    start.update({name: wide(value[0]) for name, value in graph.samples.items()})
    exact = dict(start)
    with np.errstate(all="ignore"):
        evaluate(graph, exact, ("forward",))
        check_indices(graph, exact)
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
