"""ONNX files that cannot be taken over: one message each, that says what and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gradlet.errors import GradletError
from gradlet.frontends.onnx.model import capture_onnx
from gradlet.ir.graph import Array
from tests.capture.onnx_models import NEWEST, Dims, build_model, capture, make, random, relu


def _flat_head(batch: int, target: Sequence[int], out: int | None) -> Any:
    nodes = [make("Reshape", ["x", "s"], ["f"]), make("Gemm", ["f", "w"], ["y"], transB=1)]
    stored = {"s": np.array(target), "w": random(5, 6)}
    return build_model(nodes, {"x": [batch, 2, 3]}, stored, outputs={"y": [out, 5]})


def test_fixed_batch_is_replaced(tmp_path: Path) -> None:
    graph = capture(_flat_head(2, [-1, 6], 2), tmp_path, batch=4)
    assert graph.tensors[graph.outputs[0]].shape == (4, 5)


def test_other_faults_are_not_blamed_on_the_batch(tmp_path: Path) -> None:
    with pytest.raises(GradletError, match=r"^model 'm' uses what Gradlet does not support"):
        capture(build_model([make("Asinh", ["x"], ["y"])], {"x": [1, 6]}), tmp_path, batch=4)


def test_missing_ops_come_before_what_follows_from_them(tmp_path: Path) -> None:
    nodes = [make("Asinh", ["x"], ["a"]), make("MatMul", ["a", "w"], ["y"])]
    model = build_model(nodes, {"x": [2, 4]}, {"w": random(3, 5)})
    with pytest.raises(GradletError, match=r"^model 'm' uses what Gradlet does not support"):
        capture(model, tmp_path)


def test_every_missing_op_is_listed(tmp_path: Path) -> None:
    nodes = [
        make("Asinh", ["x"], ["a"], name="/body/act/Asinh"),
        make("Conv", ["a", "w"], ["b"], name="/body/conv/Conv"),
        make("Fancy", ["b"], ["c"], domain="com.shop"),
        make("Shape", ["c"], ["s"]),
        make("Gather", ["s", "zero"], ["n"]),
        make("Relu", ["c"], ["d"]),
        make("Relu6", ["d"], ["e"], domain="com.shop"),
        make("MaxPool", ["b"], ["p", "where"], kernel_shape=[2, 2]),
        make("Cast", ["where"], ["at"], to=TensorProto.FLOAT),
        make("Reshape", ["e", "n"], ["z"]),
        make("Sum", ["z", "p", "at"], ["y"]),
    ]
    stored = {"w": random(4, 2, 3, 3), "zero": np.array([0])}
    model = build_model(nodes, {"x": [1, 2, 8, 8]}, stored, domain="com.shop")
    with pytest.raises(GradletError) as caught:
        capture(model, tmp_path)
    advice = "build it from supported ones (docs/support.md) or keep it out of the model"
    assert str(caught.value).splitlines() == [
        "model 'm' uses what Gradlet does not support:",
        f"  module 'body.act': Asinh on x [1, 2, 8, 8]: no such operation; {advice}",
        f"  the top module: com.shop.Fancy on b [1, 4, 6, 6]: no such operation; {advice}",
        f"  the top module: com.shop.Relu6: no such operation; {advice}",
        "  the top module: MaxPool on b [1, 4, 6, 6]: not supported: its further result 'where' "
        "is used",
    ]


def _control_flow() -> Any:
    value = helper.make_tensor_value_info("r", TensorProto.FLOAT, [2])
    branch = helper.make_graph([make("Relu", ["x"], ["r"])], "b", [], [value])
    node = make("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    nodes = [make("ReduceSum", ["x"], ["s"], keepdims=0), make("Cast", ["s"], ["c"], to=9), node]
    return build_model(nodes, {"x": [2]})


def _function_call() -> Any:
    model = build_model([make("Block", ["x"], ["y"], domain="my")], {"x": [2]}, domain="my")
    ids = [helper.make_opsetid("", 18)]
    body = [make("Relu", ["a"], ["b"])]
    model.functions.append(helper.make_function("my", "Block", ["a"], ["b"], body, ids))
    return model


def _typed(kind: int) -> Any:
    node = make("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    model = build_model([node], {"x": [2, 3]})
    model.graph.input[0].type.tensor_type.elem_type = kind
    return model


def _conv(dims: Dims, weight: Array, **attrs: Any) -> Any:
    node = make("Conv", ["x", "w"], ["y"], name="/stem/Conv", **attrs)
    return build_model([node], {"x": dims}, {"w": weight})


def _with(model: Any, change: Callable[[Any], object]) -> Any:
    change(model)
    return model


def _shapeless() -> Any:
    return _with(relu([2]), lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"))


def _sequence() -> Any:
    model = relu([2])
    model.graph.input[0].CopyFrom(
        helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    )
    return model


def _poisoned() -> Any:
    return build_model(
        [make("MatMul", ["x", "w"], ["y"])], {"x": [2, 1]}, {"w": np.full((1, 1), np.nan)}
    )


def _random_op() -> Any:
    nodes = [make("RandomNormal", [], ["r"], shape=[2]), make("Add", ["x", "r"], ["y"])]
    return build_model(nodes, {"x": [2]})


REFUSALS: dict[str, tuple[Callable[[], Any], int | None, str]] = {
    "symbolic size": (
        lambda: relu([1, 3, "height", 8]),
        None,
        "input 'x': the size of dimension 2 is 'height'. Memory is planned beforehand, so say how "
        "large it is: --dim height=SIZE, or give examples with --data",
    ),
    "unknown size": (
        lambda: relu([1, None]),
        None,
        "input 'x': the size of dimension 1 is unknown. Memory is planned beforehand, so say how "
        "large it is: --dim x.1=SIZE",
    ),
    "no shape": (_shapeless, None, "input 'x' has no shape; export the model with fixed"),
    "not a tensor": (_sequence, None, "input 'x' is not a tensor"),
    "half": (lambda: _typed(TensorProto.FLOAT16), None, "input 'x' has type float16; floats, or"),
    "no inputs": (
        lambda: build_model([make("Relu", ["w"], ["y"])], {}, {"w": random(3)}),
        None,
        "the model has no inputs",
    ),
    "batch 0": (lambda: relu([1, 2]), 0, "a batch of 0 makes no sense"),
    "new opset": (
        lambda: relu([1, 2], opset=NEWEST + 1),
        None,
        f"has opset {NEWEST + 1}, but the installed onnx knows none above {NEWEST}",
    ),
    "no opset": (
        lambda: _with(relu([1, 2]), lambda m: m.ClearField("opset_import")),
        None,
        "is not valid ONNX: it names no opset",
    ),
    "invalid": (
        lambda: build_model([make("Relu", ["nowhere"], ["y"])], {"x": [1]}),
        None,
        "is not valid ONNX: Nodes in a graph must be topologically sorted",
    ),
    "control flow": (
        _control_flow,
        None,
        "its condition 'c' depends on the values of 'x', but",
    ),
    "function": (_function_call, None, "the top module: my.Block on x [2]: no such operation"),
    "random": (_random_op, None, "the top module: RandomNormal: no such operation"),
    "channels": (
        lambda: _conv([1, 3, 8, 8], random(4, 2, 3, 3)),
        None,
        "node '/stem/Conv' (Conv): module 'stem': conv2d(x: f32[1,3,8,8], w: f32[4,2,3,3]): "
        "3 input channels, but the weights take 2 x 1",
    ),
    "four dimensions": (
        lambda: _conv([1, 3, 4, 4, 4, 4], random(4, 3, 3, 3, 3, 3)),
        None,
        "module 'stem': Conv on x [1, 3, 4, 4, 4, 4], w [4, 3, 3, 3, 3, 3]: not supported: "
        "convolution over other",
    ),
    "malformed pads": (
        lambda: _conv([1, 3, 8, 8], random(4, 3, 3, 3), pads=[1, 1]),
        None,
        "node '/stem/Conv' (Conv) has attributes that do not fit",
    ),
    "missing attribute": (
        lambda: build_model([make("MaxPool", ["x"], ["y"])], {"x": [1, 1, 4, 4]}),
        None,
        "is not valid ONNX: Required attribute 'kernel_shape' is missing",
    ),
    "output shape": (
        lambda: build_model(
            [make("ConvTranspose", ["x", "w"], ["y"], output_shape=[8, 8])],
            {"x": [1, 1, 4, 4]},
            {"w": random(1, 1, 3, 3)},
        ),
        None,
        "output padding must be smaller than the stride",
    ),
    "a region": (
        lambda: build_model(
            [
                make(
                    "Resize",
                    ["x", "", "s"],
                    ["y"],
                    coordinate_transformation_mode="tf_crop_and_resize",
                )
            ],
            {"x": [1, 1, 4, 4]},
            {"s": np.array([1, 1, 2, 2], np.float32)},
        ),
        None,
        "not supported: Resize of a region of interest",
    ),
    "pooling of four dimensions": (
        lambda: build_model(
            [make("MaxPool", ["x"], ["y"], kernel_shape=[2, 2, 2, 2])], {"x": [1, 3, 4, 4, 4, 4]}
        ),
        None,
        "MaxPool on x [1, 3, 4, 4, 4, 4]: not supported: pooling over other than one",
    ),
    "Gemm of three dimensions": (
        lambda: build_model([make("Gemm", ["x", "x"], ["y"])], {"x": [2, 3, 3]}),
        None,
        "Gemm on x [2, 3, 3], x [2, 3, 3]: not supported: Gemm of other than matrices",
    ),
    "integer output": (
        lambda: build_model([make("Shape", ["x"], ["y"])], {"x": [2, 3]}),
        None,
        "output 'y' holds int64, not floats",
    ),
    "poisoned": (_poisoned, None, "contains NaN or infinity in 1 of 1 places"),
    "huge weights": (
        lambda: build_model(
            [make("MatMul", ["x", "w"], ["a"]), make("MatMul", ["a", "w"], ["y"])],
            {"x": [2, 1]},
            {"w": np.full((1, 1), 1e38, np.float32)},
        ),
        None,
        "on a standard-normal sample the model's own results overflow float32",
    ),
    "damaged initialiser": (
        lambda: _with(
            _conv([1, 3, 8, 8], random(4, 3, 3, 3)),
            lambda m: m.graph.initializer[0].dims.__setitem__(0, 2),
        ),
        None,
        "initialiser 'w' is damaged; export the model again",
    ),
    "zero stride": (
        lambda: _conv([1, 3, 8, 8], random(4, 3, 3, 3), auto_pad="SAME_UPPER", strides=[0, 1]),
        None,
        "node '/stem/Conv' (Conv) has attributes that do not fit",
    ),
    "unknown type": (lambda: _typed(62), None, "input 'x' has type number 62; floats, or"),
    "batch contradicts": (
        lambda: _flat_head(2, [2, 6], 2),
        4,
        "fixes a batch of 2 and contradicts itself with 4; export it with a dynamic batch or with "
        "that batch. ",
    ),
    "batch swallowed": (
        lambda: build_model(
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
        capture(build(), tmp_path, batch)
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
    model = build_model([make("MatMul", ["x", "w"], ["y"])], {"x": [2, 40]}, {"w": random(40, 30)})
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    assert capture_onnx(tmp_path / "m.onnx").tensors["w"].shape == (30, 40)
    (tmp_path / "m.data").unlink()
    with pytest.raises(GradletError, match=r"keeps its weights in m\.data, which cannot be read"):
        capture_onnx(tmp_path / "m.onnx")
