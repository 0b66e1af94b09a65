"""ONNX files as they are found: older opsets, open dimensions, branches, labels at the end, models
of scikit-learn. Each becomes a program that verifies, and what was done to it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import gradlet
from gradlet.cli.commands import app
from gradlet.errors import GradletError
from gradlet.ir.recipe import Recipe
from tests.capture.onnx_models import make, random

MSE = Recipe(loss="mse")
WEIGHTS = {"w": random(5, 4), "b": random(5), "v": random(3, 5), "c": random(3)}
BODY = [
    make("Gemm", ["x", "w", "b"], ["h"], transB=1),
    make("Relu", ["h"], ["r"]),
    make("Gemm", ["r", "v", "c"], ["y"], transB=1),
]


def saved(
    path: Path,
    nodes: list[Any],
    outputs: dict[str, Any],
    weights: dict[str, Any] | None = None,
    *,
    shape: Any = ("n", 4),
    opset: int = 17,
) -> str:
    infos = [
        helper.make_tensor_value_info(name, kind, None) if isinstance(kind, int) else kind
        for name, kind in outputs.items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    stored = [numpy_helper.from_array(v, n) for n, v in (weights or WEIGHTS).items()]
    old = [helper.make_tensor_value_info(i.name, i.data_type, i.dims) for i in stored]
    graph = helper.make_graph(nodes, "g", [x, *(old if opset < 9 else [])], infos, stored)
    ids = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=ids)
    model.ir_version = 3 if opset < 9 else 8
    onnx.save(model, path / "m.onnx")
    return str(path / "m.onnx")


def assert_held(
    model: str, folder: Path, note: str | None, recipe: Recipe = MSE, **given: Any
) -> Any:
    """Built, with this note or with none, and verified with the file as an oracle."""
    if note is None:
        project = gradlet.build(model, folder, target="host", recipe=recipe, **given)
    else:
        with pytest.warns(gradlet.Note, match=note):
            project = gradlet.build(model, folder, target="host", recipe=recipe, **given)
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, verdict.first_wrong
    assert not verdict.no_module, verdict.no_module
    return project


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_older_opsets_are_converted(opset: int, tmp_path: Path) -> None:
    nodes = [*BODY, make("Softmax", ["y"], ["p"], axis=1)]
    path = saved(tmp_path, nodes, {"p": TensorProto.FLOAT}, opset=opset)
    note = f"has opset {opset}; it was converted to opset 17"
    project = assert_held(path, tmp_path / "p", note)
    assert set(project.plan.graph.trained) == {"w", "b", "v", "c"}


def test_a_batch_norm_of_an_older_opset(tmp_path: Path) -> None:
    """Which ONNX's own evaluator computes as in training."""
    nodes = [
        make("Conv", ["x", "k"], ["a"]),
        make("BatchNormalization", ["a", "scale", "b", "mean", "var"], ["n"], momentum=0.9),
        make("Flatten", ["n"], ["h"]),
        make("MatMul", ["h", "v"], ["y"]),
    ]
    weights = {"k": random(4, 2, 3, 3), "v": random(16, 3), "var": np.abs(random(4)) + 1}
    weights |= {name: random(4) for name in ("scale", "b", "mean")}
    path = saved(tmp_path, nodes, {"y": TensorProto.FLOAT}, weights, shape=(1, 2, 4, 4), opset=11)
    assert_held(path, tmp_path / "p", "has opset 11")


def test_attributes_that_became_operands(tmp_path: Path) -> None:
    nodes = [
        make("Conv", ["x", "k"], ["a"], kernel_shape=[3, 3]),
        make("Clip", ["a"], ["b"], min=0.0, max=6.0),
        make("Pad", ["b"], ["c"], pads=[0, 0, 1, 1, 0, 0, 1, 1]),
        make("Upsample", ["c", "scales"], ["d"], mode="nearest"),
        make("Slice", ["d"], ["e"], axes=[2], starts=[0], ends=[4]),
        make("ReduceMean", ["e"], ["f"], axes=[2], keepdims=1),
        make("Squeeze", ["f"], ["g"], axes=[2]),
        make("Flatten", ["g"], ["h"]),
        make("MatMul", ["h", "v"], ["y"]),
    ]
    weights = {"k": random(4, 2, 3, 3), "scales": np.array([1, 1, 2, 2], np.float32)}
    weights["v"] = random(48, 3)
    path = saved(tmp_path, nodes, {"y": TensorProto.FLOAT}, weights, shape=(1, 2, 5, 6), opset=9)
    assert_held(path, tmp_path / "p", "has opset 9")


