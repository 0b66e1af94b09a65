"""The simulated cluster and the host make the same bits: every tensor, with any number of cores.

The sanitizer is on, so each kernel call also keeps to what the plan allows it. To save
time, the two largest networks run with fewer numbers of cores, and larger ones for one step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradlet import zoo
from gradlet.engines import host, sim
from gradlet.verifier.shipped import same_bits
from tests.models import MODELS
from tests.pulp.support import device_project, model_graph, zoo_graph

STEPS = {"tutorial-cnn": 2, "deep-ae": 2}
CORES = {"mobilenet-v1-025": (8,), "cct-tiny": (2, 8)}
SIZES: dict[str, dict[str, Any]] = {
    "tutorial-cnn": {"L1": "128k"},
    "mobilenet-v1-025": {"L2": "4M"},
}
CASES = [(name, cores) for name in zoo.models() for cores in CORES.get(name, (1, 2, 4, 8))]


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("name", "cores"), CASES)
def test_zoo(name: str, cores: int, tmp_path: Path) -> None:
    graph = zoo_graph(name)
    project = device_project(graph, tmp_path / "p", cores=cores, **SIZES.get(name, {}))
    steps = STEPS.get(name, 1)
    device = sim.run(project, steps=steps, watch=True, states=True, sanitize=True)
    reference = host.run(project, steps=steps, watch=True, states=True)
    shown = set(device.tensors)
    assert {name for call in project.plan.calls for name in call.outputs if name} <= shown
    assert same_bits(device, reference)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_layers_of_every_kind(name: str, tmp_path: Path) -> None:
    project = device_project(model_graph(name), tmp_path / "p", cores=3)
    device = sim.run(project, watch=True, states=True, sanitize=True)
    assert same_bits(device, host.run(project, watch=True, states=True))


@pytest.mark.parametrize(
    "recipe",
    [
        {"accumulate": 3, "momentum": 0.9},
        {"optimizer": "adam", "clip_norm": 0.5, "weight_decay": 0.01},
    ],
    ids=["accumulated", "adam"],
)
def test_updates(recipe: dict[str, object], tmp_path: Path) -> None:
    project = device_project(model_graph("lenet", **recipe), tmp_path / "p", cores=4)
    device = sim.run(project, steps=3, watch=True, states=True, sanitize=True)
    assert same_bits(device, host.run(project, steps=3, watch=True, states=True))
