"""Hand-made ONNX files: spellings of several opsets, shape arithmetic, stored weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

from gradlet.errors import GradletError
from gradlet.frontends.onnx.file import module_path
from gradlet.frontends.onnx.model import capture_onnx
from gradlet.ir.graph import Graph
from gradlet.ops import ONNX
from gradlet.ops.importer import Call, Importer
from gradlet.oracle.interpreter import evaluate
from tests.capture.onnx_models import OPSETS, build_model, capture, make, random, relu


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def agrees(graph: Graph, model: Any) -> None:
    """Compare with the evaluator in float64, where only the order of summation differs."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for item in wide.graph.initializer:
        if item.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(item).astype(np.float64)
            item.CopyFrom(numpy_helper.from_array(array, item.name))
    for info in (*wide.graph.input, *wide.graph.output):
        info.type.tensor_type.elem_type = TensorProto.DOUBLE
    values = {n: v[0].astype(np.float64) for n, v in graph.samples.items()}
    (expected,) = onnx.reference.ReferenceEvaluator(wide).run(None, dict(values))
    values.update({n: v.astype(np.float64) for n, v in graph.data.items()})
    evaluate(graph, values)
    np.testing.assert_allclose(values[graph.outputs[0]], expected, rtol=1e-12, atol=1e-12)


PADDINGS: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"auto_pad": "SAME_UPPER"}, (0, 1, 1, 2)),
    ({"auto_pad": "SAME_LOWER"}, (1, 2, 0, 1)),
    ({"auto_pad": "VALID"}, (0, 0, 0, 0)),
    ({"auto_pad": "SAME_UPPER", "strides": [2, 3]}, (0, 1, 0, 2)),
    ({"pads": [1, 0, 2, 3]}, (1, 0, 2, 3)),
    ({"pads": [0, 2, 1, 0], "strides": [2, 1], "dilations": [1, 2]}, (0, 2, 1, 0)),
    ({}, (0, 0, 0, 0)),
]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("attrs", "padding"), PADDINGS)
def test_conv_padding(
    attrs: dict[str, Any], padding: tuple[int, ...], opset: int, tmp_path: Path
) -> None:
    stored = {"w": random(4, 1, 2, 4), "b": random(4)}
    node = make("Conv", ["x", "w", "b"], ["y"], group=2, **attrs)
    model = build_model([node], {"x": [2, 2, 8, 7]}, stored, opset=opset)
    graph = capture(model, tmp_path)
    assert graph.nodes[0].attrs["padding"] == padding
    assert [t.role for t in graph.tensors.values()] == ["input", "param", "param", "activation"]
    agrees(graph, model)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"auto_pad": "SAME_LOWER"},
        {"pads": [1, 0, 1, 1], "strides": [2, 1]},
        {"strides": [2, 2]},
    ],
)
def test_pool(op: str, attrs: dict[str, Any], opset: int, tmp_path: Path) -> None:
    node = make(op, ["x"], ["y"], kernel_shape=[2, 3], **attrs)
    model = build_model([node], {"x": [1, 2, 6, 5]}, opset=opset)
    agrees(capture(model, tmp_path), model)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (3, 1), (1,)])
def test_gemm(trans_a: int, trans_b: int, bias: tuple[int, ...] | None, tmp_path: Path) -> None:
    stored = {"w": random(5, 4) if trans_b else random(4, 5)}
    names = ["x", "w"]
    if bias is not None:
        stored["c"] = random(*bias)
        names.append("c")
    node = make("Gemm", names, ["y"], transA=trans_a, transB=trans_b)
    model = build_model([node], {"x": [4, 3] if trans_a else [3, 4]}, stored, opset=13)
    graph = capture(model, tmp_path)
    fused = bias in (None, (5,))
    expected = ["matmul"] if fused else ["matmul", "add"]
    assert [op for op in _ops(graph) if op != "transpose"] == expected
    assert graph.tensors["w"].role == "param"
    if not trans_a:
        assert graph.tensors["w"].shape == (5, 4), "a linear layer's weight is [out, in]"
        assert graph.nodes[0].attrs["layout"] == "nt"
    agrees(graph, model)


