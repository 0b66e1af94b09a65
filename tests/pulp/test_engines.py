"""Programs on the simulated device: placement, cycles, settings, printing, and what goes wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradlet
from gradlet.codegen import golden as emitted_golden
from gradlet.codegen.project import Project, emit
from gradlet.engines import device, host, sim
from gradlet.errors import GradletError
from gradlet.planner.planner import Options, plan
from gradlet.runtime import port_file, startup
from gradlet.sim import SimConfig, SimResult, simulate
from gradlet.support import compiler
from gradlet.support.compiler import build_program
from gradlet.targets import target as targets
from tests.pulp.support import device_project, model_graph, zoo_graph


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return device_project(model_graph("lenet"), tmp_path / "p")


def machine(project: Project, **settings: object) -> SimConfig:
    return SimConfig.of(project.plan.target.machine).with_settings(settings)


def golden(project: Project, folder: Path, **options: bool) -> SimResult:
    elf = device.build_golden(project, folder / "golden.elf", **options)
    return simulate(elf, machine(project))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_golden_program_passes_and_prints_what_the_host_prints(
    accumulate: int, tmp_path: Path
) -> None:
    graph = model_graph("lenet", accumulate=accumulate)
    project = device_project(graph, tmp_path / "p", prefix="other")
    result = golden(project, tmp_path, probes=True)
    assert result.exit_code == 0
    tool = compiler.default()
    command = ["make", "--no-print-directory", "golden", "CFLAGS=-O1"]
    command.append(f"CC={' '.join(tool.command)}")
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=True)
    here = [line for line in done.stdout.splitlines() if line.startswith(("step", "first"))]
    there = result.stdout.splitlines()
    assert there[-1].endswith("tensors checked: PASS")
    assert done.stdout.splitlines()[-1] == there[-1]
    for mine, theirs in zip(here, there, strict=False):
        before, _, rest = theirs.partition(", cycles ")
        assert mine == f"{before}, {rest.partition(', ')[2]}"


def test_the_golden_program_fails_on_a_wrong_kernel(tmp_path: Path) -> None:
    plain = Options(variants={"conv2d": "ref"})
    project = device_project(model_graph("lenet"), tmp_path / "p", options=plain)
    (path,) = project.folder.glob("kernels/*conv2d_forward_relu__ref.c")
    path.write_text(path.read_text().replace("gl_relu(", "0.5f + gl_relu("))
    result = golden(project, tmp_path, probes=True)
    assert result.exit_code == 1
    assert "first wrong value: relu_0[" in result.stdout
    assert "FAIL" in result.stdout


def test_make_device_builds_the_same_program(project: Project, tmp_path: Path) -> None:
    command = ["make", "device", f"DEVICE_CC={sys.executable} -m ziglang cc"]
    subprocess.run(command, cwd=project.folder, capture_output=True, check=True)
    result = simulate(project.folder / "build" / "golden.elf", machine(project))
    assert result.exit_code == 0
    # the order of the files decides where code lies, which the instruction caches notice
    cycles = re.compile(r"cycles \d+")
    same = golden(project, tmp_path, probes=True).stdout
    assert cycles.sub("", result.stdout) == cycles.sub("", same)


def test_the_nearest_memory_that_is_large_enough(tmp_path: Path) -> None:
    near = device_project(model_graph("lenet"), tmp_path / "near")
    all_far = Options(buffers="none")
    far = device_project(model_graph("lenet"), tmp_path / "far", options=all_far, L1="8k")
    for project, level in ((near, "L1"), (far, "L2")):
        saved = json.loads((project.folder / "plan.json").read_text())
        assert {buffer["level"] for buffer in saved["buffers"]} == {level}
        used = project.manifest["memory"]
        sizes = project.plan.sizes_bytes
        assert used[level]["used"] == project.plan.used + (sizes if level == "L1" else 0)
        assert used["L1"]["used"] >= sizes
    fast, slow = sim.run(near), sim.run(far)
    assert fast.loss == slow.loss
    assert slow.cycles[0] > 1.5 * fast.cycles[0]
    assert sum(node.stalls["memory"] for node in slow.nodes) > sum(
        10 * node.stalls["memory"] for node in fast.nodes
    )


@pytest.mark.thorough
def test_what_is_touched_most_lies_near(tmp_path: Path) -> None:
    """Between all in L1 and all in L2: the same results, and cycles that grow as L1 shrinks."""
    graph, runs = model_graph("lenet"), []
    ways = (("64k", "auto"), ("24k", "auto"), ("14k", "auto"), ("14k", "single"), ("14k", "none"))
    for size, buffers in ways:
        folder = tmp_path / f"{size}{buffers}"
        project = device_project(graph, folder, options=Options(buffers=buffers), L1=size)
        near = targets.load("pulp-open", sizes={"L1": size}).memories[0]
        assert project.plan.taken(near) <= project.plan.target.room(near)
        assert gradlet.load(project.folder).plan == project.plan
        runs.append(sim.run(project, sanitize=True, states=True))
        assert runs[-1].loss == host.run(project).loss
    cycles = [run.cycles[0] for run in runs]
    assert cycles[0] < cycles[1] < cycles[2] < cycles[4]
    for name, value in runs[0].states[0].items():
        for run in runs:  # tiles of a sum are added in another order
            assert run.states[0][name] == pytest.approx(value, rel=1e-4, abs=1e-6)


def test_a_model_that_fits_nowhere() -> None:
    target = targets.load("pulp-open", sizes={"L1": "8k", "L2": "140k"})
    with pytest.raises(GradletError, match=r"bytes of L2, the target 'pulp-open' has 12,288 for"):
        plan(model_graph("lenet"), target)


def test_l1_filled_to_the_last_byte(tmp_path: Path) -> None:
    """What the planner says fits is linked and runs: stacks begin right behind the data."""
    graph = model_graph("lenet")
    roomy = device_project(graph, tmp_path / "a", cores=1).plan
    need, sizes, stack = roomy.used, roomy.sizes_bytes, roomy.target.stack
    size = -(-(need + sizes) // 256) * 256 + stack
    project = device_project(graph, tmp_path / "b", cores=1, L1=str(size))
    assert project.plan.level.name == "L1"
    assert project.plan.used + sizes > size - stack - 256
    assert sim.run(project, sanitize=True).loss == host.run(project).loss


def test_cycles_of_nodes_and_cores(project: Project) -> None:
    run = sim.run(project, steps=2)
    assert len(run.nodes) == len(project.plan.calls)
    spent = sum(node.cycles for node in run.nodes)
    assert 0.98 * run.cycles[-1] < spent <= run.cycles[-1]
    assert len(run.cores) == 8
    for core in run.cores:
        assert core.instructions < core.cycles
        assert core.instructions + sum(core.stalls.values()) == pytest.approx(
            run.cycles[-1], rel=0.02
        )
    largest = max(range(len(run.nodes)), key=lambda i: run.nodes[i].cycles)
    assert project.plan.calls[largest].kernel.family == "conv2d"


def test_more_cores_are_faster(tmp_path: Path) -> None:
    cycles = [
        sim.run(device_project(model_graph("lenet"), tmp_path / str(n), cores=n)).cycles[0]
        for n in (1, 4, 16)
    ]
    assert cycles[0] > 2.5 * cycles[1] > 2.5 * cycles[2]


def test_settings_reach_the_simulator(tmp_path: Path) -> None:
    plain = device_project(model_graph("lenet"), tmp_path / "a")
    shared = device_project(model_graph("lenet"), tmp_path / "b", fpus="1", contention="off")
    assert dict(shared.plan.target.machine)["fpus"] == 1
    assert dict(gradlet.load(shared.folder).plan.target.machine)["contention"] == 0
    one, other = sim.run(plain), sim.run(shared)
    assert one.loss == other.loss
    assert sum(node.stalls["fpu_contention"] for node in other.nodes) > 1000
    assert sum(node.stalls["tcdm_contention"] for node in other.nodes) == 0


def test_samples_and_initial_values_can_be_given(project: Project) -> None:
    graph = project.plan.graph
    generator = np.random.default_rng(3)
    values = {
        name: value * np.float32(0.5) for name, value in graph.data.items() if "weight" in name
    }
    (name,) = graph.inputs
    samples = {name: generator.standard_normal((2, *graph.tensors[name].shape), np.float32)}
    options = {"steps": 3, "overrides": values, "samples": samples}
    assert sim.run(project, **options).loss == host.run(project, **options).loss  # type: ignore[arg-type]
    assert sim.run(project).loss != sim.run(project, overrides=values).loss


def test_a_target_of_ones_own(tmp_path: Path) -> None:
    text = (targets.FOLDER / "pulp-open.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('"pulp-open"', '"mine"').replace("cores = 8", "cores = 2"))
    mine = targets.load(str(path))
    project = gradlet.emit(plan(model_graph("lenet"), mine), tmp_path / "p")
    assert len(gradlet.run(project).cores) == 2
    path.write_text("name = ")
    with pytest.raises(GradletError, match="cannot read the target"):
        targets.load(str(path))


def test_sizes_of_the_target_agree_with_the_simulator() -> None:
    """The file says them twice: for plans, and for programs of any kind."""
    plans, programs = targets.load("pulp-open"), SimConfig.load("pulp-open")
    assert dict(plans.machine) == {name: int(getattr(programs, name)) for name, _ in plans.machine}


def test_without_ziglang(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "zig", lambda: None)
    with pytest.raises(GradletError, match="pip install ziglang"):
        sim.run(project)


def test_a_program_that_is_too_large(tmp_path: Path) -> None:
    graph = zoo_graph("deep-ae")
    all_far = Options(buffers="none")
    project = device_project(graph, tmp_path / "p", options=all_far, L2="1220k")
    (tmp_path / "p" / "more.h").write_text("")
    main = project.folder / "main.c"
    main.write_text(main.read_text() + "\nconst char much[100000] = {1};\n")
    with pytest.raises(GradletError, match="131,072 bytes for code and golden data"):
        device.build_golden(project, tmp_path / "golden.elf")


@pytest.mark.thorough
def test_code_is_counted_where_memory_is_short(tmp_path: Path) -> None:
    """The data fit beside what the target sets aside for code, but the program needs more."""
    memories = {"L2": "549k"}
    device_ = targets.load("pulp-open", sizes=memories)
    alone = plan(zoo_graph("ds-cnn"), device_)
    with pytest.raises(GradletError, match="131,072 bytes for code and golden data"):
        device.build_golden(emit(alone, tmp_path / "alone"), tmp_path / "alone.elf")
    project = gradlet.build("zoo:ds-cnn", tmp_path / "counted", memories=memories)
    assert project.plan.target.code > device_.code
    device.build_golden(project, tmp_path / "counted.elf")
    assert gradlet.memory("zoo:ds-cnn", memories=memories).to_json()["fits"]


def test_golden_data_lie_in_a_third_memory(tmp_path: Path) -> None:
    project = device_project(model_graph("lenet"), tmp_path / "p", L3="1M")
    assert "GL_IN(L3, rodata)" in (project.folder / "golden.h").read_text()
    assert golden(project, tmp_path).stdout.endswith("tensors checked: PASS\n")


def test_of_large_samples_one_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitted_golden, "SAMPLE_BYTES", 1)
    project = device_project(model_graph("lenet", accumulate=2), tmp_path / "p")
    assert "GOLDEN_SAMPLES 1\n" in (project.folder / "golden.h").read_text()
    assert golden(project, tmp_path).stdout.endswith("tensors checked: PASS\n")
    done = subprocess.run([sys.executable, project.folder / "golden.py"], check=False)
    assert done.returncode == 0


def test_printing(tmp_path: Path) -> None:
    values = [0.0, -0.0, 1.0, -1.5, 9.9999999, 1e-45, 3.4028235e38, 123456.7, 1e10, 0.1, 2 / 3]
    values += [float(v) for v in np.random.default_rng(0).standard_normal(20) * 1e-3]
    bits = np.array(values, np.float32).view(np.uint32)
    lines = "".join(f"gl_print_float(gl_from_bits({b}u)); gl_put('\\n');\n" for b in bits)
    lines += 'gl_print_float(gl_from_bits(0x7f800000u)); gl_print(" ");'
    lines += 'gl_print_float(gl_from_bits(0x7fc00000u)); gl_print(" ");'
    lines += "gl_print_int(-2147483647 - 1); gl_put(32); gl_print_hex(0xabcu); gl_put(10);"
    main = tmp_path / "main.c"
    main.write_text(f'#include "gl_print.h"\nint main(void) {{ GL_ALONE({lines}); return 3; }}\n')
    project = device_project(model_graph("single_neuron"), tmp_path / "p", cores=1)
    start = [port_file("pulp", name) for name in startup("pulp")]
    defines = ["GL_CORES=1"]
    elf = build_program(
        [main, *start],
        tmp_path / "print.elf",
        flags=project.plan.target.flags,
        script=project.folder / "pulp" / "link.ld",
        include=[project.folder],
        defines=dict.fromkeys([main, *start], defines),
    )
    result = simulate(elf, machine(project))
    assert result.exit_code == 3
    *printed, last = result.stdout.splitlines()
    assert [float(text) for text in printed] == pytest.approx(values, rel=1e-6, abs=1e-44)
    assert printed[:3] == ["0.000000", "-0.000000", "1.000000"]
    assert last == "inf nan -2147483648 0x00000abc"
