"""Which of the values of an ONNX file the loss sees. What hangs behind the last tensor with a
gradient (labels, dictionaries of probabilities, chosen boxes) is cut off, and said so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError
from gradlet.ir.recipe import USUAL
from gradlet.support.extras import require_onnx

_DECIDES = frozenset(
    {
        *("ArgMax", "ArgMin", "Hardmax", "NonMaxSuppression", "NonZero", "OneHot", "ZipMap"),
        *("Round", "Floor", "Ceil", "Sign", "ArrayFeatureExtractor", "LabelEncoder", "Binarizer"),
    }
)
"""Operators whose results have no gradient, even where they are floats."""


def choose(path: Path, model: Any, wanted: Sequence[str]) -> list[str]:
    """Leave the model with the outputs that the loss may see; returns what there is to say.

    With wishes these are the values of these names, or the outputs of these numbers. Without one it
    is every output with a gradient, or, if there is none, what they are made of that has one.
    """
    graph = model.graph
    names = [info.name for info in graph.output]
    if any(wanted):
        _keep(model, [_named(path, model, names, wish or USUAL) for wish in wanted])
        return []
    learnt = _with_gradient(model)
    kept = [name for name in names if name in learnt]
    notes = []
    if not kept:
        ends = _behind(model, names, learnt)
        if not ends:
            return []  # the walk says what is wrong with them
        if len(ends) > 1:
            raise GradletError(
                f"{path}: no gradient reaches {_listed(names)}; they are made of "
                f"{', '.join(ends)}: choose one with --output {ends[-1]} (in Python, output=...)"
            )
        kept = ends
        notes = [
            f"{path}: no gradient reaches {_listed(names)}; what comes behind '{ends[0]}' was cut "
            f"off, and the loss sees that"
        ]
    elif len(kept) < len(names):
        cut = [name for name in names if name not in kept]
        notes = [f"{path}: no gradient reaches {_listed(cut)}, which was cut off"]
    if len(kept) > 1 and USUAL in kept:
        kept = [USUAL]
    if len(kept) > 1:
        raise GradletError(
            f"{path} returns {len(kept)} tensors ({', '.join(kept)}); a loss needs one: choose it "
            f"with --output {kept[0]} (in Python, output=...)"
        )
    _keep(model, kept)
    return notes


def _listed(names: Collection[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return f"output {quoted[0]}" if len(quoted) == 1 else f"outputs {', '.join(quoted)}"


def _named(path: Path, model: Any, names: list[str], wanted: str) -> str:
    made = {name for node in model.graph.node for name in node.output if name}
    if wanted in names or wanted in made:
        return wanted
    if wanted.lstrip("-").isdigit() and -len(names) <= int(wanted) < len(names):
        return names[int(wanted)]
    raise GradletError(
        f"--output {wanted}: {path} returns {', '.join(names)}, and computes nothing of that name"
    )


def _keep(model: Any, names: list[str]) -> None:
    """These values as the outputs; nodes that lead to none of them go."""
    onnx = require_onnx()
    graph = model.graph
    infos = {info.name: info for info in graph.output}
    empty = onnx.TypeProto()
    empty.tensor_type.elem_type = onnx.TensorProto.FLOAT
    kept = [infos.get(name) or onnx.helper.make_value_info(name, empty) for name in names]
    copies = [onnx.ValueInfoProto() for _ in kept]
    for copy, info in zip(copies, kept, strict=True):
        copy.CopyFrom(info)
    del graph.output[:]
    graph.output.extend(copies)
    wanted, nodes = set(names), []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            if node.op_type == "LinearClassifier" and node.output[0] not in wanted:
                node.output[0] = ""  # the labels: nobody reads them
            wanted.update(node.input)
            nodes.append(node)
    nodes.reverse()
    rest = [onnx.NodeProto() for _ in nodes]
    for copy, node in zip(rest, nodes, strict=True):
        copy.CopyFrom(node)
    del graph.node[:]
    graph.node.extend(rest)


def _with_gradient(model: Any) -> set[str]:
    """Floats that depend on an input or a stored value by operators that have a gradient."""
    onnx = require_onnx()
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, 0}
    try:
        typed = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # of a model that contradicts itself; the walk says where
        typed = model.graph
    infos = (*typed.value_info, *typed.output, *typed.input)
    types = {info.name: info.type.tensor_type.elem_type for info in infos}
    graph = model.graph
    found = {item.name for item in graph.initializer if item.data_type in floats}
    found |= {info.name for info in graph.input if types[info.name] in floats}
    for node in graph.node:
        if node.op_type in _DECIDES:
            continue
        read = node.op_type == "Constant" or found.intersection(node.input)
        outputs = node.output[1:] if node.op_type == "LinearClassifier" else node.output
        if read or any(attribute.HasField("g") for attribute in node.attribute):
            found.update(name for name in outputs if name and types.get(name, 0) in floats)
    return found


def _behind(model: Any, names: list[str], learnt: set[str]) -> list[str]:
    """The nearest values with a gradient that some values are made of, in the order of the file."""
    makers = {name: node for node in model.graph.node for name in node.output if name}

    def found(starts: Collection[str], stops: Collection[str]) -> set[str]:
        waiting, seen = list(starts), set()
        while waiting:
            name = waiting.pop()
            if name not in seen and name in makers:
                seen.add(name)
                waiting.extend(() if name in stops else _made_of(makers[name], name))
        return seen

    ends = {n for n in found(names, learnt) & learnt if makers[n].op_type != "Constant"}
    before = {above for name in ends for above in found(makers[name].input, ())}
    return [name for name in makers if name in ends - before]


def _made_of(node: Any, name: str) -> list[str]:
    """The labels of a classifier come from its scores."""
    if node.op_type == "LinearClassifier" and name == node.output[0]:
        return [node.output[1]]
    return [value for value in node.input if value]
