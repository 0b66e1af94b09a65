"""One program for all candidates of a network: every kernel that any of them may use, and a small
function for every way in which a call hands its operands to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gradlet.codegen.tiles import beside, tile_step
from gradlet.kernels import catalogue, source
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.program import link_script, port_header, with_stacks
from gradlet.planner.tile.layout import held
from gradlet.planner.tile.table import functions
from gradlet.planner.tiling import Tiling
from gradlet.runtime import TILE_RUNNER, includes, port_file, startup
from gradlet.support.cache import scratch_folder
from gradlet.support.compiler import build_program
from gradlet.targets.target import Target

VIEWS = 20
PREFIX = "net"
"""That of a project, if it is not told another: its kernels are compiled by then."""


@dataclass(frozen=True)
class Function:
    """Kernels one right behind the other, over some operands of a frame, None for one that is left
    out."""

    launches: tuple[tuple[Kernel, tuple[int | None, ...]], ...]
    finishes: bool = False

    @property
    def name(self) -> str:
        names = []
        for kernel, operands in self.launches:
            places = "_".join("x" if place is None else str(place) for place in operands)
            names.append(f"call_{kernel.symbol(PREFIX)}_{places}")
        return "_".join(names)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(kernel for kernel, _ in self.launches)

    def text(self) -> str:
        sizes = "f->last_sizes" if self.finishes else "f->sizes"
        calls: list[str] = []
        for kernel, operands in self.launches:
            when = beside(self.launches[0][0]) if calls else ""
            calls.append(f"{when}{_call(kernel, operands, sizes)}")
            before = source.sizes_type(kernel.family, PREFIX)
            sizes = f"(const void *)((const {before} *){sizes} + 1)"
        return (
            f"void {self.name}(gl_core me, const gl_frame *f, int32_t step);\n"
            f"void {self.name}(gl_core me, const gl_frame *f, int32_t step)\n"
            f"{{\n    (void)step;\n    {' '.join(calls)}\n}}\n"
        )


def _call(kernel: Kernel, operands: Sequence[int | None], sizes: str) -> str:
    arguments = ["me", *("0" if p is None else f"f->t[{p}]" for p in operands)]
    if catalogue.stepped(kernel):
        arguments.append(tile_step(kernel))
    return f"{kernel.symbol(PREFIX)}({', '.join([*arguments, sizes])});"


def functions_of(tiling: Tiling) -> dict[str, Function]:
    """Those of a tiled call, by their names in its table. Operands are known by their position in
    the call; scratch is behind them all."""
    scratch = len(tiling.views)
    return {
        role: Function(
            tuple(
                (
                    launch.kernel,
                    (
                        *launch.operands,
                        *([scratch] if catalogue.variant_of(launch.kernel).scratch else []),
                    ),
                )
                for launch in launches
            ),
            role == "last",
        )
        for role, launches in functions(tiling).items()
    }


def build(used: Sequence[Function], target: Target) -> bytes:
    """The ELF that has all of these."""
    return with_stacks(partial(_build, used), target, [f.name for f in used])


def _build(given: Sequence[Function], target: Target) -> bytes:
    every = {kernel for function in given for kernel in function.kernels}
    used = sorted(every, key=lambda kernel: kernel.name)
    with scratch_folder() as folder:
        (folder / "gl_port.h").write_text(port_header(target.port))
        (folder / "link.ld").write_text(link_script(target, 0))
        texts = [f.text() for f in sorted(set(given), key=lambda f: f.name)]
        calls = folder / "functions.c"
        start = f'#include "gl_tiles.h"\n#include "kernels.h"\n\n{held()}\n'
        calls.write_text(start + "\n".join(texts))
        (folder / "kernels.h").write_text(source.header(used, PREFIX))
        sources = []
        for kernel in used:
            sources.append(folder / f"{kernel.symbol(PREFIX)}.c")
            sources[-1].write_text(source.render(kernel, PREFIX))
        changing = [port_file(target.port, n) for n in (TILE_RUNNER, *startup(target.port))]
        defines = [
            f"GL_CORES={target.cores}",
            f"GL_TILE_VIEWS={VIEWS}",
        ]
        elf = build_program(
            [*changing, calls, *sources],
            folder / "tune.elf",
            flags=target.flags,
            script=folder / "link.ld",
            include=[folder, *includes(target.port)],
            defines=dict.fromkeys([*changing, calls], defines),
            unused=True,
        )
        return elf.read_bytes()
