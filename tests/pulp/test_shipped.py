"""What is verified is what is shipped: a build that differs from the others fails the verdict."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gradlet
from gradlet.api import training_graph
from gradlet.codegen.project import Project
from gradlet.engines import device, golden, sim
from gradlet.engines.model import Run
from gradlet.ir.recipe import Recipe
from gradlet.sim import SimConfig, simulate
from gradlet.support.compiler import available, default
from gradlet.verifier.shipped import check_shipped, same_array
from tests.pulp.support import device_project

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A depthwise convolution, dropout, gradients summed up over two calls, a prefix, momentum."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3)]
    module = nn.Sequential(*layers, nn.Linear(3 * 6 * 6, 4))
    captured = gradlet.capture(module, (torch.randn(4, 3, 6, 6),), batch=1, name="depthwise")
    graph = training_graph(captured, Recipe(lr=0.05, momentum=0.9, accumulate=2))
    folder = tmp_path_factory.mktemp("shipped") / "p"
    return device_project(graph, folder, cores=3, prefix="mine")


@pytest.fixture(scope="module")
def verified(original: Project) -> Run:
    return sim.run(original, steps=2, watch=True, states=True, sanitize=True)


@pytest.fixture
def project(original: Project, tmp_path: Path) -> Project:
    shutil.copytree(original.folder, tmp_path / "p")
    return Project(tmp_path / "p", original.plan)


def change(project: Project, name: str, old: str, new: str) -> None:
    (path,) = project.folder.glob(name)
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))


def test_all_builds_agree(project: Project, verified: Run) -> None:
    shipped = check_shipped(project, verified)
    assert shipped.differences == ()
    assert shipped.bit_identical == {"host": True, "sim": True}
    assert [(p.build, p.exit_code) for p in shipped.golden] == [("host", 0), ("device", 0)]
    assert all("checksum of weights" in p.stdout for p in shipped.golden)


DEPTHWISE = "kernels/mine_f32_conv2d_forward_relu__rolling.c"
ANSWER = "    return loss;\n"
MUTATIONS = {
    "the twin of a kernel that only the device runs": (
        DEPTHWISE,
        "enum { UNIT = 1 };",
        "enum { UNIT = 1 };\n#define gl_fma(a, b, c) ((a) * (b) + (c) + 1e-3f)",
        r"'\w+' of the first step differs on sim and on the host",
    ),
    "what one compiler makes of it": (
        "mine.c",
        ANSWER,
        "#ifdef __clang__\n    return loss + 1.0f;\n#endif\n" + ANSWER,
        "",
    ),
    "the library without probes": (
        "mine.c",
        ANSWER,
        "#ifndef GL_PROBE\n    return loss + 1.0f;\n#endif\n" + ANSWER,
        "the loss of step 0 differs with and without probes",
    ),
    "the loss that the device returns": (
        "mine.c",
        ANSWER,
        "#ifdef __riscv\n    return loss * 1.000001f;\n#endif\n" + ANSWER,
        r"the golden program \(device\): the loss of step 0 is 0x",
    ),
    "predicting with dropout": (
        "mine.c",
        "    set_dropout(0);\n",
        "    set_dropout(1);\n",
        r"of predict\(\) is not what the model makes without dropout",
    ),
    "predicting on the device": (
        "mine.c",
        "    set_dropout(0);\n",
        "#ifndef __riscv\n    set_dropout(0);\n#endif\n",
        r"the golden program \(device\): the checksum of the outputs",
    ),
    "a setter": (
        "mine.c",
        "void mine_set_momentum(float value) { T_hyper[2]",
        "void mine_set_momentum(float value) { T_hyper[1]",
        "the setters of 'hyper'",
    ),
    "golden data": (
        "main.c",
        "expected = golden_expected[check->first + i]",
        "expected = 9.0f + golden_expected[check->first + i]",
        r"the golden program \(host\): it ends with status 1 and does not pass. first wrong value",
    ),
    "a main that compares nothing": (
        "main.c",
        "        if (gl_abs(value - expected) <= allowed) continue;\n",
        "        continue;\n",
        r"the golden program finds 2 of \d+ values that are wrong on purpose",
    ),
    "a main that compares one value less": (
        "main.c",
        "i < check->count; ++i)",
        "i < check->count - 1; ++i)",
        r"the golden program \(host\): it compares \d+ values of \d+ tensors",
    ),
    "a main that compares no loss": (
        "main.c",
        "            ++failures;\n",
        "",
        r"the golden program finds \d+ of \d+ values that are wrong on purpose",
    ),
    "predicting that changes the training": (
        "mine.c",
        "    set_dropout(1);\n",
        "",
        r"predict\(\) changes the training",
    ),
    "the setter of the seed": (
        "mine.c",
        "[1] = 0;\n",
        "[1] += 0;\n",
        "the setters of 'dropout_state'",
    ),
    "the table of parameters": (
        "mine.c",
        '{"0.weight", ',
        '{"0.bias", ',
        "the table of parameters does not show what is trained",
    ),
    "a loss that is printed wrong": (
        "gl_print.h",
        "    x = gl_abs(x);\n",
        "    x = 2.0f * gl_abs(x);\n",
        r"the golden program \(host\): it prints a loss of \S+ as \S+",
    ),
    "a main of the device that stops": (
        "main.c",
        "    GL_ALONE(report_weights());\n",
        "    GL_ALONE(report_weights());\n"
        '#ifdef __riscv\n    __asm__ volatile("ebreak");\n#endif\n',
        r"the golden program \(device\): .*core \d.*main",
    ),
    "a main of the device that writes where it may not": (
        "main.c",
        "    GL_ALONE(report_weights());\n",
        "    GL_ALONE(report_weights());\n"
        "#ifdef __riscv\n    *(volatile int *)(uintptr_t)main = *(volatile int *)(uintptr_t)main;\n"
        "#endif\n",
        r"the golden program \(device\): .*main.*store at 0x1c01\w+, which this code may not write",
    ),
    "a main of the device that reads what nobody wrote": (
        "main.c",
        "int main(void)\n{\n",
        "int main(void)\n{\n    (void)*(volatile float *)mine_input();\n",
        r"the golden program \(device\): .*main.*load at 0x\w+, where nobody has written",
    ),
}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("what", MUTATIONS)
def test_a_build_that_differs_is_found(what: str, project: Project, verified: Run) -> None:
    name, old, new, message = MUTATIONS[what]
    change(project, name, old, new)
    shipped = check_shipped(project, verified)
    assert not shipped.passed
    text = "\n".join(shipped.differences)
    assert re.search(message, text), text


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            "golden_allowed",
            r"^golden.h: 'relu_0' may be off by 1, which is more than rounding does$",
        ),
        ("golden_loss_allowed", "^golden.h: the loss of step 0 may be off by 1"),
        ("golden_expected", r"^golden.h: 'relu_0' is expected to be 1$"),
        ("golden_index", r"^golden.h: it has 32 elements of 'relu_0', which has 108$"),
    ],
)
def test_golden_data_that_tell_nothing_are_found(
    array: str, message: str, project: Project
) -> None:
    path = project.folder / "golden.h"
    number = "-1" if array == "golden_index" else "1.0f"
    text = re.sub(rf"( {array}\[.*\{{\s*)[^\s,}}]+", rf"\g<1>{number}", path.read_text(), count=1)
    path.write_text(text)
    verdict = gradlet.verify(project, steps=2, engine="host", edited=True)
    assert not verdict.passed
    assert any(re.search(message, text) for text in verdict.shipped.differences), verdict.shipped


def test_the_verdict_is_a_fail(project: Project) -> None:
    """Every tensor of the simulated device is right, but its twin on the host is not."""
    name, old, new, _ = MUTATIONS["the twin of a kernel that only the device runs"]
    change(project, name, old, new)
    verdict = gradlet.verify(project, steps=1, edited=True)
    assert not verdict.passed
    assert all(row.passed for row in verdict.tensors)
    value = verdict.to_json()
    assert value["bit_identical"] == {"host": True, "sim": False}
    assert value["pass"] is False
    assert value["differences"][0].startswith("'relu_0' of the first step differs on sim and on")


def image(elf: bytes) -> list[tuple[int, ...] | bytes]:
    """What is loaded, and where; debugging information has paths in it."""
    table, count = struct.unpack_from("<I", elf, 28)[0], struct.unpack_from("<H", elf, 44)[0]
    heads = [struct.unpack_from("<8I", elf, table + 32 * index) for index in range(count)]
    return [part for h in heads if h[0] == 1 for part in (h[2:6], elf[h[1] : h[1] + h[4]])]


def test_a_loader_need_not_clear_anything(project: Project, tmp_path: Path) -> None:
    """What is not in the file holds anything: start-up clears the variables, the plan the rest."""
    elf = bytearray(device.build_golden(project, tmp_path / "golden.elf", probes=True).read_bytes())
    config = SimConfig.of(project.plan.target.machine)
    wanted = simulate(bytes(elf), config).stdout
    table, count = struct.unpack_from("<I", elf, 28)[0], struct.unpack_from("<H", elf, 44)[0]
    for head in range(table, table + 32 * count, 32):
        elf[head + 20 : head + 24] = elf[head + 16 : head + 20]  # in memory as much as in the file
    for fill in (0x57, 0xFF):
        assert simulate(bytes(elf), config.with_settings({"fill": fill})).stdout == wanted


@needs_make
def test_make_builds_the_program_that_was_verified(project: Project, tmp_path: Path) -> None:
    command = f"make device PYTHON={sys.executable}".split()
    assert "`make device PYTHON=...`" in (project.folder / "README.md").read_text()
    subprocess.run(command, cwd=project.folder, check=True)
    made = (project.folder / "build" / "golden.elf").read_bytes()
    ours = device.build_golden(project, tmp_path / "golden.elf", probes=True).read_bytes()
    assert image(made) == image(ours)
    assert len(image(made)) >= 8


@needs_make
def test_make_and_cmake_build_the_same_bits_for_the_host(project: Project) -> None:
    """CMake's own default is no optimization at all."""
    folder = project.folder
    done = subprocess.run(
        ["make", "-s", "golden"], cwd=folder, check=True, capture_output=True, text=True
    )
    wanted = golden.Printed(0, done.stdout)
    assert wanted.problem == ""
    assert golden.run_on_host(project, default()).result == wanted.result
    if shutil.which("cmake"):
        for command in (["cmake", "-B", "c", "."], ["cmake", "--build", "c"]):
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        done = subprocess.run([folder / "c" / "golden"], check=True, capture_output=True, text=True)
        assert golden.Printed(0, done.stdout).result == wanted.result


@pytest.mark.parametrize("name", [compiler.name for compiler in available()])
def test_every_compiler_builds_the_golden_program(name: str, project: Project) -> None:
    (compiler,) = (compiler for compiler in available() if compiler.name == name)
    printed = golden.run_on_host(project, compiler)
    assert printed.problem == ""
    assert printed.result == golden.run_on_device(project).result


def test_what_is_not_a_number_is_the_same_everywhere() -> None:
    one = np.array([1.0, np.nan, np.inf], np.float32)
    other = np.copysign(one, [1, -1, 1]).astype(np.float32)
    assert one.tobytes() != other.tobytes()
    assert same_array(one, other)
    assert golden.checksum([one]) == golden.checksum([other])
    assert not same_array(one, np.array([1.0, np.nan, -np.inf], np.float32))
    assert not same_array(np.array([0.0]), np.array([-0.0]))
