"""Kernels that are broken on purpose: each is stopped, and named with what it touched."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gradlet
from gradlet.cli.commands import app
from gradlet.codegen.project import Project
from gradlet.engines import sim
from gradlet.planner.planner import Options, plan
from gradlet.sim import SimError
from gradlet.targets.target import load as load_target
from tests.pulp.support import break_kernel, device_project, model_graph

RELU = "*unary_relu__ref.c"
GEMM = "*gemm_nt__ref.c"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """With the plain kernels, which are easily broken."""
    plain = Options(fuse=False, variants={"gemm": "ref", "unary": "ref", "conv2d": "ref"})
    return device_project(model_graph("lenet"), tmp_path / "p", cores=4, options=plain)


def fault(project: Project) -> str:
    with pytest.raises(SimError) as caught:
        sim.run(project, sanitize=True)
    return str(caught.value)


def test_a_store_past_the_end(project: Project) -> None:
    break_kernel(
        project, RELU, "    for (int i", "    if (me.id == 2) y[s->count] = 0.0f;\n    for (int i"
    )
    message = fault(project)
    assert "node 'relu_0' of module '1' (kernel gl_f32_unary_relu__ref)" in message
    assert "core 2, pc 0x" in message
    assert "(net_f32_unary_relu__ref" in message
    assert "store at 0x" in message
    assert "that is 0 bytes past the end of 'relu_0'" in message
    sim.run(project)  # unwatched, it goes unnoticed


def test_a_barrier_that_is_missing(project: Project) -> None:
    """Found even though all cores are in time."""
    path, call = project.folder / "net.c", "{ __VA_ARGS__; } \\\n        GL_BARRIER(); \\\n"
    text = path.read_text()
    assert text.count(call) == 1
    path.write_text(text.replace(call, "{ __VA_ARGS__; } \\\n"))
    assert "0 barriers were passed since all went on before, where 1 have to be" in fault(project)


def test_a_store_into_an_input(project: Project) -> None:
    break_kernel(
        project, GEMM, "    const int by_rows", "    ((float *)b)[1] = 0.0f;\n    const int by_rows"
    )
    message = fault(project)
    assert "node 'matmul_0' of module '7'" in message
    assert "which this code may not write" in message
    assert "that is byte 4 of '7.weight'" in message


def test_a_load_of_somebody_elses_tensor(project: Project) -> None:
    """The weights of the last layer are next to those of the one before."""
    break_kernel(project, GEMM, "float sum = 0.0f;", "float sum = bb[s->n * s->k + 10];")
    message = fault(project)
    assert "node 'matmul_0'" in message
    assert "which this code may not read" in message
    assert "not its business" in message


def test_a_load_of_what_nobody_wrote(project: Project) -> None:
    break_kernel(project, GEMM, "float sum = 0.0f;", "float sum = c[row * s->n + j];")
    message = fault(project)
    assert "node 'matmul_0'" in message
    assert "where nobody has written" in message
    assert re.search(r"byte \d+ of 'matmul_0'", message)  # whichever core comes first


def test_an_output_that_is_not_filled(project: Project) -> None:
    """Found where it is read, although there are old bytes."""
    break_kernel(project, GEMM, "j < columns.end", "j < columns.end && row * s->n + j < 2")
    message = fault(project)
    assert "node 'relu_2'" in message
    assert "where nobody has written" in message
    assert re.search(r"that is byte \d+ of 'matmul_0'", message)


def test_unwritten_scratch(tmp_path: Path) -> None:
    target = replace(load_target("pulp-open", cores=2), isa=("c", "simd"), stack=2048)
    device = gradlet.emit(plan(model_graph("lenet"), target), tmp_path / "p")
    assert any(call.scratch for call in device.plan.calls)
    sim.run(device, sanitize=True)
    share = "    const gl_range pixels = gl_share(me, plane);\n"
    look = "    if (scratch[1] > 1e30f) return;\n"
    break_kernel(device, "*conv2d_forward_relu__im2col*.c", share, look + share)
    message = fault(device)
    assert "kernel gl_f32_conv2d_forward_relu__im2col" in message
    assert "where nobody has written" in message
    assert "byte 4 of '@scratch." in message


def test_two_cores_that_store_to_one_word(project: Project) -> None:
    break_kernel(project, RELU, "    for (int i", "    if (me.id > 1) y[0] = 1.0f;\n    for (int i")
    message = fault(project)
    assert "node 'relu_0'" in message
    assert "another core has stored in this phase" in message
    assert "byte 0 of " in message


def test_verify_says_so_and_exits_with_1(project: Project) -> None:
    break_kernel(project, RELU, "    for (int i", "    y[s->count] = 1.0f;\n    for (int i")
    done = CliRunner().invoke(app, ["verify", str(project.folder), "--json"])
    assert done.exit_code == 1
    assert "node 'relu_0'" in json.loads(done.stdout)["error"]


def test_watching_costs_no_cycles(project: Project) -> None:
    watched = sim.run(project, steps=2, watch=True, states=True, sanitize=True)
    plain = sim.run(project, steps=2)
    assert watched.cycles == plain.cycles
    assert watched.nodes == plain.nodes
    assert watched.cores == plain.cores
