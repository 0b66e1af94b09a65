"""Element by element: loads, a few instructions, a store, for two elements at a time.

The C around it cuts the work into stretches. An operand moves on by 4 bytes, or by as much as a
register says, which may be 0 where it is broadcast.
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
    stepped: bool = False


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
    "add": Map(("a", "b"), (("fadd.s", "a", "a", "b"),), "a", stepped=True),
    "sub": Map(("a", "b"), (("fsub.s", "a", "a", "b"),), "a", stepped=True),
    "mul": Map(("a", "b"), (("fmul.s", "a", "a", "b"),), "a", stepped=True),
}


def generate(mode: str, epilogue: str, params: dict[str, Any]) -> dict[str, str]:
    item = MAPS[mode]
    asm = Asm("stretch")
    steps = tuple(f"{name}_step" for name in item.inputs) if item.stepped else ()
    names = ("to", *item.inputs, "count", *item.constants, *steps)
    argument = dict(zip(names, ARGUMENTS, strict=False))
    number, last, out = argument["count"], asm.fresh(), asm.fresh()
    pairs = SCRATCH[-1]
    asm("srli", pairs, number, AT_ONCE.bit_length() - 1)
    asm("andi", number, number, AT_ONCE - 1)
    asm.branch("beqz", pairs, to=last)
    with asm.loop(0, pairs):
        _elements(asm, item, argument, AT_ONCE)
    asm.branch("beqz", number, to=out)
    asm.label(last)
    _elements(asm, item, argument, 1)
    asm.label(out)
    asm("ret")
    pointers = ", ".join(f"const float *{name}" for name in item.inputs)
    numbers = "".join(f", float {name}" for name in item.constants)
    numbers += "".join(f", int {name}" for name in steps)
    return {"stretch": asm.function(f"float *to, {pointers}, int count{numbers}")}


def _elements(asm: Asm, item: Map, argument: dict[str, str], count: int) -> None:
    own = [*item.inputs, "t"]
    places = [{name: SCRATCH[i * len(own) + j] for j, name in enumerate(own)} for i in range(count)]
    for name in item.inputs:
        for place in places:
            step = argument[f"{name}_step"] if item.stepped else 4
            asm.lw_post(place[name], argument[name], step)
    for op, *operands in item.body:
        for place in places:
            named = [place.get(str(o), argument.get(str(o), o)) for o in operands]
            asm(str(op), *named)
    for place in places:
        asm.sw_post(place[item.result], argument["to"], 4)