def test_product_and_bias_become_one(tmp_path: Path) -> None:
    nodes = [make("MatMul", ["x", "w"], ["p"]), make("Add", ["b", "p"], ["y"])]
    model = build_model(nodes, {"x": [2, 3, 4]}, {"w": random(4, 5), "b": random(5)})
    graph = capture(model, tmp_path)
    assert [node.inputs for node in graph.nodes] == [("x", "w", "b")]
    np.testing.assert_array_equal(graph.data["w"], random(4, 5).T)
    agrees(graph, model)


def test_product_read_twice_keeps_its_add(tmp_path: Path) -> None:
    nodes = [
        make("MatMul", ["x", "w"], ["p"]),
        make("Add", ["p", "b"], ["q"]),
        make("Add", ["p", "q"], ["y"]),
    ]
    model = build_model(nodes, {"x": [2, 4]}, {"w": random(4, 5), "b": random(5)})
    graph = capture(model, tmp_path)
    assert _ops(graph) == ["matmul", "add", "add"]
    agrees(graph, model)


def test_vector_that_meets_other_rows_is_no_bias(tmp_path: Path) -> None:
    nodes = [
        make("MatMul", ["x", "w"], ["p"]),
        make("Reshape", ["p", "s"], ["q"]),
        make("Add", ["q", "b"], ["y"]),
    ]
    stored = {"w": random(4, 6), "b": random(6), "s": np.array([12, 1])}
    model = build_model(nodes, {"x": [2, 4]}, stored)
    graph = capture(model, tmp_path)
    assert _ops(graph) == ["matmul", "reshape", "add"]
    agrees(graph, model)


def test_literal_is_no_bias(tmp_path: Path) -> None:
    """A bias is trained with its product; a literal must not be."""
    nodes = [
        make("Constant", [], ["c"], value=numpy_helper.from_array(random(5))),
        make("MatMul", ["x", "w"], ["p"]),
        make("Add", ["p", "c"], ["y"]),
    ]
    graph = capture(build_model(nodes, {"x": [2, 4]}, {"w": random(4, 5)}), tmp_path)
    assert _ops(graph) == ["matmul", "add"]
    assert [t.name for t in graph.of_role("param")] == ["w"]


def test_transposed_weight_is_trained_as_it_is_stored(tmp_path: Path) -> None:
    nodes = [make("Transpose", ["w"], ["t"]), make("MatMul", ["x", "t"], ["y"])]
    model = build_model(nodes, {"x": [2, 4]}, {"w": random(3, 4)})
    graph = capture(model, tmp_path)
    assert [(t.name, t.shape) for t in graph.of_role("param")] == [("w", (3, 4))]
    assert [node.attrs for node in graph.nodes] == [{"layout": "nt"}]
    agrees(graph, model)


def test_weight_with_two_readers_is_not_turned(tmp_path: Path) -> None:
    """A tied autoencoder: the decoder's transposed weight stays the encoder's weight."""
    nodes = [
        make("MatMul", ["x", "w"], ["h"]),
        make("Transpose", ["w"], ["t"], perm=[1, 0]),
        make("MatMul", ["h", "t"], ["y"]),
    ]
    model = build_model(nodes, {"x": [2, 4]}, {"w": random(4, 3)})
    graph = capture(model, tmp_path)
    assert [(n.inputs[1], n.attrs["layout"]) for n in graph.nodes] == [("w", "nn"), ("w", "nt")]
    assert [t.name for t in graph.of_role("param")] == ["w"]
    agrees(graph, model)


