"""Convolution, pooling and resizing in ONNX beyond the plain ones, against its own evaluator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.capture.onnx_models import build_model, capture, make, random
from tests.capture.test_onnx import agrees


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"pads": [2, 1], "strides": [2]},
        {"auto_pad": "SAME_LOWER", "strides": [2]},
        {"dilations": [2], "group": 2},
    ],
)
def test_conv_over_one_dimension(attrs: dict[str, Any], tmp_path: Path) -> None:
    weight = random(4, 4 // attrs.get("group", 1), 3)
    node = make("Conv", ["x", "w", "b"], ["y"], **attrs)
    model = build_model([node], {"x": [2, 4, 9]}, {"w": weight, "b": random(4)})
    agrees(capture(model, tmp_path), model)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"strides": [2, 3], "output_padding": [1, 2]},
        {"pads": [1, 0, 0, 2], "strides": [2, 1]},
        {"dilations": [2, 1]},
    ],
)
def test_conv_transpose(attrs: dict[str, Any], tmp_path: Path) -> None:
    node = make("ConvTranspose", ["x", "w", "b"], ["y"], **attrs)
    stored = {"w": random(4, 3, 3, 2), "b": random(3)}
    model = build_model([node], {"x": [2, 4, 3, 4]}, stored)
    agrees(capture(model, tmp_path), model)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("dims", "attrs"),
    [
        ([1, 2, 6, 5], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
        ([1, 2, 9], {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
        ([1, 2, 8], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ],
)
def test_pooling(op: str, dims: list[int], attrs: dict[str, Any], tmp_path: Path) -> None:
    model = build_model([make(op, ["x"], ["y"], **attrs)], {"x": dims}, opset=22)
    agrees(capture(model, tmp_path), model)


def test_a_mean_over_lines_of_the_same_length(tmp_path: Path) -> None:
    node = make("AveragePool", ["x"], ["y"], kernel_shape=[2], auto_pad="SAME_UPPER")
    model = build_model([node], {"x": [1, 2, 8]})
    agrees(capture(model, tmp_path), model)


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("GlobalMaxPool", [2, 3, 4, 5]),
        ("GlobalAveragePool", [2, 3, 4, 5]),
        ("GlobalAveragePool", [2, 3, 7]),
    ],
)
def test_global_pooling(op: str, dims: list[int], tmp_path: Path) -> None:
    model = build_model([make(op, ["x"], ["y"])], {"x": dims})
    agrees(capture(model, tmp_path), model)


@pytest.mark.parametrize(
    "attrs",
    [
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        {"mode": "linear"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    ],
)
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_resize(attrs: dict[str, Any], by: str, tmp_path: Path) -> None:
    stored = {"s": np.array([1, 1, 2, 3], np.float32)}
    operands = ["x", "", "s"]
    if by == "sizes":
        stored, operands = {"s": np.array([1, 2, 5, 3])}, ["x", "", "", "s"]
    model = build_model([make("Resize", operands, ["y"], **attrs)], {"x": [1, 2, 3, 4]}, stored)
    agrees(capture(model, tmp_path), model)
