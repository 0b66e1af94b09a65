"""The node tests that ship inside the onnx package: every one over floats either gives the expected
values or is refused, for a reason that is listed here or because an op is missing."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gradlet.errors import GradletError
from gradlet.frontends.onnx.model import capture_onnx
from gradlet.oracle.interpreter import wide
from gradlet.oracle.tolerance import expect_forward

REFUSALS = (
    "size of dimension . is unknown",  # zero-size tensors
    r"parts of \[0, 0, 0\] do not make up",
    "cannot be viewed as",
    "constant '.*' of model 'node' contains NaN or infinity",
    "is not a tensor; only tensors",
    "depends on the data; it must be a constant",
    "dropout in training mode",
    "has no elements",
    "a region of interest",
    "antialiasing of cubic",
    "pytorch_half_pixel to a single row",
    "OneHot of an input of floats",
    "scattering by '(mul|max|min)'",
)


@cache
def cases() -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are made
        return list(load_model_tests(kind="node"))


def is_float(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.float32


def over_floats(case: Any) -> bool:
    """Float32 results, and at least one float32 input."""
    inputs, outputs = case.data_sets[0]
    floats = [value for value in inputs if is_float(value) and value.ndim]
    return bool(floats) and all(map(is_float, outputs))


def with_constants(case: Any) -> tuple[Any, dict[str, Any]]:
    """The model with shapes, axes and the like as initialisers, and the inputs that are left."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = max(4, model.ir_version)  # or initialisers would have to be inputs
    fed = {}
    kept = []
    resized = {
        name
        for node in model.graph.node
        if node.op_type in ("Resize", "Upsample")
        for name in node.input[1:]
    }
    for info, value in zip(case.model.graph.input, case.data_sets[0][0], strict=False):
        if is_float(value) and value.ndim and info.name not in resized:
            fed[info.name] = value
            kept.append(info)
        elif isinstance(value, np.ndarray | np.generic):
            constant = numpy_helper.from_array(np.asarray(value), info.name)
            model.graph.initializer.append(constant)
        else:
            kept.append(info)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model, fed


@cache
def refusal_or_graphs(index: int) -> Any:
    """One graph for each result, or why there is none."""
    model, _ = with_constants(cases()[index])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.onnx"
        onnx.save(model, path)
        try:
            return [capture_onnx(path, output=info.name) for info in model.graph.output]
        except GradletError as error:
            return str(error)


def reason_of(message: str) -> str:
    """Why a case is refused: a listed reason, or an op that is missing."""
    listed = [reason for reason in REFUSALS if re.search(reason, message)]
    missing = re.findall(r": ([\w.]+)(?: on [^\n]*)?: no such operation", message)
    return (listed or [f"no {name}" for name in missing] or [""])[0]


def outcome(index: int) -> str:
    """passed, refused (for a reason that is known), or what went wrong."""
    case, graphs = cases()[index], refusal_or_graphs(index)
    if isinstance(graphs, str):
        return "refused" if reason_of(graphs) else f"{case.name}: {graphs}"
    fed = with_constants(case)[1]
    for graph, expected in zip(graphs, case.data_sets[0][1], strict=True):
        (name,) = graph.outputs
        start = {name: wide(value) for name, value in {**graph.data, **fed}.items()}
        exact, allowed = expect_forward(graph, start)
        if exact[name].shape != expected.shape:
            return f"{case.name}: shape {exact[name].shape}, not {expected.shape}"
        # the package's own figures are float32, or rounded to a few digits in its source
        slack = case.rtol * np.abs(expected) + case.atol
        wrong = ~(np.abs(exact[name] - expected) <= allowed[name] + slack)
        if (wrong & ~(np.isnan(expected) & np.isnan(exact[name]))).any():
            return f"{case.name}: wrong values"
    return "passed"


def test_node_cases_of_the_onnx_package() -> None:
    chosen = [index for index, case in enumerate(cases()) if over_floats(case)]
    results = [outcome(index) for index in chosen]
    counts = Counter(result if result in ("passed", "refused") else "wrong" for result in results)
    given = [refusal_or_graphs(index) for index in chosen]
    reasons = Counter(reason_of(message) for message in given if isinstance(message, str))
    print(f"{counts['passed']} passed / {len(chosen)} over floats / {len(cases())} in all")
    print("\n".join(f"{count} refused: {reason}" for reason, count in reasons.most_common()))
    wrong = [result for result in results if result not in ("passed", "refused")]
    assert wrong == [], "\n".join(wrong)
    assert set(REFUSALS) <= set(reasons)  # a reason that no case gives any more leaves the list
    assert counts["passed"] >= 650
