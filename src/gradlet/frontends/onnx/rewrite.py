"""Makes of an ONNX file one that the walk can read: a newer opset, and branches that are always
taken in place of `If`. What became of the file is held against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradlet.errors import GradletError
from gradlet.ir.graph import Array, Shape
from gradlet.support.extras import require_onnx

OLDEST, CONVERTED = 13, 17
"""What the walk reads from on, and what older files become; in 18 the axes of reductions move."""
ONLY_SHAPES = ("Shape", "Size")
CLOSE = 1e-5
"""How far float32 results of two spellings of the same model may be apart, of the largest one."""


def modern(path: Path, model: Any) -> tuple[Any, list[str]]:
    """The model at an opset that is supported, and what there is to say about that."""
    onnx = require_onnx()
    newest = onnx.defs.onnx_opset_version()
    versions = [item.version for item in model.opset_import if item.domain in ("", "ai.onnx")]
    if not versions and not any(node.domain in ("", "ai.onnx") for node in model.graph.node):
        model.opset_import.append(onnx.helper.make_opsetid("", CONVERTED))
        return model, []
    if not versions:
        raise GradletError(f"{path} is not valid ONNX: it names no opset")
    if versions[0] > newest:
        raise GradletError(
            f"{path} has opset {versions[0]}, but the installed onnx knows none above {newest}; "
            f"`pip install -U onnx`, or export it with an older opset"
        )
    if versions[0] >= OLDEST:
        return model, []
    from onnx import version_converter

    try:
        newer = version_converter.convert_version(model, CONVERTED)
    except Exception as error:  # of many kinds, from C++
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise GradletError(
            f"{path} has opset {versions[0]}, and onnx cannot convert it to {CONVERTED}: {line}. "
            f"Export it again with opset {OLDEST} or newer"
        ) from None
    _keep_notes(model.graph, newer.graph)
    return newer, [f"{path} has opset {versions[0]}; it was converted to opset {CONVERTED}"]


def _keep_notes(old: Any, new: Any) -> None:
    """Names of modules and of parameters, which the converter forgets."""
    for kind in ("node", "initializer", "value_info"):
        noted = {item.name: item for item in getattr(old, kind) if item.name}
        for item in getattr(new, kind):
            if item.name in noted and not item.metadata_props:
                item.metadata_props.extend(noted[item.name].metadata_props)


def inline_branches(path: Path, model: Any, inputs: Mapping[str, Shape]) -> list[str]:
    """Put in place of every `If` the nodes of the branch that is always taken, since shapes are
    static; returns what there is to say."""
    count = 0
    while True:
        places = [i for i, node in enumerate(model.graph.node) if node.op_type == "If"]
        if not places:
            return [f"{path}: {count} If with a constant condition, folded"] if count else []
        node = model.graph.node[places[0]]
        taken = "then_branch" if _condition(path, model, node, inputs) else "else_branch"
        branch = next(a.g for a in node.attribute if a.name == taken)
        _splice(model.graph, places[0], branch, f"if{count}")
        count += 1


def _condition(path: Path, model: Any, node: Any, inputs: Mapping[str, Shape]) -> bool:
    """The condition of an If; with static shapes it may read the shape of anything."""
    onnx = require_onnx()
    where = f"{path}: node '{node.name}' (If)"
    makers = {name: maker for maker in model.graph.node for name in maker.output if name}
    waiting, seen = [node.input[0]], set()
    while waiting:
        name = waiting.pop()
        if name in inputs:
            raise GradletError(
                f"{where}: its condition '{node.input[0]}' depends on the values of '{name}', "
                f"but only constant ones are supported. Export the branch that is taken"
            )
        maker = makers.get(name)
        if maker is None or name in seen:
            continue
        seen.add(name)
        if maker.op_type not in ONLY_SHAPES:
            waiting.extend(filter(None, maker.input))
    try:
        part = onnx.ModelProto()
        part.CopyFrom(model)
        _ask_for(part, [node.input[0]])
        (value,) = onnx.reference.ReferenceEvaluator(part).run(None, _zeros(part, inputs))
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise GradletError(f"{where}: its condition cannot be computed: {line}") from None
    return bool(np.asarray(value).reshape(-1)[0])


def _zeros(model: Any, inputs: Mapping[str, Shape]) -> dict[str, Array]:
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    dtype = require_onnx().helper.tensor_dtype_to_np_dtype
    return {name: np.zeros(shape, dtype(types[name])) for name, shape in inputs.items()}


def _ask_for(model: Any, outputs: Sequence[str]) -> None:
    """These values as the outputs, and only the nodes that lead to them."""
    onnx, graph = require_onnx(), model.graph
    del graph.output[:]
    graph.output.extend(onnx.helper.make_value_info(name, onnx.TypeProto()) for name in outputs)
    wanted = {info.name for info in graph.output}
    kept = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(_captured_names(node))
    rest = [_copied(node) for node in reversed(kept)]
    del graph.node[:]
    graph.node.extend(rest)


def _captured_names(node: Any) -> Iterator[str]:
    """What the graphs inside of a node read."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from inner.input
                yield from _captured_names(inner)
            yield from (info.name for info in graph.output)


