"""Three spatial dimensions: convolutions, pooling, norms and resizing, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradlet
from tests.capture.onnx_models import build_model, capture, make, random
from tests.capture.test_torch_gradients import assert_module_gradients


class Between(nn.Module):
    """A layer between two others, so that gradients pass it."""

    def __init__(self, layer: Callable[[Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, channels, 1)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.first(x)))


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.Conv3d(2, 3, 3), (4, 5, 6)),
    "padded": (nn.Conv3d(2, 3, 3, padding=1), (3, 4, 5)),
    "one": (nn.Conv3d(2, 1, 1, bias=False), (1, 1, 1)),
    "stride": (nn.Conv3d(2, 3, (3, 2, 1), stride=(2, 1, 3), padding=(1, 0, 2)), (5, 4, 3)),
    "dilation": (nn.Conv3d(2, 2, 2, dilation=(3, 1, 2), padding=(2, 0, 1)), (4, 3, 5)),
    "groups": (nn.Conv3d(2, 4, 3, groups=2, padding=1), (3, 3, 4)),
    "depthwise": (nn.Conv3d(2, 2, (2, 3, 3), groups=2), (4, 4, 4)),
    "patches": (nn.Conv3d(2, 5, 2, stride=2), (5, 4, 4)),
    "flat": (nn.Conv3d(2, 3, (1, 3, 3), padding=(0, 1, 1)), (4, 3, 3)),
    "deep": (nn.Conv3d(2, 3, (5, 1, 1), padding=(2, 0, 0)), (4, 3, 2)),
    "same": (nn.Conv3d(2, 3, (2, 3, 4), padding="same"), (4, 3, 5)),
    "transposed": (nn.ConvTranspose3d(2, 3, 3), (2, 3, 4)),
    "upsampling": (nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 3, 2)),
    "transposed stride": (
        nn.ConvTranspose3d(2, 3, (3, 2, 3), stride=2, padding=1, output_padding=1),
        (3, 2, 4),
    ),
    "transposed groups": (
        nn.ConvTranspose3d(2, 4, 2, stride=(3, 1, 2), dilation=2, groups=2, bias=False),
        (3, 2, 1),
    ),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("batch", [1, 2])
def test_convolutions(case: str, batch: int) -> None:
    torch.manual_seed(1)
    layer, size = CONVOLUTIONS[case]
    assert_module_gradients(Between(layer, 2), (torch.randn(batch, 1, *size),))


LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": nn.MaxPool3d(2),
    "max odd": nn.MaxPool3d((2, 3, 1), stride=(1, 2, 2), padding=(1, 1, 0)),
    "max dilated": nn.MaxPool3d(2, stride=1, dilation=(2, 1, 3)),
    "max ceil": nn.MaxPool3d(3, stride=2, ceil_mode=True),
    "avg": nn.AvgPool3d(2),
    "avg padded": nn.AvgPool3d(3, stride=2, padding=1),
    "avg inner": nn.AvgPool3d((3, 2, 3), stride=2, padding=1, count_include_pad=False),
    "avg ceil": nn.AvgPool3d(3, stride=2, ceil_mode=True),
    "avg divisor": nn.AvgPool3d(2, divisor_override=3),
    "adaptive avg": nn.AdaptiveAvgPool3d((2, 3, 1)),
    "adaptive avg odd": nn.AdaptiveAvgPool3d((3, 4, None)),
    "global avg": nn.AdaptiveAvgPool3d(1),
    "adaptive max": nn.AdaptiveMaxPool3d((3, 2, 2)),
    "global max": nn.AdaptiveMaxPool3d(1),
    "batch norm": nn.BatchNorm3d(2),
    "frozen batch norm": nn.BatchNorm3d(2).eval(),
    "instance norm": nn.InstanceNorm3d(2, affine=True),
    "group norm": nn.GroupNorm(2, 2),
    "layer norm": nn.LayerNorm((4, 5, 6)),
    "dropout": nn.Dropout3d(0.5).eval(),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest to a size": lambda x: F.interpolate(x, (3, 7, 6)),
    "trilinear": lambda x: F.interpolate(x, (5, 3, 8), mode="trilinear"),
    "trilinear corners": lambda x: F.interpolate(
        x, scale_factor=(2, 1, 1.5), mode="trilinear", align_corners=True
    ),
    "means": lambda x: x.mean((2, 3, 4)),
    "prelu": nn.PReLU(2),
}


class Layer(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    torch.manual_seed(1)
    module = Between(Layer(LAYERS[name]), 2)
    assert_module_gradients(module, (torch.randn(2, 1, 4, 5, 6),))


def test_without_a_batch() -> None:
    torch.manual_seed(1)
    whole = nn.Sequential(nn.Conv3d(2, 3, 2), nn.MaxPool3d(2), nn.ConvTranspose3d(3, 1, 2))
    assert_module_gradients(whole, (torch.randn(2, 4, 5, 6),))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("target", ["host", "pulp-open"])
def test_in_c(target: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    module = nn.Sequential(
        *(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2)),
        *(nn.ConvTranspose3d(4, 3, 3, stride=2, padding=1), nn.InstanceNorm3d(3), nn.PReLU()),
        *(nn.AdaptiveAvgPool3d(2), nn.Flatten(), nn.Linear(24, 3)),
    )
    inputs = torch.randn(2, 1, 6, 6, 8)
    project = gradlet.build(module, tmp_path / "p", inputs=inputs, batch=2, target=target)
    verdict = gradlet.verify(project, steps=2)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize(
    ("op", "weights", "attrs"),
    [
        ("Conv", [(3, 2, 2, 3, 1), (3,)], {"pads": [1, 0, 0, 0, 1, 2], "strides": [1, 2, 1]}),
        ("Conv", [(4, 1, 3, 3, 3)], {"auto_pad": "SAME_LOWER", "group": 2}),
        ("Conv", [(1, 2, 2, 2, 2)], {"auto_pad": "VALID", "dilations": [2, 1, 1]}),
        ("ConvTranspose", [(2, 3, 2, 2, 2), (3,)], {"strides": [2, 1, 2]}),
        ("ConvTranspose", [(2, 1, 3, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2, 1]}),
        ("GlobalAveragePool", [], {}),
        ("MaxPool", [], {"kernel_shape": [2, 2, 1], "strides": [2, 1, 1]}),
    ],
)
def test_onnx(
    op: str, weights: list[tuple[int, ...]], attrs: dict[str, object], tmp_path: Path
) -> None:
    stored = {"s": random(2, 1, 1, 1)} | {f"w{n}": random(*s) for n, s in enumerate(weights)}
    nodes = [make("Mul", ["x", "s"], ["a"]), make(op, ["a", *list(stored)[1:]], ["y"], **attrs)]
    graph = capture(build_model(nodes, {"x": [2, 2, 4, 5, 6]}, stored), tmp_path)
    assert graph.tensors[graph.outputs[0]].shape[0] == 2
