"""Sums over one or two dimensions, results along one: the usual gradient of a bias.

Core c makes the results c, c + cores, ... An addition takes one cycle, so a single chain in the
order of the C is as quick as several; two loads stand before their additions.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SCRATCH, Asm, Registers
from gradlet.kernels.xpulp.isa.store import store_one

SIZES = {
    "results": ("keep_extent", 5),
    "lines": ("sum_extent", 4),
    "width": ("sum_extent", 5),
    "apart": ("keep_step", 5),  # from result to result, line to line, element to element
    "line_step": ("sum_step", 4),
    "step": ("sum_step", 5),
}
FIELDS = ("keep_extent", "keep_step", "sum_extent", "sum_step")
"""Of the kernel's sizes, six words each."""


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    asm, out = Asm("reduce"), "out"
    regs = Registers([*ARGUMENTS, *SCRATCH, *IDLE])
    regs.take("left", "cores", "y", *(["moment"] if epilogue == "momentum" else []), "x")
    regs.take(*(["hyper"] if epilogue in ("sgd", "momentum") else []), "sizes")
    asm.compressed(True)
    (_begin_channels if params["by_channel"] else _begin)(asm, regs, out)
    again = asm.label()
    _result(asm, regs)
    asm.compressed(True)
    asm("sub", regs["left"], regs["left"], regs["cores"])
    spare = [regs[name] for name in ("from", "line", "first", "second")]
    store_one(asm, epilogue, regs["total"], regs.named, regs["cores"], spare)
    asm.branch("bgtz", regs["left"], to=again)
    asm.label(out)
    asm("ret")
    return {"body": asm.body()}


def _begin(asm: Asm, regs: Registers, out: str) -> None:
    """left: results from the core's first one on; this and the number of cores are times 4."""
    core = regs.named["core"] = regs.named.pop("left")
    sizes = regs["sizes"]

    def load(into: str, name: str) -> None:
        field, dim = SIZES[name]
        asm.lw(into, sizes, 4 * (6 * FIELDS.index(field) + dim))

    left, apart = regs.take("left", "apart")
    load(left, "results")
    load(apart, "apart")
    asm("sub", left, left, core)
    asm.branch("blez", left, to=out)
    for name in ("lines", "width", "line_step", "step"):
        load(regs.one(name), name)
    _spread(asm, regs, core)


def _begin_channels(asm: Asm, regs: Registers, out: str) -> None:
    """The same from three sizes; single elements far from each other are a line as well."""
    core = regs.named["core"] = regs.named.pop("left")
    sizes, lines = regs["sizes"], asm.fresh()
    left, apart, channels = regs.take("left", "apart", "line_step")
    asm.lw(channels, sizes, 4)
    asm("sub", left, channels, core)
    asm.branch("blez", left, to=out)
    asm.lw(regs.one("lines"), sizes, 0)
    asm.lw(apart, sizes, 8)
    step = regs.one("step")
    asm.li(step, 1)
    asm.mv(regs.one("width"), apart)
    asm.bne_imm(apart, 1, to=lines)
    asm.mv(regs["width"], regs["lines"])
    asm.mv(step, channels)
    asm.li(regs["lines"], 1)
    asm.label(lines)
    asm("mul", channels, channels, apart)
    _spread(asm, regs, core)


def _spread(asm: Asm, regs: Registers, core: str) -> None:
    """From sizes to what the loops need."""
    apart = regs["apart"]
    asm("slli", core, core, 2)
    asm.mac(regs["x"], core, apart)
    for pointer in ("y", "moment"):
        if pointer in regs.named:
            asm("add", regs[pointer], regs[pointer], core)
    for name in ("left", "cores", "line_step", "step"):
        asm("slli", regs[name], regs[name], 2)
    asm("mul", apart, apart, regs["cores"])
    regs.give_back("sizes", "core")
    asm("srli", regs.one("pairs"), regs["width"], 1)
    asm("andi", regs["width"], regs["width"], 1)
    regs.take("from", "line", "total", "first", "second")


def _result(asm: Asm, regs: Registers) -> None:
    single, done = asm.fresh(), asm.fresh()
    at, total = regs["from"], regs["total"]
    asm.mv(regs["line"], regs["x"])
    asm("add", regs["x"], regs["x"], regs["apart"])
    asm.mv(total, "zero")
    asm.compressed(False)
    with asm.loop(1, regs["lines"]):
        asm.mv(at, regs["line"])
        asm.branch("beqz", regs["pairs"], to=single)
        with asm.loop(0, regs["pairs"]):
            for value in (regs["first"], regs["second"]):
                asm.lw_post(value, at, regs["step"])
            for value in (regs["first"], regs["second"]):
                asm("fadd.s", total, total, value)
        asm.branch("beqz", regs["width"], to=done)
        asm.label(single)
        asm.lw(regs["first"], at)
        asm("fadd.s", total, total, regs["first"])
        asm.label(done)
        asm("add", regs["line"], regs["line"], regs["line_step"])