@pytest.mark.parametrize("opset", OPSETS)
def test_shape_arithmetic(opset: int, tmp_path: Path) -> None:
    nodes = [
        make("Shape", ["x"], ["s"]),
        make("Constant", [], ["zero"], value_int=0),
        make("Gather", ["s", "zero"], ["n"], axis=0),
        make("Unsqueeze", ["n", "front"], ["n1"]),
        make("Slice", ["s", "one", "four"], ["rest"]),
        make("ReduceProd", ["rest"], ["size"], keepdims=1),
        make("Cast", ["size"], ["size64"], to=TensorProto.INT64),
        make("Concat", ["n1", "size64"], ["target"], axis=0),
        make("Relu", ["x"], ["r"]),
        make("Reshape", ["r", "target"], ["y"]),
    ]
    stored = {"front": np.array([0]), "one": np.array([1]), "four": np.array([4])}
    model = build_model(nodes, {"x": ["n", 2, 3, 4]}, stored, opset=opset)
    graph = capture(model, tmp_path, batch=3)
    assert _ops(graph) == ["relu", "reshape"]
    assert graph.tensors[graph.outputs[0]].shape == (3, 24)
    assert not graph.data


def test_folded_values_and_literals(tmp_path: Path) -> None:
    """Range, ConstantOfShape, Mul: what is known beforehand is one constant."""
    one = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.5])
    nodes = [
        make("Constant", [], ["a"], value_float=0.0),
        make("Constant", [], ["b"], value_float=4.0),
        make("Constant", [], ["d"], value_float=1.0),
        make("Range", ["a", "b", "d"], ["range"]),
        make("ConstantOfShape", ["size"], ["ones"], value=one),
        make("Mul", ["range", "ones"], ["offset"]),
        make("Add", ["x", "offset"], ["y"]),
    ]
    model = build_model(nodes, {"x": [2, 4]}, {"size": np.array([4])})
    graph = capture(model, tmp_path)
    assert _ops(graph) == ["add"]
    ((name, value),) = graph.data.items()
    assert graph.tensors[name].role == "const"
    np.testing.assert_array_equal(value, np.arange(4) * 1.5)


