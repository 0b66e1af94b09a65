"""Stacks: what a program needs is known, reserved and proven, and an overflow is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gradlet
from gradlet.codegen.project import Project
from gradlet.engines import device, sim
from gradlet.errors import GradletError
from gradlet.runtime import STEPS
from gradlet.sim import Machine, SimConfig, SimError, Symbols, simulate
from gradlet.sim.binding import STATUS_DRAIN, STATUS_EXIT
from gradlet.stack_use import GUARD, Program, StackError, reserved_for, stack_need
from gradlet.targets import target
from tests.pulp.support import device_project, model_graph
from tests.sim.c_programs import compile_c

PAINT = 0xA5


class Vit(nn.Module):
    """Patches, one block of attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.norms[1](x))
        logits: Tensor = self.head(x.mean(1))
        return logits


class EegNet(nn.Module):
    """Long kernels in time, then in space, then separable."""

    def __init__(self) -> None:
        super().__init__()
        self.temporal = nn.Conv2d(1, 8, (1, 32), padding=(0, 16), bias=False)
        self.spatial = nn.Conv2d(8, 16, (16, 1), groups=8, bias=False)
        self.depth = nn.Conv2d(16, 16, (1, 16), padding=(0, 8), groups=16, bias=False)
        self.point = nn.Conv2d(16, 16, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (8, 16, 16))
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[1](self.spatial(self.norms[0](self.temporal(x))))
        x = nn.functional.avg_pool2d(nn.functional.elu(x), (1, 4))
        x = nn.functional.elu(self.norms[2](self.point(self.depth(x))))
        logits: Tensor = self.head(nn.functional.avg_pool2d(x, (1, 8)).flatten(1))
        return logits


def patches() -> tuple[nn.Module, Tensor]:
    """Its first layer has the largest frame of all kernels."""
    layers = (nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 4))
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), *layers), torch.randn(2, 3, 32, 32)


def vit() -> tuple[nn.Module, Tensor]:
    return Vit(), torch.randn(2, 3, 16, 16)


def eegnet() -> tuple[nn.Module, Tensor]:
    return EegNet(), torch.randn(2, 1, 16, 96)


MODELS = {"patches": patches, "vit": vit, "eegnet": eegnet}


def built(name: str, folder: Path, l1: str, cores: int, layout: str) -> Project:
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    memories = {"L1": l1}
    return gradlet.build(
        module, folder, batch=1, inputs=inputs, memories=memories, cores=cores, layout=layout
    )


def config(project: Project) -> SimConfig:
    return SimConfig.of(project.plan.target.machine)


def deepest(elf: bytes, config: SimConfig, limit: int = 0) -> list[int]:
    """Bytes of its stack that each core has written, in a run to the end or to a limit."""
    symbols, machine = Symbols(elf), Machine(config)
    end, size = symbols.address("gl_stacks_end") or 0, symbols.address("gl_stack") or 0
    assert not machine.load_elf(elf)
    machine.write(end - size * machine.config.cores, bytes([PAINT]) * size * machine.config.cores)
    status = STATUS_DRAIN
    while status == STATUS_DRAIN:
        status = machine.run(limit or 1_000_000_000)
        machine.take_stdout()
    assert status == (STATUS_EXIT if not limit else status)
    assert machine.exit_code == 0
    used = []
    for core in range(machine.config.cores):
        stack = machine.read(end - size * (core + 1), size)[GUARD:]
        used.append(len(stack.lstrip(bytes([PAINT]))))
    machine.close()
    return used


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("name", "l1", "cores", "layout"),
    [
        ("patches", "64k", 8, "chw"),
        ("patches", "16k", 8, "hwc"),
        ("vit", "20k", 8, "chw"),
        ("vit", "32k", 16, "hwc"),
        ("eegnet", "32k", 8, "chw"),
        ("eegnet", "16k", 8, "hwc"),
        ("patches", "20k", 1, "chw"),
    ],
)
def test_what_is_used_is_bounded_and_reserved(
    name: str, l1: str, cores: int, layout: str, tmp_path: Path
) -> None:
    """The shipped program: it passes its golden test, and stays within what is known."""
    project = built(name, tmp_path / "p", l1, cores, layout)
    elf = device.build_golden(project, tmp_path / "golden.elf", probes=True).read_bytes()
    need, reserved = stack_need(elf), project.plan.target.stack
    used = max(deepest(elf, config(project)))
    assert used <= need <= reserved - GUARD
    assert need - used <= 300, "the bound is far from what happens"


def test_more_than_the_target_sets_aside_is_planned_for(tmp_path: Path) -> None:
    project = built("patches", tmp_path / "p", "64k", 8, "chw")
    before = target.load("pulp-open").stack
    near = project.plan.target.memories[0]
    assert project.plan.target.stack > before
    assert project.plan.taken(near) + 8 * project.plan.target.stack <= near.size