def _splice(graph: Any, place: int, branch: Any, stem: str) -> None:
    """The nodes of a branch at the place of its If; its own names get a stem, as those of another
    branch may be the same."""
    node = graph.node[place]
    results = [info.name for info in branch.output]
    own = {item.name for item in branch.initializer}
    own |= {name for inner in branch.node for name in inner.output if name}
    names = {name: f"{name}.{stem}" for name in own}
    names |= {name: out for name, out in zip(results, node.output, strict=True) if name in own}
    helper = require_onnx().helper
    nodes = [_renamed(inner, names) for inner in branch.node]
    for name, out in zip(results, node.output, strict=True):
        if names.get(name, name) != out:  # a value from outside, or one that is returned twice
            nodes.append(helper.make_node("Identity", [names.get(name, name)], [out]))
    for item in branch.initializer:
        stored = graph.initializer.add()
        stored.CopyFrom(item)
        stored.name = names[item.name]
    rest = [*graph.node[:place], *nodes, *graph.node[place + 1 :]]
    kept = [_copied(item) for item in rest]
    del graph.node[:]
    graph.node.extend(kept)


def _copied(node: Any) -> Any:
    copy = require_onnx().NodeProto()
    copy.CopyFrom(node)
    return copy


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    copy = _copied(node)
    for index, name in enumerate(copy.input):
        copy.input[index] = names.get(name, name)
    for index, name in enumerate(copy.output):
        copy.output[index] = names.get(name, name)
    for attribute in copy.attribute:
        own = [attribute.g] if attribute.HasField("g") else []  # to write to one makes it be there
        for inner in (*own, *attribute.graphs):
            nodes = [_renamed(item, names) for item in inner.node]
            del inner.node[:]
            inner.node.extend(nodes)
            for info in inner.output:
                info.name = names.get(info.name, info.name)
    return copy


def _batch_norm() -> Any:
    """A batch norm of an older opset with one result, which is that of inference. ONNX's evaluator
    takes it for one in training."""
    from onnx.reference.op_run import OpRun

    class BatchNormalization(OpRun):  # type: ignore[misc]
        def _run(self, x: Any, *columns: Any, epsilon: float, **_: Any) -> tuple[Any]:
            shape = (-1, *(1,) * (x.ndim - 2))
            scale, bias, mean, var = (column.reshape(shape) for column in columns)
            return ((scale * (x - mean) / np.sqrt(var + epsilon) + bias).astype(x.dtype),)

    return BatchNormalization


def check_same(path: Path, old: Any, new: Any, inputs: Mapping[str, Shape]) -> None:
    """What was rewritten computes what the file does, by ONNX's own evaluator, which reads both;
    nothing can be said where it cannot read the file."""
    evaluator = require_onnx().reference.ReferenceEvaluator
    outputs = [info.name for info in new.graph.output]
    chance = np.random.default_rng(0)
    given = {
        name: zeros if zeros.dtype.kind == "i" else chance.standard_normal(zeros.shape, np.float32)
        for name, zeros in _zeros(new, inputs).items()
    }
    _ask_for(old, outputs)
    try:
        with np.errstate(all="ignore"):
            before = evaluator(old, new_ops=[_batch_norm()]).run(None, dict(given))
    except Exception:  # an old operator that it lacks: the rest is checked against `new`
        return
    try:
        with np.errstate(all="ignore"):
            after = evaluator(new).run(None, dict(given))
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise GradletError(f"{path}: ONNX's own evaluator fails on it: {line}") from None
    for name, one, other in zip(outputs, before, after, strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        there = np.isfinite(one)  # of a missing intercept it makes NaN
        scale = CLOSE * max(1.0, float(np.abs(one[there]).max(initial=0.0)))
        if one.shape != other.shape or not np.allclose(one[there], other[there], CLOSE, scale):
            raise GradletError(
                f"{path}: '{name}' is not the same once the file is converted to what Gradlet "
                f"reads; export it again with opset {OLDEST} or newer and without ai.onnx.ml"
            )
