"""One program for all candidates of a network: every kernel that any of them may use, and a small
function for every way in which a call hands its operands to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from gradlet.kernels import catalogue
from gradlet.kernels.catalogue import Kernel
from gradlet.kernels.lab.runner import link_script, port_header, with_stacks
from gradlet.planner.tiling import Tiling
from gradlet.runtime import TILES_TRIAL, includes, port_file, startup
from gradlet.support.cache import scratch_folder
from gradlet.support.compiler import build_program
from gradlet.targets.target import Target

WINDOWS = 20
PREFIX = "net"
"""That of a project, if it is not told another: its kernels are compiled by then."""


@dataclass(frozen=True)
class Function:
    """A kernel over some operands of a frame, None for one that is left out."""

    kernel: Kernel
    operands: tuple[int | None, ...]
    finishes: bool = False
    rider: Function | None = None  # runs right behind

    @property
    def name(self) -> str:
        places = "_".join("x" if place is None else str(place) for place in self.operands)
        own = f"call_{self.kernel.symbol(PREFIX)}_{places}"
        return f"{own}_{self.rider.name}" if self.rider else own

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (self.kernel, *(self.rider.kernels if self.rider else ()))

    def text(self) -> str:
        sizes = "f->finish_sizes" if self.finishes else "f->sizes"
        calls = [self._call(sizes)]
        if self.rider:
            carrier = catalogue.sizes_type(self.kernel.family, PREFIX)
            behind = f"(const void *)((const {carrier} *){sizes} + 1)"
            calls.append(f"if (!f->rests) {self.rider._call(behind)}")
        return (
            f"void {self.name}(gl_core me, const gl_frame *f, int32_t step);\n"
            f"void {self.name}(gl_core me, const gl_frame *f, int32_t step)\n"
            f"{{\n    (void)step;\n    {' '.join(calls)}\n}}\n"
        )

    def _call(self, sizes: str) -> str:
        arguments = ["me", *("0" if p is None else f"f->t[{p}]" for p in self.operands)]
        if catalogue.families()[self.kernel.family].stepped:
            arguments.append("step")
        return f"{self.kernel.symbol(PREFIX)}({', '.join([*arguments, sizes])});"


@dataclass(frozen=True)
class Functions:
    """Those of one tiled call: of its first tiles, of those that add, of the update behind."""

    first: Function
    more: Function | None = None
    finish: Function | None = None

    @property
    def all(self) -> tuple[Function, ...]:
        return tuple(f for f in (self.first, self.more, self.finish) if f)


def functions_of(kernel: Kernel, tiling: Tiling, outputs: int) -> Functions:
    """Operands by their position in the call; scratch is behind them all."""
    count = len(tiling.windows)

    def over(chosen: Kernel, positions: Sequence[int], *, first: bool) -> Function:
        places: list[int | None] = []
        for position in positions:
            window = tiling.windows[position]
            left_out = window is None or (window.once and not first)
            places.append(None if left_out else position)
        if catalogue.variant_of(chosen).scratch:
            places.append(count)
        return Function(chosen, tuple(places))

    made, taken = map(len, catalogue.operands(kernel))
    results = [tiling.made_in] if tiling.made_in else list(range(made))
    positions = [*results, *range(outputs, outputs + taken)]
    first = over(kernel, positions, first=True)
    more = over(tiling.more, positions, first=False) if tiling.more else None
    finish = None
    if tiling.finish:
        finish = Function(tiling.finish, tiling.finish_operands, finishes=True)
    if riding := tiling.riding:
        first = replace(first, rider=Function(riding.kernel, riding.operands))
        if more and riding.more:
            more = replace(more, rider=Function(riding.more, riding.operands))
        if finish and riding.finish:
            finish = replace(finish, rider=Function(riding.finish, riding.finish_operands))
    return Functions(first, more, finish)


def build(functions: Sequence[Function], target: Target) -> bytes:
    """The ELF that has all of these."""
    return with_stacks(partial(_build, functions), target, [f.name for f in functions])


def _build(functions: Sequence[Function], target: Target) -> bytes:
    every = {kernel for function in functions for kernel in function.kernels}
    used = sorted(every, key=lambda kernel: kernel.name)
    with scratch_folder() as folder:
        (folder / "gl_port.h").write_text(port_header(target.port))
        (folder / "link.ld").write_text(link_script(target, 0))
        texts = [f.text() for f in sorted(set(functions), key=lambda f: f.name)]
        calls = folder / "functions.c"
        calls.write_text('#include "gl_tiles.h"\n#include "kernels.h"\n\n' + "\n".join(texts))
        (folder / "kernels.h").write_text(catalogue.header(used, PREFIX))
        sources = []
        for kernel in used:
            sources.append(folder / f"{kernel.symbol(PREFIX)}.c")
            sources[-1].write_text(catalogue.render(kernel, PREFIX))
        changing = [port_file(target.port, n) for n in (TILES_TRIAL, *startup(target.port))]
        defines = [
            f"GL_CORES={target.cores}",
            f"GL_TILE_WINDOWS={WINDOWS}",
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
