"""Windows of 2 x 2 or 3 x 3 along a row of outputs, all of them inside of the image; whole planes.

Pixels are `pixel` bytes apart, so either layout will do: 4, or those of all channels. Each row of
the window has a pointer, which its last load moves on to the next window (by `hop`). For a maximum
a row outside of the image can be replaced by one of the window that is inside.
"""

from __future__ import annotations

from typing import Any

from gradlet.kernels.xpulp.elementwise.elementwise import MAPS, stretch
from gradlet.kernels.xpulp.isa.asm import ARGUMENTS, IDLE, SCRATCH, Asm, Registers

SIGNATURES = {
    "max_forward": ("to", "rows", "count", "pixel", "hop"),
    "avg_forward": ("to", "rows", "count", "pixel", "hop", "factor"),
    "avg_grad": ("rows", "dy", "count", "pixel", "hop", "factor"),
    "max_grad": ("dx", "x", "rows", "dy", "count", "pixel", "hop", "size"),
}
"""The arguments of a row; `rows` stands for the pointers to the first window's rows."""
TYPES = {"to": "float *", "dx": "float *", "x": "const float *", "dy": "const float *"}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    kind = mode.removesuffix("_hwc")
    made = {"fill": stretch("fill", MAPS["fill"]) if kind.endswith("grad") else ""}
    if "kernel" in params:
        return made | {"windows": _Row(kind, params["kernel"]).text()}
    return made | {"line_sum": _line_sum() if kind == "avg_forward" else ""}


class _Row:
    def __init__(self, kind: str, kernel: int) -> None:
        self.asm, self.kind, self.kernel = Asm("windows"), kind, kernel
        self.names: list[str] = []
        for name in SIGNATURES[kind]:
            self.names += [f"row{i}" for i in range(kernel)] if name == "rows" else [name]
        self.regs = Registers([*ARGUMENTS, *SCRATCH, *IDLE])
        self.regs.take(*self.names)
        self.rows = [self.regs[f"row{i}"] for i in range(kernel)]

    def text(self) -> str:
        asm, regs = self.asm, self.regs
        asm.compressed(True)
        for place, name in enumerate(self.names[len(ARGUMENTS) :]):
            asm.lw(regs[name], "sp", 4 * place)
        if self.kind == "max_forward":
            asm.mv(regs.one("check"), "zero")
        regs.take("first", "second")
        asm.compressed(False)
        with asm.loop(0, regs["count"]):
            getattr(self, f"_{self.kind}")()
        if self.kind == "max_forward":
            asm.mv("a0", regs["check"])
        asm("ret")
        row = "float *" if self.kind == "avg_grad" else "const float *"
        kinds = {**TYPES, **{f"row{i}": row for i in range(self.kernel)}, "factor": "float "}
        parameters = ", ".join(f"{kinds.get(name, 'int ')}{name}" for name in self.names)
        return asm.function(parameters, result="float" if self.kind == "max_forward" else "void")

    def _steps(self) -> list[tuple[str, str]]:
        """The pointer of each element of the window, and what moves it on."""
        row = [self.regs["pixel"]] * (self.kernel - 1) + [self.regs["hop"]]
        return [(pointer, step) for pointer in self.rows for step in row]

    def _fold(self, op: str, check: str = "") -> str:
        """All elements of a window in their order, each loaded before the last one is used."""
        asm, regs = self.asm, self.regs
        total, *flow = regs["first"], regs["second"], regs.named.setdefault("third", regs.rest[0])
        steps = self._steps()
        asm.lw_post(total, *steps[0])
        asm.lw_post(flow[1], *steps[1])
        if check:
            asm("fadd.s", check, check, total)
        for number in range(1, len(steps)):
            if number + 1 < len(steps):
                asm.lw_post(flow[(number + 1) % 2], *steps[number + 1])
            asm(op, total, total, flow[number % 2])
            if check:
                asm("fadd.s", check, check, flow[number % 2])
        return total

    def _max_forward(self) -> None:
        """fmax passes a NaN over; the sum of all, which is returned, shows that there was one."""
        total = self._fold("fmax.s", self.regs["check"])
        self.asm.sw_post(total, self.regs["to"], self.regs["pixel"])

    def _avg_forward(self) -> None:
        total = self._fold("fadd.s")
        self.asm("fmul.s", total, total, self.regs["factor"])
        self.asm.sw_post(total, self.regs["to"], self.regs["pixel"])

    def _avg_grad(self) -> None:
        asm, regs = self.asm, self.regs
        part, old = regs["first"], regs["second"]
        asm.lw_post(part, regs["dy"], regs["pixel"])
        steps = self._steps()
        asm.lw(old, steps[0][0])
        asm("fmul.s", part, part, regs["factor"])
        for number, (pointer, step) in enumerate(steps):
            if number:
                asm.lw(old, pointer)
            asm("fadd.s", old, old, part)
            asm.sw_post(old, pointer, step)

    def _max_grad(self) -> None:
        """To the first largest, or the last NaN; unless it is outside of the `size` bytes from x on
        that are this core's own."""
        asm, regs, foreign = self.asm, self.regs, self.asm.fresh()
        top, value = regs["first"], regs["second"]
        at, number, other = regs.rest[:3]
        (pointer, step), *others = self._steps()
        asm.mv(at, pointer)
        asm.lw_post(top, pointer, step)
        for pointer, step in others:
            skip = asm.fresh()
            asm.lw_post(value, pointer, step)
            asm("fle.s", number, value, top)
            asm.branch("bnez", number, to=skip)
            asm("feq.s", number, top, top)
            asm("feq.s", other, value, value)
            asm.branch("blt", number, other, to=skip)
            asm.mv(top, value)
            asm("sub", at, pointer, step)
            asm.label(skip)
        asm("sub", at, at, regs["x"])
        asm.lw_post(top, regs["dy"], regs["pixel"])
        asm.branch("bgeu", at, regs["size"], to=foreign)
        asm("add", at, at, regs["dx"])
        asm.lw(value, at)
        asm("fadd.s", value, value, top)
        asm.sw(value, at)
        asm.label(foreign)
        asm.mv(top, "zero")  # a loop has to end with an instruction that is always reached


def _line_sum() -> str:
    """One chain over count elements, `step` bytes apart."""
    asm, single, out = Asm("line_sum"), "single", "out"
    source, count, step, total, pairs, first, second = (*ARGUMENTS[:3], *SCRATCH[:4])
    asm.sum_in_pairs(total, count, pairs, single)
    with asm.loop(0, pairs):
        for value in (first, second):
            asm.lw_post(value, source, step)
        for value in (first, second):
            asm("fadd.s", total, total, value)
    asm.compressed(True)
    asm.branch("beqz", count, to=out)
    asm.label(single)
    asm.lw(first, source)
    asm("fadd.s", total, total, first)
    asm.label(out)
    asm.mv("a0", total)
    asm("ret")
    return asm.function("const float *from, int count, int step", result="float")