def test_less_is_set_aside_where_that_matters() -> None:
    """Products of matrices need little stack."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    graph = gradlet.training_graph(gradlet.capture(layers, torch.randn(2, 64)))
    device_ = target.load("pulp-open", cores=16, sizes={"L1": "16k"})
    assert gradlet.plan(graph, device_).target.stack < device_.stack - 128


def linked(project: Project, main: Path, *defines: str) -> bytes:
    """As it must not be: nobody looks at its stack."""
    return device.link_program(
        project, main, project.folder.parent / "bad.elf", defines
    ).read_bytes()


def golden(project: Project) -> bytes:
    return linked(project, project.folder / "main.c", "GL_PROBE")


def steps(project: Project) -> bytes:
    return linked(project, STEPS, f"GL_TRAIN_STEP={project.plan.prefix}_train_step")


def too_small(link: Callable[[Project], bytes], folder: Path) -> Project:
    """A project with so little stack that its program meets the guard, and no more."""
    enough = device_project(model_graph("lenet"), folder / "p", L1="24k")
    plan = enough.plan
    used = max(deepest(link(enough), config(enough), limit=1_500_000))
    stack = (used - 1) // 16 * 16 + GUARD
    return gradlet.emit(replace(plan, target=replace(plan.target, stack=stack)), folder / "small")


def test_a_program_that_needs_more_is_not_built_and_says_so(tmp_path: Path) -> None:
    small = too_small(golden, tmp_path)
    with pytest.raises(GradletError, match=r"needs stacks of \d+ bytes for each core, and \d+ are"):
        device.build_golden(small, tmp_path / "golden.elf", probes=True)
    elf, stack = tmp_path / "make.elf", small.plan.target.stack
    elf.write_bytes(golden(small))
    command = [sys.executable, "-m", "stack_use", str(elf)]
    place = small.folder / "pulp"  # as make does
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    assert done.returncode == 1
    assert f"bytes of stack, and {stack} are reserved; build the project again" in done.stderr
    result = simulate(elf, config(small))
    assert result.exit_code == 125
    assert result.stdout == f"core 0: its stack of {stack} bytes has overflowed\n"


def test_run_and_the_sanitizer_tell_an_overflow(tmp_path: Path) -> None:
    small = too_small(steps, tmp_path)
    stack, program = small.plan.target.stack, steps(small)
    with pytest.raises(SimError, match=rf"core \d+ has overflowed, it has {stack} bytes"):
        sim.run(small, program=program)
    message = rf"node '.*pc 0x.*the stack of core \d+ overflows, it has {stack} bytes"
    with pytest.raises(SimError, match=message):
        sim.run(small, program=program, sanitize=True)


PROGRAMS = {
    "switch": (
        "__attribute__((noinline)) int deep(volatile char *p)"
        " { volatile char c[200]; for (int i = 0; i < 200; ++i) c[i] = *p; return c[7]; }\n"
        "volatile char one = 3;\n"
        "volatile int a, b, c;\n"
        "int main(void) { volatile char d[64]; for (int i = 0; i < 64; ++i) d[i] = one;\n"
        "  switch (d[9]) { case 0: a = 1; b = 2; break; case 1: b = a * 3; break;\n"
        "  case 2: c = b + a; break; case 3: a = deep(d); b = c; break;\n"
        "  case 4: c = a * b; a = 7; break; case 5: b = c - a; break; case 6: c = 9; break; }\n"
        "  return 0; }\n",
        "",
    ),
    "frames": (
        "__attribute__((noinline)) void deep(volatile char *p)"
        " { volatile char c[200]; for (int i = 0; i < 200; ++i) c[i] = *p; }\n"
        "int main(void) { volatile char c[100]; c[99] = 0; deep(c + 99); return 0; }\n",
        "",
    ),
    "recursion": (
        "__attribute__((noinline)) int f(volatile int *n) "
        "{ volatile int k = *n; return k ? f(&k) + 1 : 0; }\n"
        "int main(void) { volatile int n = 3; return f(&n); }\n",
        "no bound of the stack: .* main.* calls f.* calls f",
    ),
    "by pointer": (
        "volatile int n = 1;\n"
        "int again(void); int (*volatile next)(void) = again;\n"
        "int again(void) { volatile int k = n; return k + next(); }\n"
        "int main(void) { return next(); }\n",
        "no bound of the stack: .* again.* calls again",
    ),
    "any size": (
        "volatile int n = 4;\nint main(void) { volatile char c[n]; c[0] = 1; return c[0]; }\n",
        "takes stack that nobody can count",
    ),
    "in a loop": (
        'int main(void) { __asm__ volatile("1: addi sp, sp, -16\\n bnez a0, 1b"'
        ' ::: "a0"); return 0; }\n',
        "the stack grows in a loop",
    ),
    "hardware loop": (
        'int main(void) { __asm__ volatile(".insn i 0x7b, 4, x0, a0, 4\\n addi sp, sp, -16\\n nop"'
        ' ::: "a0"); return 0; }\n',
        "the stack grows in a loop",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_bounds_of_small_programs(name: str, tmp_path: Path) -> None:
    text, problem = PROGRAMS[name]
    source = tmp_path / "program.c"
    source.write_text(text)
    device_ = target.load("pulp-open", cores=2)
    elf = compile_c(source, device_, tmp_path)
    if problem:
        with pytest.raises(StackError, match=problem):
            stack_need(elf)
        return
    used = max(deepest(elf, SimConfig.of(device_.machine)))
    assert 280 <= used <= stack_need(elf) <= used + 300
    assert reserved_for(stack_need(elf)) % 16 == 0


def test_the_controller_has_no_stack_and_needs_none(tmp_path: Path) -> None:
    """Whatever it runs before a core of the cluster sets sp may not touch it."""
    device_ = target.load("pulp-open", cores=2)
    source = tmp_path / "program.c"
    source.write_text("int main(void) { return 0; }\n")
    elf = bytearray(compile_c(source, device_, tmp_path))
    program = Program(bytes(elf))
    (code,) = program.code
    at = code.offset + program.address("_start") - code.address
    assert stack_need(bytes(elf)) > 0
    elf[at : at + 4] = (0x00112023).to_bytes(4, "little")  # sw ra, 0(sp)
    with pytest.raises(StackError, match="needs a stack where there is none yet"):
        stack_need(bytes(elf))