def _sequence(path: Path, shape: Any = ("n", "seq", 4)) -> str:
    nodes = [make("MatMul", ["x", "w"], ["h"]), make("ReduceMean", ["h"], ["y"], axes=[1])]
    return saved(path, nodes, {"y": TensorProto.FLOAT}, {"w": random(4, 3)}, shape=shape)


def test_open_dimensions_by_name_place_and_example(tmp_path: Path) -> None:
    path = _sequence(tmp_path)
    examples = np.ones((6, 7, 4), np.float32)
    cases: tuple[tuple[dict[str, Any], Any], ...] = (
        ({"dims": {"seq": 5}}, (1, 5, 4)),
        ({"dims": {"x.1": 5}, "batch": 2}, (2, 5, 4)),
        ({"inputs": examples, "targets": np.zeros((6, 1, 3)), "batch": 2}, (2, 7, 4)),
        ({"inputs": {"x": examples}}, (1, 7, 4)),
        ({"input_shape": (3, 4)}, (1, 3, 4)),
    )
    for given, shape in cases:
        graph = gradlet.capture(path, **given).graph
        assert graph.tensors["x"].shape == shape, given
    assert graph.samples["x"].shape == (1, 1, 3, 4)
    held = gradlet.capture(path, inputs=examples, targets=np.zeros((6, 1, 3)), batch=2)
    np.testing.assert_array_equal(held.graph.samples["x"], examples.reshape(3, 2, 7, 4))
    np.savez(tmp_path / "d.npz", inputs=examples)
    assert gradlet.capture(path, data=tmp_path / "d.npz").graph.tensors["x"].shape == (1, 7, 4)
    assert_held(path, tmp_path / "p", None, inputs=examples, batch=2)
    with pytest.raises(
        GradletError, match=r"--dim sequ: .* has no such dimension; open are n, seq"
    ):
        gradlet.capture(path, dims={"sequ": 5})
    with pytest.raises(GradletError, match=r"dimension 2 is 4 in the file, not 5"):
        gradlet.capture(path, inputs=np.ones((2, 7, 5), np.float32))


def test_open_dimensions_from_the_command_line(tmp_path: Path) -> None:
    path = _sequence(tmp_path)
    run = CliRunner()
    asked = ["build", path, "-o", str(tmp_path / "p"), "--target", "host", "--loss", "mse"]
    refused = run.invoke(app, asked)
    assert refused.exit_code == 2
    assert "--dim seq=SIZE" in refused.output
    assert run.invoke(app, [*asked, "--dim", "seq=5"]).exit_code == 0  # the way out, followed
    wrong = run.invoke(app, [*asked, "--dim", "seq=x"])
    assert wrong.exit_code == 2
    assert "NAME=SIZE" in wrong.output


@pytest.mark.parametrize("extent", [5, 6])
def test_a_branch_that_the_shape_decides(extent: int, tmp_path: Path) -> None:
    """Both branches have names of their own that are the same, and one has weights."""
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    two = numpy_helper.from_array(np.array(2.0, np.float32), "two")
    then = helper.make_graph([make("Mul", ["h", "two"], ["o"])], "t", [], [out], [two])
    inner = [numpy_helper.from_array(random(5, 5), "inner")]
    other = helper.make_graph([make("MatMul", ["h", "inner"], ["o"])], "e", [], [out], inner)
    nodes = [
        BODY[0],
        make("Shape", ["h"], ["s"]),
        make("Gather", ["s", "one"], ["d"]),
        make("Equal", ["d", "wanted"], ["q"]),
        make("If", ["q"], ["i"], then_branch=then, else_branch=other),
        make("If", ["q"], ["r"], then_branch=then, else_branch=other),
        make("Add", ["i", "r"], ["k"]),
        make("Gemm", ["k", "v", "c"], ["y"], transB=1),
    ]
    weights = {**WEIGHTS, "one": np.array(1), "wanted": np.array(extent)}
    path = saved(tmp_path, nodes, {"y": TensorProto.FLOAT}, weights)
    project = assert_held(path, tmp_path / "p", "2 If with a constant condition, folded")
    trained = set(project.plan.graph.trained)
    assert trained >= {"w", "b", "v", "c"}
    assert ({"inner.if0", "inner.if1"} <= trained) == (extent == 6)


