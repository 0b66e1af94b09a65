"""Programs for a device out of a project: the ELF that simulators and silicon run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradlet.compiler import build_program
from gradlet.emit.project import RUNTIME, STARTUP, Project
from gradlet.errors import GradletError

STEPS = "steps.c"
GOLDEN = "main.c"


def require_device(project: Project, engine: str) -> None:
    target = project.plan.target
    if not target.machine:
        raise GradletError(
            f"'{project.folder}' is built for the target '{target.name}', which the engine "
            f"'{engine}' cannot run; `gradlet build ... --target pulp-open` makes a project that "
            "it can, or take --engine host"
        )


def build_golden(
    project: Project, output: Path, *, probes: bool = False, steps: int | None = None
) -> Path:
    """The golden test, or with `steps` so many steps of training that begin with it."""
    defines = [*(["GL_PROBE"] if probes else []), *([f"GL_STEPS={steps}"] if steps else [])]
    return _build(project, project.folder / GOLDEN, output, defines)


def build_steps(project: Project, output: Path) -> Path:
    """Training without an end, for an engine that feeds samples and reads results."""
    main = RUNTIME / project.plan.target.port / STEPS
    return _build(project, main, output, [f"GL_TRAIN_STEP={project.plan.prefix}_train_step"])


def _build(project: Project, main: Path, output: Path, defines: Sequence[str]) -> Path:
    plan, folder = project.plan, project.folder
    target = plan.target
    changing = [main, folder / f"{plan.prefix}.c", *(folder / target.port / n for n in STARTUP)]
    sources = [*changing, folder / "weights.c", *sorted((folder / "kernels").glob("*.c"))]
    cores = [f"GL_CORES={target.cores}", f"GL_STACK={target.stack}"]
    try:
        return build_program(
            sources,
            output,
            flags=target.flags,
            script=folder / target.port / "link.ld",
            include=[folder],
            defines={source: [*cores, *defines] for source in changing},
        )
    except GradletError as error:
        if "will not fit in region" in str(error):
            raise GradletError(
                f"the program of '{folder}' does not fit: beside the data, "
                f"{target.home.name} has {target.code:,} bytes for code and golden data\n"
                f"{error}"
            ) from None
        raise
