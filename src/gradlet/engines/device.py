"""Programs for a device out of a project: the ELF that simulators and silicon run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradlet.codegen.project import Project
from gradlet.errors import GradletError, InternalError
from gradlet.runtime import STEPS, startup
from gradlet.stack_use import StackError, reserved_for, stack_need
from gradlet.support.compiler import build_program
from gradlet.targets.target import DEFAULT

GOLDEN = "main.c"


def require_device(project: Project, engine: str) -> None:
    target = project.plan.target
    if not target.machine:
        raise GradletError(
            f"'{project.folder}' is built for the target '{target.name}', which the engine "
            f"'{engine}' cannot run; `gradlet build ... --target {DEFAULT}` makes a project "
            "that it can, or take --engine host"
        )


def build_golden(
    project: Project, output: Path, *, probes: bool = False, steps: int | None = None
) -> Path:
    """The golden test, or with `steps` so many steps of training that begin with it."""
    defines = [*(["GL_PROBE"] if probes else []), *([f"GL_STEPS={steps}"] if steps else [])]
    return _build(project, project.folder / GOLDEN, output, defines)


def build_steps(project: Project, output: Path) -> Path:
    """Training without an end, for an engine that feeds samples and reads results."""
    return _build(project, STEPS, output, [f"GL_TRAIN_STEP={project.plan.prefix}_train_step"])


def _build(project: Project, main: Path, output: Path, defines: Sequence[str]) -> Path:
    """Linked, and proven to find room on its stacks."""
    elf, reserved = link_program(project, main, output, defines), project.plan.target.stack
    needed = stack_bytes(elf)
    if needed > reserved:
        elf.unlink()
        raise GradletError(
            f"the program of '{project.folder}' needs stacks of {needed:,} bytes for each core, "
            f"and {reserved:,} are reserved; build the project again with this compiler"
        )
    return elf


def stack_bytes(elf: Path, called: Sequence[str] = ()) -> int:
    """What must be reserved for each core, guard included. called: what is called by address."""
    try:
        return reserved_for(stack_need(elf.read_bytes(), called))
    except StackError as error:
        raise InternalError(f"the stack of {elf.name} has no bound: {error}") from None


def link_program(project: Project, main: Path, output: Path, defines: Sequence[str]) -> Path:
    plan, folder = project.plan, project.folder
    target = plan.target
    start = [folder / target.port / name for name in startup(target.port)]
    changing = [main, folder / f"{plan.prefix}.c", *start]
    sources = [*changing, folder / "weights.c", *sorted((folder / "kernels").glob("*.c"))]
    try:
        return build_program(
            sources,
            output,
            flags=target.flags,
            script=folder / target.port / "link.ld",
            include=[folder],
            defines={source: [f"GL_CORES={target.cores}", *defines] for source in changing},
        )
    except GradletError as error:
        if "will not fit in region" in str(error):
            raise GradletError(
                f"the program of '{folder}' does not fit: beside the data, "
                f"{target.home.name} has {target.code:,} bytes for code and golden data\n"
                f"{error}"
            ) from None
        raise
