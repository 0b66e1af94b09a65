"""A device that is a TOML and a port: one core, one memory, no DMA, no assembler of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import gradlet
from gradlet.cli.commands import app
from gradlet.codegen.project import Project
from gradlet.engines import sim
from gradlet.engines.device import build_golden
from gradlet.errors import GradletError
from gradlet.ir.recipe import Recipe
from gradlet.sim import SimConfig, SimError, simulate
from gradlet.tuner.tune import tune
from tests.pulp.support import break_kernel

NAME = "rv32imc-zfinx"


class Odd(nn.Module):
    """Sizes that nothing divides, and layers that a network for images has not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=1)
        self.norm = nn.LayerNorm(5)
        self.gru = nn.GRU(5, 3, batch_first=True)
        self.out = nn.Linear(3, 7)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.gelu(self.conv(x)).mean(2).transpose(1, 2)
        return self.out(self.gru(self.norm(y))[0][:, -1])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return gradlet.build("zoo:tutorial-cnn", tmp_path_factory.mktemp("device") / "p", target=NAME)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Project:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("odd") / "p"
    recipe = Recipe(loss="cross_entropy", optimizer="adam", lr=0.01)
    return gradlet.build(
        Odd().eval(), folder, target=NAME, recipe=recipe, inputs=(torch.randn(2, 3, 7, 5),)
    )


@pytest.mark.parametrize("name", ["project", "odd"])
def test_it_trains_and_is_verified(name: str, request: pytest.FixtureRequest) -> None:
    """Every tensor, every access and every bit, on the simulator."""
    built: Project = request.getfixturevalue(name)
    target = built.plan.target
    assert (target.cores, len(target.memories), target.isa, target.engine) == (1, 1, ("c",), "sim")
    run = gradlet.run(built, steps=2)
    assert run.engine == "sim"
    assert all(count > 0 for count in run.cycles)
    verdict = gradlet.verify(built, steps=2)
    assert verdict.passed, verdict.first_wrong


def test_make_device_builds_what_the_simulator_runs(project: Project) -> None:
    command = ["make", "device", f"PYTHON={sys.executable}"]
    subprocess.run(command, cwd=project.folder, capture_output=True, check=True)
    elf = project.folder / "build" / "golden.elf"
    done = simulate(elf, SimConfig.of(project.plan.target.machine))
    assert done.exit_code == 0
    assert done.stdout.endswith("tensors checked: PASS\n")
    by_hand = CliRunner().invoke(app, ["sim", str(elf), "--target", NAME])
    assert by_hand.exit_code == 0
    assert f"build/golden.elf --target {NAME}\n" in (project.folder / "README.md").read_text()


def test_the_sanitizer_watches(tmp_path: Path) -> None:
    broken = gradlet.build("zoo:tutorial-cnn", tmp_path / "p", target=NAME)
    loop = "    for (int i"
    break_kernel(broken, "*unary_relu_grad__ref.c", loop, f"    dx[s->count] = 0.0f;\n{loop}")
    with pytest.raises(SimError, match=r"node 'd_conv2d_0'.*which this code may not write"):
        sim.run(broken, sanitize=True)


def test_a_stack_that_is_overwritten_ends_the_program(tmp_path: Path) -> None:
    project = gradlet.build("zoo:tutorial-cnn", tmp_path / "p", target=NAME)
    main = project.folder / "main.c"
    begin, spoil = "int main(void)\n{\n", "*(volatile uint32_t *)(uintptr_t)&gl_stack_guard[2] = 0;"
    main.write_text(main.read_text().replace(begin, f"{begin}    {spoil}\n"))
    elf = build_golden(project, tmp_path / "golden.elf")
    done = simulate(elf, SimConfig.of(project.plan.target.machine))
    assert done.exit_code == 125
    assert done.stdout.endswith("the stack has overflowed\n")


def test_a_memory_that_is_too_small_names_what_is_enough(tmp_path: Path) -> None:
    with pytest.raises(GradletError, match=r"--set RAM=\d+k "):
        gradlet.build("zoo:tutorial-cnn", tmp_path / "p", target=NAME, memories={"RAM": "150k"})


def test_what_it_has_not_is_refused(project: Project, tmp_path: Path) -> None:
    with pytest.raises(GradletError, match="has no memory L1; it has RAM"):
        gradlet.build("zoo:tutorial-cnn", tmp_path / "p", target=NAME, memories={"L1": "64k"})
    with pytest.raises(GradletError, match=r"its port has no tile_runner\.c"):
        tune(project.plan)
    with pytest.raises(GradletError, match="the engine sim can run it"):
        gradlet.run(project, engine="gvsoc")