def test_labels_at_the_end_are_cut_off(tmp_path: Path) -> None:
    label = make("ArgMax", ["y"], ["label"], axis=1, keepdims=0)
    path = saved(tmp_path, [*BODY, label], {"label": TensorProto.INT64})
    project = assert_held(path, tmp_path / "p", "what comes behind 'y' was cut off")
    assert [project.plan.graph.tensors[n].shape for n in project.plan.graph.outputs] == [(1, 3)]
    both = {"label": TensorProto.INT64, "y": TensorProto.FLOAT}
    path = saved(tmp_path, [*BODY, label], both)
    assert_held(path, tmp_path / "q", "no gradient reaches output 'label', which was cut off")


def test_several_results(tmp_path: Path) -> None:
    nodes = [*BODY, make("Sigmoid", ["y"], ["p"])]
    path = saved(tmp_path, nodes, {"y": TensorProto.FLOAT, "p": TensorProto.FLOAT})
    with pytest.raises(GradletError, match=r"returns 2 tensors \(y, p\).*--output y"):
        gradlet.capture(path)
    for wish, op in (("p", "sigmoid"), (-1, "sigmoid"), ("0", "matmul"), ("r", "relu")):
        assert gradlet.capture(path, output=wish).graph.nodes[-1].op == op
    with pytest.raises(GradletError, match=r"--output z: .* computes nothing of that name"):
        gradlet.capture(path, output="z")


def _ml(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    return helper.make_node(op, inputs, outputs, name=op.lower(), domain="ai.onnx.ml", **attrs)


def _dictionaries(name: str) -> Any:
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_map_type_proto(TensorProto.INT64, number)
    return helper.make_value_info(name, helper.make_sequence_type_proto(kind))


@pytest.mark.parametrize(
    ("classes", "after", "norm", "opset"),
    [(3, "SOFTMAX", "L1", 12), (1, "LOGISTIC", "L2", 17), (3, "NONE", "MAX", 18)],
)
def test_a_classifier_of_scikit_learn(
    classes: int, after: str, norm: str, opset: int, tmp_path: Path
) -> None:
    labels = list(range(max(2, classes)))
    weights = random(classes * 4).tolist()
    nodes = [
        _ml("Scaler", ["x"], ["s"], offset=[0.1] * 4, scale=[2.0, 1.0, 0.5, 3.0]),
        _ml(
            "LinearClassifier",
            ["s"],
            ["label", "scores"],
            coefficients=weights,
            intercepts=random(classes).tolist(),
            classlabels_ints=labels,
            post_transform=after,
        ),
        _ml("Normalizer", ["scores"], ["p"], norm=norm),
        _ml("ZipMap", ["p"], ["z"], classlabels_int64s=labels),
    ]
    outputs = {"label": TensorProto.INT64, "z": _dictionaries("z")}
    path = saved(tmp_path, nodes, outputs, {"unused": random(1)}, shape=(None, 4), opset=opset)
    note = "1 Scaler, 1 LinearClassifier, 1 Normalizer of ai.onnx.ml as plain operators"
    project = assert_held(path, tmp_path / "p", note)
    names = {"linearclassifier.weight", "linearclassifier.bias"}
    assert set(project.plan.graph.trained) == names


def test_a_regressor_of_scikit_learn(tmp_path: Path) -> None:
    node = _ml("LinearRegressor", ["x"], ["y"], coefficients=[0.1, 0.2, 0.3, 0.4], targets=2)
    path = saved(tmp_path, [node], {"y": TensorProto.FLOAT}, {"unused": random(1)}, shape=(None, 2))
    assert_held(path, tmp_path / "p", "1 LinearRegressor")
