"""Linear layers in 16-bit types: one sample and several, whole and in tiles, sums of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gradlet
from gradlet.engines import host, sim
from gradlet.verifier.shipped import same_bits

EXPECTED = {
    (1, "f32"): {"nt__vector", "nn__vector", "tn_sgd__outer"},
    (1, "chunked"): {"nt__vector", "nn__vector_chunked", "tn_sgd__outer_chunked"},
    (3, "f32"): {"nt__pairs_5x4", "nn__pairs_5x4", "tn_sgd__pairs_5x4"},
}
"""Kernels by the samples of a batch and the sums that are asked for."""


@pytest.mark.parametrize("memory", ["64k", "16k"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("batch", "sums"), EXPECTED)
def test_layers(batch: int, sums: str, dtype: str, memory: str, tmp_path: Path) -> None:
    """The gradient of a bias is summed up beside that of weights, whose kernel has two steps."""
    torch.manual_seed(0)
    layers = [nn.Linear(61, 45), nn.ReLU(), nn.Linear(45, 33), nn.Tanh(), nn.Linear(33, 7)]
    project = gradlet.build(
        nn.Sequential(*layers),
        tmp_path / "p",
        inputs=(torch.randn(4, 61),),
        batch=batch,
        dtype=dtype,
        sums=sums,
        memories={"L1": memory},
    )
    names = {launch.kernel.symbol("net") for call in project.plan.calls for launch in call.launches}
    assert {f"net_{dtype}_gemm_{name}" for name in EXPECTED[batch, sums]} <= names
    device = sim.run(project, steps=2, watch=True, states=True, sanitize=True)
    assert same_bits(device, host.run(project, steps=2, watch=True, states=True))
    assert gradlet.verify(project).passed


def test_sums_are_plain_unless_asked_for(tmp_path: Path) -> None:
    with pytest.raises(gradlet.GradletError, match="--sums f16: there are f32, chunked"):
        gradlet.build(
            nn.Linear(4, 2), tmp_path / "p", inputs=(torch.randn(1, 4),), dtype="f16", sums="f16"
        )
