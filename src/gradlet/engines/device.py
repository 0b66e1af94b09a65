"""Programs for a device out of a project: the ELF that simulators and silicon run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradlet.codegen.golden import made_up
from gradlet.codegen.project import Project, project_files
from gradlet.errors import GradletError, InternalError
from gradlet.oracle.recording import Recording
from gradlet.planner.model import Plan
from gradlet.runtime import STEPS, startup
from gradlet.sim.elf import Symbols
from gradlet.stack_use import StackError, reserved_for, stack_need
from gradlet.support.cache import scratch_folder
from gradlet.support.compiler import build_program, zig
from gradlet.targets.target import DEFAULT, Target

GOLDEN = "main.c"
WORTHWHILE = 1.05
"""So many times the room for tiles are worth planning again."""
ROOMY = 4
"""A memory so many times as large holds any program whose data fit."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a program takes beside the data of its plan: code and golden data in the memory of
    the program, and the stack of each core."""

    code: int
    stack: int

    def fit(self, plan: Plan) -> bool:
        target = replace(plan.target, code=self.code)
        return plan.taken(target.home) <= target.room(target.home) and self.stack <= target.stack


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


def program_needs(plan: Plan) -> Needs:
    """Found by linking the golden program, as it is shipped and as it runs on GVSoC, with golden
    data that are made up. As the target says, where there is no compiler for it."""
    target, home = plan.target, plan.target.home
    if not target.machine or zig() is None:
        return Needs(target.code, target.stack)
    roomy = [replace(m, size=ROOMY * m.size) if m == home else m for m in target.memories]
    with scratch_folder() as folder:
        wide = replace(plan, target=replace(target, memories=tuple(roomy)))
        for name, content in project_files(wide, Recording(), made_up(plan)).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        project, main = Project(folder, wide), folder / GOLDEN
        shipped = link_program(project, main, folder / "shipped.elf", ["GL_PROBE"])
        plain = link_program(project, main, folder / "plain.elf", [])
        stack = max(stack_bytes(shipped), stack_bytes(plain))
        symbols = Symbols(shipped.read_bytes())
    places = (symbols.address(name) or 0 for name in ("gl_l1_image", "gl_l1_start", "gl_l1_end"))
    image, first, end = places
    return Needs(image + end - first - home.base - plan.taken(home), stack)


def fitted(planned: Callable[[Target], Plan], target: Target) -> Plan:
    """A plan by `planned` for the target, with as much set aside for code and stacks as its program
    takes. Such a plan may have another program: so it is linked as well."""
    found = planned(target)
    if not all(map(found.fits, target.memories)):
        return found
    needs = program_needs(found)
    if needs.fit(found):
        return _slimmer(planned, found, needs) or found
    code, stack = max(needs.code, target.code), max(needs.stack, target.stack)
    return fitted(planned, replace(target, code=code, stack=stack))


def _slimmer(planned: Callable[[Target], Plan], found: Plan, needs: Needs) -> Plan | None:
    """With no more stack than it needs, where that is much more of the nearest memory for tiles."""
    near, slim = found.target.memories[0], replace(found.target, stack=needs.stack)
    if not found.tilings or slim.room(near) < WORTHWHILE * found.target.room(near):
        return None
    better = planned(slim)
    return better if program_needs(better).fit(better) else None
