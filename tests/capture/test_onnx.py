"""Hand-made ONNX files: spellings of several opsets, shape arithmetic, and every refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

from gradlet.capture.onnx import capture_onnx
from gradlet.capture.onnx_file import module_path
from gradlet.errors import GradletError
from gradlet.graph import Array, Graph
from gradlet.ops import ONNX
from gradlet.ops.base import Call, Importer
from gradlet.reference import evaluate

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = (13, 18, NEWEST)
Dims = Sequence[int | str | None]
make = helper.make_node


def _random(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _model(
    nodes: Sequence[Any],
    inputs: dict[str, Dims],
    stored: dict[str, Array] | None = None,
    *,
    opset: int = 18,
    outputs: dict[str, Dims | None] | None = None,
    kind: int = TensorProto.FLOAT,
    domain: str = "",
) -> Any:
    results: dict[str, Dims | None] = outputs or {"y": None}
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, kind, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(n, kind, shape) for n, shape in results.items()],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (stored or {}).items()],
    )
    return helper.make_model(graph, opset_imports=imports)


def _capture(model: Any, folder: Path, batch: int | None = None) -> Graph:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return capture_onnx(path, batch=batch)


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def _agrees(graph: Graph, model: Any) -> None:
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
    stored = {"w": _random(4, 1, 2, 4), "b": _random(4)}
    node = make("Conv", ["x", "w", "b"], ["y"], group=2, **attrs)
    model = _model([node], {"x": [2, 2, 8, 7]}, stored, opset=opset)
    graph = _capture(model, tmp_path)
    assert graph.nodes[0].attrs["padding"] == padding
    assert [t.role for t in graph.tensors.values()] == ["input", "param", "param", "activation"]
    _agrees(graph, model)


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
    model = _model([node], {"x": [1, 2, 6, 5]}, opset=opset)
    _agrees(_capture(model, tmp_path), model)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (3, 1), (1,)])
def test_gemm(trans_a: int, trans_b: int, bias: tuple[int, ...] | None, tmp_path: Path) -> None:
    stored = {"w": _random(5, 4) if trans_b else _random(4, 5)}
    names = ["x", "w"]
    if bias is not None:
        stored["c"] = _random(*bias)
        names.append("c")
    node = make("Gemm", names, ["y"], transA=trans_a, transB=trans_b)
    model = _model([node], {"x": [4, 3] if trans_a else [3, 4]}, stored, opset=13)
    graph = _capture(model, tmp_path)
    fused = bias in (None, (5,))
    expected = ["matmul"] if fused else ["matmul", "add"]
    assert [op for op in _ops(graph) if op != "transpose"] == expected
    assert graph.tensors["w"].role == "param"
    if not trans_a:
        assert graph.tensors["w"].shape == (5, 4), "a linear layer's weight is [out, in]"
        assert graph.nodes[0].attrs["layout"] == "nt"
    _agrees(graph, model)


def test_product_and_bias_become_one(tmp_path: Path) -> None:
    nodes = [make("MatMul", ["x", "w"], ["p"]), make("Add", ["b", "p"], ["y"])]
    model = _model(nodes, {"x": [2, 3, 4]}, {"w": _random(4, 5), "b": _random(5)})
    graph = _capture(model, tmp_path)
    assert [node.inputs for node in graph.nodes] == [("x", "w", "b")]
    np.testing.assert_array_equal(graph.data["w"], _random(4, 5).T)
    _agrees(graph, model)


def test_product_read_twice_keeps_its_add(tmp_path: Path) -> None:
    nodes = [
        make("MatMul", ["x", "w"], ["p"]),
        make("Add", ["p", "b"], ["q"]),
        make("Add", ["p", "q"], ["y"]),
    ]
    model = _model(nodes, {"x": [2, 4]}, {"w": _random(4, 5), "b": _random(5)})
    graph = _capture(model, tmp_path)
    assert _ops(graph) == ["matmul", "add", "add"]
    _agrees(graph, model)


def test_vector_that_meets_other_rows_is_no_bias(tmp_path: Path) -> None:
    nodes = [
        make("MatMul", ["x", "w"], ["p"]),
        make("Reshape", ["p", "s"], ["q"]),
        make("Add", ["q", "b"], ["y"]),
    ]
    stored = {"w": _random(4, 6), "b": _random(6), "s": np.array([12, 1])}
    model = _model(nodes, {"x": [2, 4]}, stored)
    graph = _capture(model, tmp_path)
    assert _ops(graph) == ["matmul", "reshape", "add"]
    _agrees(graph, model)


def test_literal_is_no_bias(tmp_path: Path) -> None:
    """A bias is trained with its product; a literal must not be."""
    nodes = [
        make("Constant", [], ["c"], value=numpy_helper.from_array(_random(5))),
        make("MatMul", ["x", "w"], ["p"]),
        make("Add", ["p", "c"], ["y"]),
    ]
    graph = _capture(_model(nodes, {"x": [2, 4]}, {"w": _random(4, 5)}), tmp_path)
    assert _ops(graph) == ["matmul", "add"]
    assert [t.name for t in graph.of_role("param")] == ["w"]


def test_transposed_weight_is_trained_as_it_is_stored(tmp_path: Path) -> None:
    nodes = [make("Transpose", ["w"], ["t"]), make("MatMul", ["x", "t"], ["y"])]
    model = _model(nodes, {"x": [2, 4]}, {"w": _random(3, 4)})
    graph = _capture(model, tmp_path)
    assert [(t.name, t.shape) for t in graph.of_role("param")] == [("w", (3, 4))]
    assert [node.attrs for node in graph.nodes] == [{"layout": "nt"}]
    _agrees(graph, model)


def test_weight_with_two_readers_is_not_turned(tmp_path: Path) -> None:
    """A tied autoencoder: the decoder's transposed weight stays the encoder's weight."""
    nodes = [
        make("MatMul", ["x", "w"], ["h"]),
        make("Transpose", ["w"], ["t"], perm=[1, 0]),
        make("MatMul", ["h", "t"], ["y"]),
    ]
    model = _model(nodes, {"x": [2, 4]}, {"w": _random(4, 3)})
    graph = _capture(model, tmp_path)
    assert [(n.inputs[1], n.attrs["layout"]) for n in graph.nodes] == [("w", "nn"), ("w", "nt")]
    assert [t.name for t in graph.of_role("param")] == ["w"]
    _agrees(graph, model)


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
    model = _model(nodes, {"x": ["n", 2, 3, 4]}, stored, opset=opset)
    graph = _capture(model, tmp_path, batch=3)
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
    model = _model(nodes, {"x": [2, 4]}, {"size": np.array([4])})
    graph = _capture(model, tmp_path)
    assert _ops(graph) == ["add"]
    ((name, value),) = graph.data.items()
    assert graph.tensors[name].role == "const"
    np.testing.assert_array_equal(value, np.arange(4) * 1.5)


def test_weights_in_constant_nodes_can_be_trained(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(_random(4, 3))
    nodes = [make("Constant", [], ["w"], value=weight), make("MatMul", ["x", "w"], ["y"])]
    graph = _capture(_model(nodes, {"x": [2, 4]}), tmp_path)
    assert [t.shape for t in graph.of_role("param")] == [(3, 4)]


@pytest.mark.parametrize("as_attribute", [True, False])
def test_axes_of_the_mean(as_attribute: bool, tmp_path: Path) -> None:
    """An attribute up to opset 17, an operand since."""
    if as_attribute:
        node = make("ReduceMean", ["x"], ["y"], axes=[-1, 2], keepdims=0)
        model = _model([node], {"x": [1, 2, 3, 4]}, opset=13)
    else:
        node = make("ReduceMean", ["x", "axes"], ["y"], keepdims=0)
        model = _model([node], {"x": [1, 2, 3, 4]}, {"axes": np.array([2, 3])}, opset=18)
    graph = _capture(model, tmp_path)
    assert _ops(graph) == ["avg_pool2d", "reshape"]
    _agrees(graph, model)


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
    model = _model(nodes, {"x": [2, 3, 6]}, stored)
    graph = _capture(model, tmp_path)
    assert _ops(graph) == ["reshape"]
    _agrees(graph, model)


def test_initialiser_used_twice_is_one_tensor(tmp_path: Path) -> None:
    nodes = [make("MatMul", ["x", "w"], ["h"]), make("MatMul", ["h", "w"], ["y"])]
    model = _model(nodes, {"x": [2, 4]}, {"w": _random(4, 4)})
    graph = _capture(model, tmp_path)
    assert list(graph.data) == ["w"]
    _agrees(graph, model)


def test_initialisers_listed_as_inputs_do_not_count(tmp_path: Path) -> None:
    node = make("MatMul", ["x", "w"], ["y"])
    model = _model([node], {"x": [2, 4], "w": [4, 3]}, {"w": _random(4, 3)})
    assert _capture(model, tmp_path).inputs == ("x",)


def test_initialiser_with_the_name_of_a_result(tmp_path: Path) -> None:
    nodes = [make("Relu", ["x"], ["a"]), make("Add", ["a", "relu_0"], ["y"])]
    model = _model(nodes, {"x": [2, 4]}, {"relu_0": _random(4)})
    graph = _capture(model, tmp_path)
    assert graph.nodes[1].inputs == ("relu_1", "relu_0")
    _agrees(graph, model)


def test_double_precision_file(tmp_path: Path) -> None:
    node = make("MatMul", ["x", "w"], ["y"])
    weight = np.random.default_rng(0).standard_normal((4, 3))
    graph = _capture(
        _model([node], {"x": [2, 4]}, {"w": weight}, kind=TensorProto.DOUBLE), tmp_path
    )
    assert graph.tensors["w"].dtype == "f32"


def test_samples(tmp_path: Path) -> None:
    node = make("Add", ["a", "b"], ["y"])
    graph = _capture(_model([node], {"a": [2, 3], "b": [3]}), tmp_path)
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


def _relu(dims: Dims, **options: Any) -> Any:
    return _model([make("Relu", ["x"], ["y"])], {"x": dims}, **options)


def _flat_head(batch: int, target: Sequence[int], out: int | None) -> Any:
    nodes = [make("Reshape", ["x", "s"], ["f"]), make("Gemm", ["f", "w"], ["y"], transB=1)]
    stored = {"s": np.array(target), "w": _random(5, 6)}
    return _model(nodes, {"x": [batch, 2, 3]}, stored, outputs={"y": [out, 5]})


def test_fixed_batch_is_replaced(tmp_path: Path) -> None:
    graph = _capture(_flat_head(2, [-1, 6], 2), tmp_path, batch=4)
    assert graph.tensors[graph.outputs[0]].shape == (4, 5)


def test_other_faults_are_not_blamed_on_the_batch(tmp_path: Path) -> None:
    with pytest.raises(GradletError, match="^model 'm' uses what Gradlet does not support"):
        _capture(_model([make("Elu", ["x"], ["y"])], {"x": [1, 6]}), tmp_path, batch=4)


def test_missing_ops_come_before_what_follows_from_them(tmp_path: Path) -> None:
    nodes = [make("Elu", ["x"], ["a"]), make("MatMul", ["a", "w"], ["y"])]
    model = _model(nodes, {"x": [2, 4]}, {"w": _random(3, 5)})
    with pytest.raises(GradletError, match="^model 'm' uses what Gradlet does not support"):
        _capture(model, tmp_path)


def test_every_missing_op_is_listed(tmp_path: Path) -> None:
    nodes = [
        make("Elu", ["x"], ["a"], name="/body/act/Elu"),
        make("Conv", ["a", "w"], ["b"], name="/body/conv/Conv"),
        make("Fancy", ["b"], ["c"], domain="com.shop"),
        make("Shape", ["c"], ["s"]),
        make("Gather", ["s", "zero"], ["n"]),
        make("Relu", ["c"], ["d"]),
        make("Relu6", ["d"], ["e"], domain="com.shop"),
        make("MaxPool", ["b"], ["p", "where"], kernel_shape=[2, 2]),
        make("Reshape", ["e", "n"], ["y"]),
    ]
    stored = {"w": _random(4, 2, 3, 3), "zero": np.array([0])}
    model = _model(
        nodes, {"x": [1, 2, 8, 8]}, stored, domain="com.shop", outputs={"y": None, "where": None}
    )
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(GradletError) as caught:
        _capture(model, tmp_path)
    advice = "build it from supported layers or keep it out of the model"
    assert str(caught.value).splitlines() == [
        "model 'm' uses what Gradlet does not support:",
        f"  module 'body.act': Elu on x [1, 2, 8, 8]: no such operation (there is Relu); {advice}",
        f"  the top module: com.shop.Fancy on b [1, 4, 6, 6]: no such operation; {advice}",
        f"  the top module: com.shop.Relu6: no such operation; {advice}",
        "  the top module: MaxPool on b [1, 4, 6, 6]: not supported: its further result 'where' "
        "is used",
    ]


def _control_flow() -> Any:
    value = helper.make_tensor_value_info("r", TensorProto.FLOAT, [2])
    branch = helper.make_graph([make("Relu", ["x"], ["r"])], "b", [], [value])
    node = make("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    return _model([node], {"x": [2]}, {"c": np.array(True)})


def _function_call() -> Any:
    model = _model([make("Block", ["x"], ["y"], domain="my")], {"x": [2]}, domain="my")
    ids = [helper.make_opsetid("", 18)]
    body = [make("Relu", ["a"], ["b"])]
    model.functions.append(helper.make_function("my", "Block", ["a"], ["b"], body, ids))
    return model


def _typed(kind: int) -> Any:
    node = make("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    model = _model([node], {"x": [2, 3]})
    model.graph.input[0].type.tensor_type.elem_type = kind
    return model


def _conv(dims: Dims, weight: Array, **attrs: Any) -> Any:
    node = make("Conv", ["x", "w"], ["y"], name="/stem/Conv", **attrs)
    return _model([node], {"x": dims}, {"w": weight})


def _with(model: Any, change: Callable[[Any], object]) -> Any:
    change(model)
    return model


def _shapeless() -> Any:
    return _with(_relu([2]), lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"))


def _sequence() -> Any:
    model = _relu([2])
    model.graph.input[0].CopyFrom(
        helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    )
    return model


def _poisoned() -> Any:
    return _model(
        [make("MatMul", ["x", "w"], ["y"])], {"x": [2, 1]}, {"w": np.full((1, 1), np.nan)}
    )


def _random_op() -> Any:
    nodes = [make("RandomNormal", [], ["r"], shape=[2]), make("Add", ["x", "r"], ["y"])]
    return _model(nodes, {"x": [2]})


REFUSALS: dict[str, tuple[Callable[[], Any], int | None, str]] = {
    "symbolic size": (
        lambda: _relu([1, 3, "height", 8]),
        None,
        "input 'x': the size of dimension 2 is 'height'; only dimension 0, the batch, may be open",
    ),
    "unknown size": (
        lambda: _relu([1, None]),
        None,
        "input 'x': the size of dimension 1 is unknown; only dimension 0",
    ),
    "no shape": (_shapeless, None, "input 'x' has no shape; export the model with fixed"),
    "not a tensor": (_sequence, None, "input 'x' is not a tensor"),
    "integers": (lambda: _typed(TensorProto.INT64), None, "input 'x' has type int64; float inputs"),
    "half": (lambda: _typed(TensorProto.FLOAT16), None, "input 'x' has type float16; float inputs"),
    "no inputs": (
        lambda: _model([make("Relu", ["w"], ["y"])], {}, {"w": _random(3)}),
        None,
        "the model has no inputs",
    ),
    "batch 0": (lambda: _relu([1, 2]), 0, "a batch of 0 makes no sense"),
    "old opset": (
        lambda: _relu([1, 2], opset=12),
        None,
        f"has opset 12; 13 to {NEWEST} are supported. Export it again, or convert it",
    ),
    "new opset": (
        lambda: _relu([1, 2], opset=NEWEST + 1),
        None,
        f"has opset {NEWEST + 1}, but the installed onnx knows none above {NEWEST}",
    ),
    "no opset": (
        lambda: _with(_relu([1, 2]), lambda m: m.ClearField("opset_import")),
        None,
        "is not valid ONNX: it names no opset",
    ),
    "invalid": (
        lambda: _model([make("Relu", ["nowhere"], ["y"])], {"x": [1]}),
        None,
        "is not valid ONNX: Nodes in a graph must be topologically sorted",
    ),
    "control flow": (_control_flow, None, "the top module: If on c []: no such operation"),
    "function": (_function_call, None, "the top module: my.Block on x [2]: no such operation"),
    "random": (_random_op, None, "the top module: RandomNormal: no such operation"),
    "channels": (
        lambda: _conv([1, 3, 8, 8], _random(4, 2, 3, 3)),
        None,
        "node '/stem/Conv' (Conv): module 'stem': conv2d(x: f32[1,3,8,8], w: f32[4,2,3,3]): "
        "3 input channels, but the weights take 2 x 1",
    ),
    "one dimension": (
        lambda: _conv([1, 3, 8], _random(4, 3, 3)),
        None,
        "module 'stem': Conv on x [1, 3, 8], w [4, 3, 3]: not supported: convolution over other",
    ),
    "malformed pads": (
        lambda: _conv([1, 3, 8, 8], _random(4, 3, 3, 3), pads=[1, 1]),
        None,
        "node '/stem/Conv' (Conv) has attributes that do not fit",
    ),
    "missing attribute": (
        lambda: _model([make("MaxPool", ["x"], ["y"])], {"x": [1, 1, 4, 4]}),
        None,
        "is not valid ONNX: Required attribute 'kernel_shape' is missing",
    ),
    "ceil": (
        lambda: _model(
            [make("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], ceil_mode=1)], {"x": [1, 1, 5, 5]}
        ),
        None,
        "MaxPool on x [1, 1, 5, 5]: not supported: ceil_mode",
    ),
    "global pooling of rows": (
        lambda: _model([make("GlobalAveragePool", ["x"], ["y"])], {"x": [1, 3, 4]}),
        None,
        "GlobalAveragePool on x [1, 3, 4]: not supported: pooling over other than two spatial",
    ),
    "product with a vector": (
        lambda: _model([make("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, {"w": _random(3)}),
        None,
        "MatMul on x [2, 3], w [3]: not supported: a product with a vector on the right",
    ),
    "Gemm of three dimensions": (
        lambda: _model([make("Gemm", ["x", "x"], ["y"])], {"x": [2, 3, 3]}),
        None,
        "Gemm on x [2, 3, 3], x [2, 3, 3]: not supported: Gemm of other than matrices",
    ),
    "scaled Gemm": (
        lambda: _model(
            [make("Gemm", ["x", "w"], ["y"], alpha=0.5)], {"x": [2, 3]}, {"w": _random(3, 2)}
        ),
        None,
        "Gemm on x [2, 3], w [3, 2]: not supported: Gemm with alpha or beta other than 1",
    ),
    "integer output": (
        lambda: _model([make("Shape", ["x"], ["y"])], {"x": [2, 3]}),
        None,
        "output 'y': operand 'y' holds int64, not floats",
    ),
    "mean over channels": (
        lambda: _model([make("ReduceMean", ["x"], ["y"])], {"x": [1, 2, 3, 4]}),
        None,
        "ReduceMean on x [1, 2, 3, 4]: not supported: a mean over all dimensions",
    ),
    "poisoned": (_poisoned, None, "contains NaN or infinity in 1 of 1 places"),
    "huge weights": (
        lambda: _model(
            [make("MatMul", ["x", "w"], ["a"]), make("MatMul", ["a", "w"], ["y"])],
            {"x": [2, 1]},
            {"w": np.full((1, 1), 1e38, np.float32)},
        ),
        None,
        "on a standard-normal sample the model's own results overflow float32",
    ),
    "damaged initialiser": (
        lambda: _with(
            _conv([1, 3, 8, 8], _random(4, 3, 3, 3)),
            lambda m: m.graph.initializer[0].dims.__setitem__(0, 2),
        ),
        None,
        "initialiser 'w' is damaged; export the model again",
    ),
    "zero stride": (
        lambda: _conv([1, 3, 8, 8], _random(4, 3, 3, 3), auto_pad="SAME_UPPER", strides=[0, 1]),
        None,
        "node '/stem/Conv' (Conv) has attributes that do not fit",
    ),
    "unknown type": (lambda: _typed(62), None, "input 'x' has type number 62; float inputs"),
    "batch contradicts": (
        lambda: _flat_head(2, [2, 6], 2),
        4,
        "fixes a batch of 2 and contradicts itself with 4; export it with a dynamic batch or with "
        "that batch. ",
    ),
    "batch swallowed": (
        lambda: _model(
            [make("Reshape", ["x", "s"], ["y"])],
            {"x": [1, 6]},
            {"s": np.array([1, -1])},
            outputs={"y": [1, 6]},
        ),
        4,
        "fixes a batch of 1 and contradicts itself with 4",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(case: str, tmp_path: Path) -> None:
    build, batch, message = REFUSALS[case]
    with pytest.raises(GradletError) as caught:
        _capture(build(), tmp_path, batch)
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x07\x3a\xff\xff"])
def test_broken_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(GradletError, match=r"m\.onnx is not an ONNX model, or it is damaged"):
        capture_onnx(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GradletError, match=r"there is no file .*m\.onnx"):
        capture_onnx(tmp_path / "m.onnx")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(GradletError, match="cannot be read: Is a directory"):
        capture_onnx(tmp_path)


def test_external_data_that_is_gone(tmp_path: Path) -> None:
    model = _model([make("MatMul", ["x", "w"], ["y"])], {"x": [2, 40]}, {"w": _random(40, 30)})
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    assert capture_onnx(tmp_path / "m.onnx").tensors["w"].shape == (30, 40)
    (tmp_path / "m.data").unlink()
    with pytest.raises(GradletError, match=r"keeps its weights in m\.data, which cannot be read"):
        capture_onnx(tmp_path / "m.onnx")


def test_wrong_capture_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that loses the operation must not go unseen, however close the values are."""

    def nearly_relu(imp: Importer, call: Call) -> str:
        tiny = imp.constant(np.asarray(1e-5))
        return imp.add("add", [imp.add("relu", [imp.tensor(call.args[0])]), tiny])

    monkeypatch.setitem(ONNX, "Relu", nearly_relu)
    with pytest.raises(GradletError, match="does not compute what the file computes"):
        _capture(_relu([2, 8]), tmp_path)