def test_weights_in_constant_nodes_can_be_trained(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(random(4, 3))
    nodes = [make("Constant", [], ["w"], value=weight), make("MatMul", ["x", "w"], ["y"])]
    graph = capture(build_model(nodes, {"x": [2, 4]}), tmp_path)
    assert [t.shape for t in graph.of_role("param")] == [(3, 4)]


@pytest.mark.parametrize("as_attribute", [True, False])
def test_axes_of_the_mean(as_attribute: bool, tmp_path: Path) -> None:
    """An attribute up to opset 17, an operand since."""
    if as_attribute:
        node = make("ReduceMean", ["x"], ["y"], axes=[-1, 2], keepdims=0)
        model = build_model([node], {"x": [1, 2, 3, 4]}, opset=13)
    else:
        node = make("ReduceMean", ["x", "axes"], ["y"], keepdims=0)
        model = build_model([node], {"x": [1, 2, 3, 4]}, {"axes": np.array([2, 3])}, opset=18)
    graph = capture(model, tmp_path)
    assert _ops(graph) == ["avg_pool2d", "reshape"]
    agrees(graph, model)


def test_views_collapse(tmp_path: Path) -> None:
    nodes = [
        make("Flatten", ["x"], ["a"], axis=2),
        make("Unsqueeze", ["a", "front"], ["b"]),
        make("Squeeze", ["b", "front"], ["c"]),
        make("Transpose", ["c"], ["d"]),
        make("Transpose", ["d"], ["e"], perm=[1, 0]),
        make("Identity", ["e"], ["f"]),
        make("Dropout", ["f"], ["g"]),
        make("Reshape", ["g", "shape"], ["y"]),
    ]
    stored = {"front": np.array([0]), "shape": np.array([0, 3, -1])}
    model = build_model(nodes, {"x": [2, 3, 6]}, stored)
    graph = capture(model, tmp_path)
    assert _ops(graph) == ["reshape"]
    agrees(graph, model)


def test_initialiser_used_twice_is_one_tensor(tmp_path: Path) -> None:
    nodes = [make("MatMul", ["x", "w"], ["h"]), make("MatMul", ["h", "w"], ["y"])]
    model = build_model(nodes, {"x": [2, 4]}, {"w": random(4, 4)})
    graph = capture(model, tmp_path)
    assert list(graph.data) == ["w"]
    agrees(graph, model)


def test_initialisers_listed_as_inputs_do_not_count(tmp_path: Path) -> None:
    node = make("MatMul", ["x", "w"], ["y"])
    model = build_model([node], {"x": [2, 4], "w": [4, 3]}, {"w": random(4, 3)})
    assert capture(model, tmp_path).inputs == ("x",)


def test_initialiser_with_the_name_of_a_result(tmp_path: Path) -> None:
    nodes = [make("Relu", ["x"], ["a"]), make("Add", ["a", "relu_0"], ["y"])]
    model = build_model(nodes, {"x": [2, 4]}, {"relu_0": random(4)})
    graph = capture(model, tmp_path)
    assert graph.nodes[1].inputs == ("relu_1", "relu_0")
    agrees(graph, model)


def test_double_precision_file(tmp_path: Path) -> None:
    node = make("MatMul", ["x", "w"], ["y"])
    weight = np.random.default_rng(0).standard_normal((4, 3))
    graph = capture(
        build_model([node], {"x": [2, 4]}, {"w": weight}, kind=TensorProto.DOUBLE), tmp_path
    )
    assert graph.tensors["w"].dtype == "f32"


def test_samples(tmp_path: Path) -> None:
    node = make("Add", ["a", "b"], ["y"])
    graph = capture(build_model([node], {"a": [2, 3], "b": [3]}), tmp_path)
    generator = np.random.default_rng(0)
    for name, shape in {"a": (1, 2, 3), "b": (1, 3)}.items():
        expected = generator.standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(graph.samples[name], expected)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/features/features.0/Conv", "features.0"),
        ("/layer1/layer1.0/downsample/downsample.1/Conv", "layer1.0.downsample.1"),
        ("/block.0/conv/Conv", "block.0.conv"),
        ("/Conv", ""),
        ("conv_7", ""),
        ("", ""),
    ],
)
def test_module_path_from_a_name(name: str, path: str) -> None:
    assert module_path(make("Conv", ["x"], ["y"], name=name)) == path


def test_wrong_capture_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that loses the operation must not go unseen, however close the values are."""

    def nearly_relu(imp: Importer, call: Call) -> str:
        tiny = imp.constant(np.asarray(1e-5))
        return imp.add("add", [imp.add("relu", [imp.tensor(call.args[0])]), tiny])

    monkeypatch.setitem(ONNX, "Relu", nearly_relu)
    with pytest.raises(GradletError, match="does not compute what the file computes"):
        capture(relu([2, 8]), tmp_path)


def test_gradients_reach_a_weight_through_arithmetic_on_it(tmp_path: Path) -> None:
    """x * g + sum(g): folding the sum would lose a part of the gradient of g without a word."""
    kind = TensorProto.FLOAT
    gate = numpy_helper.from_array(np.arange(1, 4, dtype=np.float32), "g")
    nodes = [
        helper.make_node("Mul", ["x", "g"], ["scaled"]),
        helper.make_node("ReduceSum", ["g"], ["total"], keepdims=0),
        helper.make_node("Add", ["scaled", "total"], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, kind, [2, 3])] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "m", *ends, [gate])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "m.onnx"
    )
    captured = capture_onnx(tmp_path / "m.onnx")
    assert [node.op for node in captured.nodes if "g" in node.inputs] == ["mul", "sum"]
    assert captured.tensors["g"].role == "param"
