"""Room for the program beside the data: what it takes is estimated and, where that is close to what
there is, found by linking it; then the data are planned again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradlet.codegen.golden import golden_bytes, golden_level, made_up
from gradlet.codegen.project import Project, source_files, used_kernels
from gradlet.engines.device import GOLDEN, link_program, stack_bytes
from gradlet.kernels import source
from gradlet.kernels.catalogue import Kernel
from gradlet.planner.model import Plan
from gradlet.runtime import FOLDER, headers, port_file
from gradlet.sim.elf import Symbols
from gradlet.stack_use import loaded_bytes, needs_of, reserved_for
from gradlet.support.cache import scratch_folder
from gradlet.support.compiler import BASE, DEVICE_ONLY, compile_objects, version, zig
from gradlet.support.values import all_kept, all_recalled, key_of
from gradlet.targets.target import Target

WORTHWHILE = 1.05
"""So many times the room for tiles are worth planning again."""
ROOMY = 4
"""A memory so many times as large holds any program whose data fit."""
REST, EACH_CALL = 8192, 128
"""At most so many bytes of a program are neither kernels nor golden data: about twice what the zoo
takes."""
ABOVE = 128, 352
"""So deep is the stack where a kernel is called, at least and at most: in the zoo about 150 where
the deepest one runs without tiles, 288 to 320 in tiles."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a program takes beside the data of its plan: code and golden data in the memory of
    the program, and the stack of each core."""

    code: int
    stack: int

    def fit(self, plan: Plan) -> bool:
        target = replace(plan.target, code=self.code)
        return plan.taken(target.home) <= target.room(target.home) and self.stack <= target.stack


def fitted(planned: Callable[[Target], Plan], target: Target) -> Plan:
    """A plan by `planned` for the target, with as much set aside for code and stacks as its program
    takes. Such a plan may have another program: so that is looked at as well."""
    found = planned(target)
    if not all(map(found.fits, target.memories)) or _surely_fits(found):
        return found
    needs = program_needs(found)
    if needs.fit(found):
        return _slimmer(planned, found, needs) or found
    code, stack = max(needs.code, target.code), max(needs.stack, target.stack)
    return fitted(planned, replace(target, code=code, stack=stack))


def _slimmer(planned: Callable[[Target], Plan], found: Plan, needs: Needs) -> Plan | None:
    """With no more stack than it needs, where that is much more of the nearest memory for tiles.
    Such a plan may have other kernels, which need a little more."""
    while _slimming_pays(found, needs.stack):
        better = planned(replace(found.target, stack=needs.stack))
        own = program_needs(better)
        if own.fit(better):
            return better
        if own.stack <= needs.stack:
            return None
        needs = own
    return None


def _slimming_pays(found: Plan, stack: int) -> bool:
    l1, slim = found.target.memories[0], replace(found.target, stack=stack)
    return bool(found.tilings) and slim.room(l1) >= WORTHWHILE * found.target.room(l1)


def _surely_fits(plan: Plan) -> bool:
    """Whether the program fits as it is planned for, and planning with a smaller stack would not
    pay: linking it would tell nothing new."""
    if not plan.target.machine or zig() is None:
        return True  # as the target says: there is no compiler for it
    guess = estimated(plan)
    if guess is None:
        return False
    least, most = guess
    return most.fit(plan) and not _slimming_pays(plan, least.stack)


def estimated(plan: Plan) -> tuple[Needs, Needs] | None:
    """Bounds of what the program takes; None if it has a kernel of which nothing is known."""
    target, l1 = plan.target, plan.target.memories[0]
    keys = _keys(plan, used_kernels(plan))
    found = all_recalled(keys)
    if len(found) < len(keys):
        return None
    known = list(found.values())
    kernels = sum(kernel["bytes"] for kernel in known)
    beside = plan.taken(l1) if l1 != target.home else 0  # start-up copies it there
    beside += 0 if golden_level(plan) else golden_bytes(plan)
    most = kernels + beside + REST + EACH_CALL * len(plan.calls)
    deepest = max((kernel["stack"] for kernel in known), default=0)
    least_stack, most_stack = (reserved_for(deepest + above) for above in ABOVE)
    return Needs(kernels, least_stack), Needs(most, most_stack)


def program_needs(plan: Plan) -> Needs:
    """Found by linking the golden program, as it is shipped and as it runs on GVSoC, with golden
    data that are made up. What its kernels take is kept."""
    target, home = plan.target, plan.target.home
    roomy = [replace(m, size=ROOMY * m.size) if m == home else m for m in target.memories]
    with scratch_folder() as folder:
        wide = replace(plan, target=replace(target, memories=tuple(roomy)))
        for name, content in source_files(wide, made_up(plan)).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        project, main = Project(folder, wide), folder / GOLDEN
        shipped = link_program(project, main, folder / "shipped.elf", ["GL_PROBE"])
        plain = link_program(project, main, folder / "plain.elf", [])
        stack = max(stack_bytes(shipped), stack_bytes(plain))
        symbols = Symbols(shipped.read_bytes())
        _keep(project, plain)
    places = (symbols.address(name) or 0 for name in ("gl_l1_image", "gl_l1_start", "gl_l1_end"))
    image, first, end = places
    return Needs(image + end - first - home.base - plan.taken(home), stack)


def _keep(project: Project, elf: Path) -> None:
    """What the kernels of a program take, each by itself, if that is new."""
    plan, compiler = project.plan, zig()
    used = used_kernels(plan)
    keys = dict(zip(used, _keys(plan, used), strict=True))
    found = all_recalled(keys.values())
    new = [kernel for kernel in used if keys[kernel] not in found]
    if not new or compiler is None:
        return
    names = [kernel.symbol(plan.prefix) for kernel in new]
    sources = [project.folder / "kernels" / f"{name}.c" for name in names]
    options = [*BASE, *DEVICE_ONLY, *plan.target.flags]
    objects = compile_objects(compiler, options, sources, [project.folder], {})
    stacks = needs_of(elf.read_bytes(), names)
    all_kept(
        {
            keys[kernel]: {"bytes": loaded_bytes(made.read_bytes()), "stack": stacks[name]}
            for kernel, name, made in zip(new, names, objects, strict=True)
        }
    )


def _keys(plan: Plan, used: Sequence[Kernel]) -> list[str]:
    """Of what kernels take: all that goes into their objects."""
    target, compiler = plan.target, zig()
    shared = ["gl.h", *source.element_headers(used)]
    files = [FOLDER / name for name in shared]
    files += [port_file(target.port, name) for name in headers(target.port)]
    around = [*target.flags, version(compiler) if compiler else "", *(f.read_text() for f in files)]
    texts = (source.render(kernel, plan.prefix) for kernel in used)
    return [key_of("footprint", text, around) for text in texts]
