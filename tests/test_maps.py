"""Maps of other sizes: exactness where PyTorch is exact, refusals, and broken kernels caught."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gradlet
from gradlet.errors import GradletError
from gradlet.kernels.catalogue import families
from tests.test_end_to_end import break_file, project_of


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("model", "pattern", "old", "new"),
    [
        ("autoencoder", "kernels/*conv2d_input_grad__im2col*.c", "{{0.0f}}", "{{1e-3f}}"),
        ("pyramid", "kernels/*resample_forward*.c", "2 * i + 1", "2 * i"),
        ("pyramid", "kernels/*resample_grad*.c", "size + result - 1", "size + result - 2"),
        ("pyramid", "kernels/*pool_avg_grad*.c", "(float)(overlap", "1.01f * (float)(overlap"),
        ("signals", "kernels/*pool_avg_forward*.c", "s->in_w + s->pad_right - left", "s->kernel_w"),
    ],
)
def test_a_broken_kernel_is_caught(
    model: str, pattern: str, old: str, new: str, tmp_path: Path
) -> None:
    project = project_of(model, tmp_path / "p")
    break_file(project, pattern, old, new)
    assert not gradlet.verify(project, steps=1).passed


def test_the_weights_of_a_line_keep_their_shape_and_their_fused_update(tmp_path: Path) -> None:
    project = project_of("waves", tmp_path / "p")
    assert project.plan.graph.tensors["0.weight"].shape == (4, 2, 4)
    fused = {call.name for call in project.plan.calls if len(call.nodes) > 1}
    assert {"0.weight.next", "2.weight.next"} <= fused


def test_transposed_convolution_has_no_kernels_of_its_own() -> None:
    assert "conv_transpose" not in families()


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (
            nn.ConvTranspose2d(1, 1, 2, stride=1, dilation=3, output_padding=2),
            (1, 1, 4, 4),
            "output padding must be smaller than the stride",
        ),
        (nn.Upsample(scale_factor=0.1, mode="bilinear"), (1, 1, 7, 7), "Input and output sizes"),
    ],
)
def test_refusals(module: nn.Module, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(GradletError, match=message):
        gradlet.capture(module, (torch.randn(shape),))
