"""A program that has some kernels, waits for calls of them, and runs on the simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gradlet.errors import GradletError
from gradlet.kernels import source
from gradlet.kernels.catalogue import Kernel
from gradlet.runtime import FOLDER, KERNEL_RUNNER, has, includes, port_file, startup
from gradlet.stack_use import reserved_for, stack_need
from gradlet.support.cache import scratch_folder
from gradlet.support.compiler import build_program
from gradlet.support.templates import environment
from gradlet.targets.target import DEFAULT, Target

TEMPLATES = FOLDER.parent / "codegen" / "templates"
L1_STEP = 256
"""The size of L1 is a multiple of this."""


def require_runner(target: Target, program: str) -> None:
    """The simulator can measure: it knows the machine, and the port has this main program."""
    if not target.machine:
        raise GradletError(
            f"there is no simulator for '{target.name}' to measure on; --target {DEFAULT} has one"
        )
    if not has(target.port, program):
        raise GradletError(
            f"nothing can be measured by itself on '{target.name}': its port has no {program}"
        )


def with_stacks(build: Callable[[Target], bytes], target: Target, called: Sequence[str]) -> bytes:
    """What `build` links, once more if its functions need more stack than the target has: then the
    nearest memory is larger by as much, so that there is room for the same operands."""
    elf = build(target)
    needed = reserved_for(stack_need(elf, called))
    return elf if needed <= target.stack else build(stretched(target, needed))


def stretched(target: Target, stack: int) -> Target:
    """The target with stacks of so many bytes, and room for them beside its data."""
    l1, *others = target.memories
    more = -(-(stack - target.stack) * target.cores // L1_STEP) * L1_STEP
    machine = dict(target.machine)
    machine["l1_bytes"] += more
    memories = (replace(l1, size=l1.size + more), *others)
    return replace(target, stack=stack, memories=memories, machine=tuple(machine.items()))


def program(used: Sequence[Kernel], target: Target, shift: int = 0) -> bytes:
    """The ELF that calls these kernels. shift moves their code by so many words."""
    build = partial(_program, used, shift=shift)
    return with_stacks(build, target, [kernel.name for kernel in used])


def _program(used: Sequence[Kernel], target: Target, shift: int) -> bytes:
    with scratch_folder() as folder:
        (folder / "gl_port.h").write_text(port_header(target.port))
        (folder / "link.ld").write_text(link_script(target, shift))
        sources = []
        for kernel in used:
            sources.append(folder / f"{kernel.name}.c")
            sources[-1].write_text(_shifted(source.render(kernel), shift))
        changing = [port_file(target.port, n) for n in (KERNEL_RUNNER, *startup(target.port))]
        defines = [f"GL_CORES={target.cores}"]
        elf = build_program(
            [*changing, *sources],
            folder / "runner.elf",
            flags=target.flags,
            script=folder / "link.ld",
            include=[folder, *includes(target.port)],
            defines=dict.fromkeys(changing, defines),
            unused=True,
        )
        return elf.read_bytes()


def port_header(port: str) -> str:
    """As a project has it."""
    return _rendered(TEMPLATES / "gl_port.h.j2", port=port)


def _rendered(path: Path, **view: Any) -> str:
    return environment([path.parent]).get_template(path.name).render(view)


def link_script(target: Target, shift: int) -> str:
    text = _rendered(
        port_file(target.port, "link.ld.j2"),
        model="kernels",
        target_name=target.name,
        memories=target.memories,
        stack=target.stack,
        cores=target.cores,
    )
    moved = f"KEEP(*(.text.start)) . += {4 * shift}; "
    return text.replace("KEEP(*(.text.start)) ", moved)


def _shifted(text: str, shift: int) -> str:
    """Functions of assembler begin at a boundary of a line; the words go behind it."""
    marker = '".option norelax\\n"\n'
    return text.replace(marker, marker + '        "nop\\n"\n' * shift)
