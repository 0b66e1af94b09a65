"""The node tests that ship inside the onnx package: every one whose ops we know either gives the
expected values or is refused for a reason that is listed here."""

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

from gradlet.capture.onnx import capture_onnx
from gradlet.errors import GradletError
from gradlet.ops import ONNX
from gradlet.reference import wide
from gradlet.tolerance import expect_forward

REFUSALS = (
    r"has opset \d+; 13 to",
    "size of dimension . is unknown",  # zero-size tensors
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


def supported(case: Any) -> bool:
    """Float32 results, at least one float32 input, and only ops that we have."""
    inputs, outputs = case.data_sets[0]
    names = {node.op_type for node in case.model.graph.node}
    return (
        names <= {*ONNX, "Constant"}
        and all(map(is_float, outputs))
        and any(is_float(value) and value.ndim for value in inputs)
    )


def with_constants(case: Any) -> tuple[Any, dict[str, Any]]:
    """The model with shapes, axes and the like as initialisers, and the inputs that are left."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    fed = {}
    kept = []
    resized = {
        name for node in model.graph.node if node.op_type == "Resize" for name in node.input[1:]
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
def refusal_or_graph(index: int) -> Any:
    model, _ = with_constants(cases()[index])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.onnx"
        onnx.save(model, path)
        try:
            return capture_onnx(path)
        except GradletError as error:
            return str(error)


def outcome(index: int) -> str:
    """passed, refused (for a listed reason), or what went wrong."""
    case, graph = cases()[index], refusal_or_graph(index)
    if isinstance(graph, str):
        listed = any(re.search(reason, graph) for reason in REFUSALS)
        return "refused" if listed else f"{case.name}: {graph}"
    fed = with_constants(case)[1]
    start = {name: wide(value) for name, value in {**graph.data, **fed}.items()}
    exact, allowed = expect_forward(graph, start)
    for name, expected in zip(graph.outputs, case.data_sets[0][1], strict=True):
        if exact[name].shape != expected.shape:
            return f"{case.name}: shape {exact[name].shape}, not {expected.shape}"
        # the package's own figures are float32, or rounded to a few digits in its source
        slack = case.rtol * np.abs(expected) + case.atol
        wrong = ~(np.abs(exact[name] - expected) <= allowed[name] + slack)
        if (wrong & ~(np.isnan(expected) & np.isnan(exact[name]))).any():
            return f"{case.name}: wrong values"
    return "passed"


def test_node_cases_of_the_onnx_package() -> None:
    chosen = [index for index, case in enumerate(cases()) if supported(case)]
    results = [outcome(index) for index in chosen]
    counts = Counter(result if result in ("passed", "refused") else "wrong" for result in results)
    print(f"{counts['passed']} passed / {len(chosen)} supported / {len(cases())} in all")
    assert [result for result in results if result not in ("passed", "refused")] == []
    given = [refusal_or_graph(index) for index in chosen]
    refusals = [message for message in given if isinstance(message, str)]
    for reason in REFUSALS:  # a reason that no case gives any more leaves the list
        assert any(re.search(reason, message) for message in refusals), reason
