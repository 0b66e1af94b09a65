"""Programs for a device out of a project: the ELF that simulators and silicon run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradlet import kernels
from gradlet.cache import scratch_folder
from gradlet.compiler import build_program
from gradlet.emit.golden import golden_bytes, golden_level
from gradlet.emit.project import RUNTIME, STARTUP, Project, emit
from gradlet.errors import GradletError
from gradlet.plan.model import Plan
from gradlet.sim.elf import Symbols

STEPS = "steps.c"
GOLDEN = "main.c"
TEXT_PER_CODE = 4
"""A kernel's source has at least so many times the bytes of its code."""
BESIDES = 32 * 1024
"""More than start-up, printing and the calls of a network take."""
ROOMY = 4
"""A memory so many times as large holds any program whose data fit."""


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


def needed_code(plan: Plan) -> int:
    """Bytes that the program takes beside the plan's data: as the target says, where a look at the
    sources shows that there is more than enough; else as it is found by linking the golden test."""
    target, home = plan.target, plan.target.home
    if not target.machine:
        return target.code
    used = {kernel for call in plan.calls for kernel in call.kernels}
    text = sum(len(kernels.render(kernel, plan.prefix)) for kernel in used)
    golden = 0 if golden_level(plan) else golden_bytes(plan)
    if text // TEXT_PER_CODE + golden + BESIDES <= home.size - plan.taken(home):
        return target.code
    roomy = [replace(m, size=ROOMY * m.size) if m == home else m for m in target.memories]
    with scratch_folder() as folder:
        wide = replace(plan, target=replace(target, memories=tuple(roomy)))
        elf = build_golden(emit(wide, folder / "project"), folder / "golden.elf", probes=True)
        symbols = Symbols(elf.read_bytes())
    places = (symbols.address(name) or 0 for name in ("gl_l1_image", "gl_l1_start", "gl_l1_end"))
    image, first, end = places
    return image + end - first - home.base - plan.taken(home)


def program_fits(plan: Plan) -> bool:
    """Whether the program finds room beside the data."""
    home = plan.target.home
    return plan.taken(home) + needed_code(plan) <= home.size
