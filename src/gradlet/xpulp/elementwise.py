"""Element by element: loads, a few instructions, a store, for two elements at a time.

The C around it cuts the work into stretches. An operand moves on by 4 bytes, or by as much as a
register says: one of its own, which may be 0 where it is broadcast, or one for all and the result;
"each": the result has one of its own as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradlet.xpulp.asm import ARGUMENTS, SCRATCH, Asm

AT_ONCE = 2
"""So that no load is waited for."""


@dataclass(frozen=True)
class Map:
    """y of the inputs; constants and steps are arguments of the function behind their number."""

    inputs: tuple[str, ...]
    body: tuple[tuple[str | int, ...], ...]
    result: str
    constants: tuple[str, ...] = ()
    steps: str = ""  # "own", "common" or "each"

    @property
    def step_names(self) -> tuple[str, ...]:
        own = tuple(f"{name}_step" for name in self.inputs)
        return {"": (), "own": own, "common": ("step",), "each": (*own, "to_step")}[self.steps]


MAPS = {
    # not fmax: a NaN stays, whatever its sign
    "relu": Map(
        ("x",),
        (("fle.s", "t", "x", "zero"), ("addi", "t", "t", -1), ("and", "t", "x", "t")),
        "t",
    ),
    "relu_grad": Map(
        ("dy", "y"),
        (("flt.s", "t", "zero", "y"), ("sub", "t", "zero", "t"), ("and", "t", "dy", "t")),
        "t",
    ),
    "sgd": Map(
        ("w", "g"),
        (("fmadd.s", "g", "decay", "w", "g"), ("fmadd.s", "g", "rate", "g", "w")),
        "g",
        ("rate", "decay"),
    ),
    "add": Map(("a", "b"), (("fadd.s", "a", "a", "b"),), "a", steps="own"),
    "sub": Map(("a", "b"), (("fsub.s", "a", "a", "b"),), "a", steps="own"),
    "mul": Map(("a", "b"), (("fmul.s", "a", "a", "b"),), "a", steps="own"),
    "copy": Map(("x",), (), "x", steps="each"),
    "fill": Map((), (), "value", ("value",), "common"),
}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    """more: further functions that the template uses."""
    made = {name: stretch(name, MAPS[name]) for name in params.get("more", ())}
    return {"stretch": stretch("stretch", MAPS[mode]), **made}


def stretch(name: str, item: Map) -> str:
    """The C function name(to, inputs, count, constants, steps in bytes); count is not 0."""
    asm = Asm(name)
    names = ("to", *item.inputs, "count", *item.constants, *item.step_names)
    argument = dict(zip(names, ARGUMENTS, strict=False))
    number, last, out = argument["count"], asm.fresh(), asm.fresh()
    pairs = SCRATCH[-1]
    asm.compressed(True)
    asm("srli", pairs, number, AT_ONCE.bit_length() - 1)
    asm("andi", number, number, AT_ONCE - 1)
    asm.branch("beqz", pairs, to=last)
    asm.compressed(False)
    with asm.loop(0, pairs):
        _elements(asm, item, argument, AT_ONCE)
    asm.compressed(True)
    asm.branch("beqz", number, to=out)
    asm.label(last)
    _elements(asm, item, argument, 1)
    asm.label(out)
    asm("ret")
    parameters = ["float *to", *(f"const float *{name}" for name in item.inputs), "int count"]
    parameters += [f"float {name}" for name in item.constants]
    parameters += [f"int {name}" for name in item.step_names]
    return asm.function(", ".join(parameters))


def _elements(asm: Asm, item: Map, argument: dict[str, str], count: int) -> None:
    own = [*item.inputs, "t"]
    places = [{name: SCRATCH[i * len(own) + j] for j, name in enumerate(own)} for i in range(count)]
    common = argument.get("step", 4)
    to_step = argument.get("to_step", common)
    for name in item.inputs:
        for place in places:
            asm.lw_post(place[name], argument[name], argument.get(f"{name}_step", common))
    for op, *operands in item.body:
        for place in places:
            named = [place.get(str(o), argument.get(str(o), o)) for o in operands]
            asm(str(op), *named)
    for place in places:
        value = place.get(item.result) or argument[item.result]
        asm.sw_post(value, argument["to"], to_step)
